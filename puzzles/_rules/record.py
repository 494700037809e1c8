"""`python -m puzzles rules`: every rule by which an answer is refused, and what it decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from puzzles._rules.table import RULES

RECORD = Path("tests") / "verdicts"


def mistakes(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(rung, mistake, the rule that decides it) of the verdicts on record in a folder.

    Their lines hold, tabs between them: rung, answer, stage, rule, words. Answers that are right
    begin with "= ".
    """
    for file in sorted(folder.glob("*.txt")):
        for line in filter(None, file.read_text(encoding="utf-8").splitlines()):
            rung, answer, _, rule, *_ = line.split("\t")
            if not answer.startswith("= "):
                yield rung, answer, rule


def decided(folder: Path) -> Counter[str]:
    """How many mistakes each rule decides, of the verdicts on record in a folder."""
    return Counter(rule for _, _, rule in mistakes(folder))


def listed() -> int:
    """Print each rule with its count; 1 if one decides nothing and does not say why it stays."""
    counts, idle = decided(RECORD), 0
    if not counts:
        print(f"no verdicts on record in {RECORD}: here is what each rule asks")
    for name, rule in RULES.items():
        idle += bool(counts) and not counts[name] and not rule.why
        says = rule.asks
        if counts and not counts[name]:
            says = rule.why or "DECIDES NOTHING: delete it, or say why it stays"
        print(f"{counts[name]:5}  {name:20} {rule.stage:9} {says}")
    return int(bool(idle))
