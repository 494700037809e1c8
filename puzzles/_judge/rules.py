"""Which rule a finding about a launch breaks."""

from __future__ import annotations

from puzzles._launch import Finding


def rule_of(finding: Finding) -> str:
    """The rule that a finding about a launch breaks."""
    if finding.kind == "parallel" and finding.operand is not None:
        return "parallel-state"
    return finding.kind


def simulated_rule(finding: Finding | None) -> str:
    """The rule by which the simulator stops; None where it is not the kernel's fault."""
    if finding is None:
        return "simulator"
    return "not-a-slice" if finding.kind == "lowering" else rule_of(finding)
