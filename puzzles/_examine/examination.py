"""The result of an examination, and its text, HTML and JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from importlib import metadata

from puzzles._draw import BLUE, FAINT, GREEN, GREY, VERMILLION, card, fold, paragraph, source
from puzzles._launch import ERROR, NOTE, SEVERITIES, WARNING, Finding, Launch
from puzzles._receipt import receipt_html, receipt_text
from puzzles._rules import address, plural

SCHEMA = 1  # of the JSON: it rises when a field changes or goes
_MARKS = {ERROR: "✗", WARNING: "!", NOTE: "·"}
_COUNTS = (
    "name", "grid", "steps", "times", "bound", "hbm_bytes_read", "hbm_bytes_written", "vmem_bytes",
    "smem_bytes", "flops", "line",
)  # fmt: skip


@dataclass(frozen=True)
class Examination:
    """The findings on a function's launches, the worst first; `str()` gives all of it.

    looked, not_looked: searches that were made, and those that were not, with the reason. unread:
    why the function could not be read; then all else is empty. unseen: "memory" and the like, if
    some launches were not searched. ignored: findings that comments ignore, with their reasons.
    wire: the receipt's rows on copies between devices, "" without such copies.
    """

    name: str
    findings: tuple[Finding, ...] = ()
    launches: tuple[Launch, ...] = ()
    looked: tuple[str, ...] = ()
    not_looked: tuple[str, ...] = ()
    chips: tuple[str, ...] = ("v5e",)
    unread: str = ""
    unseen: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    wire: str = ""

    @property
    def worst(self) -> str:
        """The severity of the first finding; "" if there is none."""
        return self.findings[0].severity if self.findings else ""

    @property
    def code(self) -> int:
        """For a shell: 0 without errors, 1 with errors, 2 if the function could not be read."""
        return 2 if self.unread else int(self.worst == ERROR)

    @property
    def gaps(self) -> tuple[str, ...]:
        """The searches that were skipped, but for wrong numbers: no kernel has a reference here."""
        return self.unseen + tuple(s for s in self.not_looked if not s.startswith("wrong numbers"))

    def fails(self, level: str) -> bool:
        """Whether it has a finding of this severity, or of a worse one."""
        return bool(self.findings) and SEVERITIES.index(self.worst) <= SEVERITIES.index(level)

    @property
    def headline(self) -> str:
        """The first line."""
        if self.unread:
            return f"? {self.name}: it could not be read"
        counts = {s: sum(f.severity == s for f in self.findings) for s in SEVERITIES}
        told = ", ".join(plural(n, s) for s, n in counts.items() if n)
        without = f"; not looked at: {', '.join(self.unseen)}" if self.unseen else ""
        mark = _MARKS.get(self.worst, "?" if self.unseen else "✓")
        return f"{mark} {self.name}: {told or 'nothing found'}{without}"

    def __str__(self) -> str:
        if self.unread:
            return f"{self.headline}\n  {self.unread}"
        parts = [self.headline, *map(_text, self.findings), "", self._below()]
        if self.findings:
            parts.append(f"{'each kind':<11} {address('').rstrip('#')}")
        return "\n".join(parts)

    __repr__ = __str__

    def _below(self) -> str:
        """The receipt, and the lists of searches."""
        scope = {"looked for": self.looked, "not for": self.not_looked, "ignored": self.ignored}
        hang = "\n" + 12 * " "
        lines = [f"{label:<11} {hang.join(texts)}" for label, texts in scope.items() if texts]
        receipt = receipt_text(self.launches, self.chips[0], limits=True) if self.launches else ""
        return "\n".join(filter(None, [receipt, self.wire, *lines]))

    def _repr_html_(self) -> str:
        """The examination as a card, for a notebook: findings first, the rest folded."""
        if self.unread:
            return card(GREY, self.headline, [paragraph(self.unread)])
        below = fold("receipt, and what was looked for", receipt_html(self._below()))
        parts = [*map(_block, self.findings), below]
        colour = {ERROR: VERMILLION, WARNING: BLUE}.get(self.worst, GREEN)
        return card(GREY if self.unseen and not self.findings else colour, self.headline, parts)

    def to_json(self) -> str:
        """The examination as JSON: findings with all their fields, launches with their counts."""
        data = vars(self) | {
            "schema": SCHEMA,
            "versions": versions(),
            "code": self.code,
            "findings": [dataclasses.asdict(finding) | finding.place for finding in self.findings],
            "launches": [{n: getattr(launch, n) for n in _COUNTS} for launch in self.launches],
        }
        return json.dumps(data, indent=2, ensure_ascii=False)


def versions() -> dict[str, str]:
    """The versions of the packages that influence an examination, if installed."""
    names = ("pallas-puzzles", "jax", "libtpu")
    installed = ((n, package.version) for n in names for package in metadata.distributions(name=n))
    return dict(reversed([*installed]))  # the first of each name on the path counts


def _where(one: Finding) -> str:
    """Its kind, launch, operand, step and chips, without those that it lacks."""
    step = f"step {one.step}" if one.step else ""
    return " · ".join(filter(None, (one.kind, one.launch, one.operand, step, ", ".join(one.chips))))


def _block(finding: Finding) -> str:
    """A finding as HTML: its place, the message, the remedy and the line."""
    remedy = paragraph(f"→ {finding.remedy}") if finding.remedy else ""
    line = source(finding.line) if finding.line else ""
    href = f'href="{address(finding.kind)}" target="_blank" style="color:inherit"'
    title = paragraph(f"{_MARKS[finding.severity]} {_where(finding)}", "font-weight:600")
    return (
        f'<div style="margin-top:10px">{title}{paragraph(finding.says)}{remedy}{line}'
        f'<div style="{FAINT}"><a {href}>what it means</a></div></div>'
    )


def _text(one: Finding) -> str:
    lines = [f"{_MARKS[one.severity]} {_where(one)}", one.says]
    lines += [f"→ {one.remedy}"] * bool(one.remedy) + [f"in {one.line}"] * bool(one.line)
    return "\n    ".join(line for part in lines for line in part.splitlines())
