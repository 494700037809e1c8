"""What `verify` prints of a rung and of all of them, and where its seconds went."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class Report:
    """What was counted on one rung, every shortfall in words, and what is left undone.

    raised: the author's own code did. refused: its solution is. before: it was proven before, of
    the same text. parts: seconds by what took them. began, ended: by the clock, since processes
    share a rung.
    """

    rung: str
    counts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    raised: bool = False
    refused: bool = False
    mistakes: int = 0
    before: bool = False
    parts: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    ended: float = 0.0

    def of(self, part: str, work: Callable[..., Any], *options: object) -> Any:
        """What `work` returns, a generator's answers as a list; its seconds are the part's."""
        start = time.time()
        try:
            result = work(*options)
            return list(result) if isinstance(result, Iterator) else result
        finally:
            self.ended = time.time()
            self.parts[part] = self.parts.get(part, 0.0) + self.ended - start

    def __str__(self) -> str:
        counts = "  ".join(f"{name} {value}" for name, value in self.counts.items())
        mark = "ok " if not self.problems else "BAD"
        lines = [f"{mark} {self.rung:<36} {counts}  ({self._seconds()})"]
        return "\n".join(lines + [f"    {p}" for p in (*self.problems, *self.undone)])

    def _seconds(self) -> str:
        if self.before:
            return "proven before"
        whole = f"{max(0.0, self.ended - self.began):.1f} s"
        if not self.parts:
            return whole
        slowest = max(self.parts, key=lambda part: self.parts[part])
        return f"{whole}, slowest: {slowest} {self.parts[slowest]:.1f} s"


def together(rung: str, proofs: Sequence[Report], told: Report) -> Report:
    """A rung's report, of what proves it and of its text.

    proofs: of the solution, the mistakes, and the other answers, which tell nothing where the
    solution is refused.
    """
    right, wrong, others = proofs
    if right.refused:
        others = replace(others, problems=[], counts={**others.counts, "alternatives": "-"})
    if right.raised:  # and says so of the same line
        told = replace(told, problems=[])
    parts = (right, others, wrong, told)
    return Report(
        rung,
        {**wrong.counts, **others.counts, **right.counts},
        list(dict.fromkeys(problem for part in parts for problem in part.problems)),
        told.undone,
        right.raised,
        right.refused,
        wrong.mistakes,
        all(part.before for part in parts[:-1]),
        {name: seconds for part in parts for name, seconds in part.parts.items()},
        min(part.began for part in parts),
        max(part.ended for part in parts),
    )


def total(reports: Sequence[Report], whole: int, undone: int, seconds: float) -> str:
    """The last line: what was verified, and what is wrong or left."""
    failed = sum(bool(r.problems) for r in reports)
    undone += sum(len(r.undone) for r in reports)
    parts = [
        plural(len(reports), "rung"),
        plural(sum(r.mistakes for r in reports), "mistake"),
        f"{plural(failed, 'rung')} with problems",
    ]
    if whole:
        parts.append(f"{plural(whole, 'problem')} of the project as a whole")
    if undone:
        parts.append(f"{plural(undone, 'thing')} left undone (exit status 2)")
    if before := sum(r.before for r in reports):
        parts.append(f"{before} proven before (--fresh proves all anew)")
    return f"{', '.join(parts)}, in {seconds:.0f} s"


def plural(count: int, noun: str) -> str:
    """'1 rung', '2 rungs'."""
    return f"{count} {noun}{'s' * (count != 1)}"
