"""What `verify` prints of a rung and of all of them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from puzzles import _regions
from puzzles._author.repository import at_line
from puzzles._ladders import front_page, ladder_module, ladder_of
from puzzles._rules import to_author


@dataclass
class Report:
    """What was counted on one rung, every shortfall in words, and what is left undone.

    raised: the author's own code did. before: it was proven before, of the same text.
    """

    rung: str
    counts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    raised: bool = False
    mistakes: int = 0
    before: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        counts = "  ".join(f"{name} {value}" for name, value in self.counts.items())
        mark = "ok " if not self.problems else "BAD"
        took = "proven before" if self.before else f"{self.seconds:.1f} s"
        lines = [f"{mark} {self.rung:<36} {counts}  ({took})"]
        return "\n".join(lines + [f"    {p}" for p in (*self.problems, *self.undone)])


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


def problem(place: str, name: str, /, **facts: object) -> str:
    """Where something is wrong, and what an author is told of it under a name."""
    return f"{place}: {to_author(name, **facts)}"


def plural(count: int, noun: str) -> str:
    """'1 rung', '2 rungs'."""
    return f"{count} {noun}{'s' * (count != 1)}"


def raised(name: str, error: Exception) -> str:
    """Where in a ladder's own files an exception came from, and what it says."""
    ladder = ladder_of(name)
    folder = os.path.dirname(str(ladder_module(ladder).__file__))
    shown = front_page(ladder).removesuffix("__init__.py")
    places = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((str(error.filename), error.lineno))
    inside = [(os.path.basename(f), n) for f, n in places if f.startswith(f"{folder}{os.sep}")]
    own = [(file, n) for file, n in inside if file == f"{name}.py"]
    file, line = (own or inside or [(f"{name}.py", 1)])[-1]
    at = f"{shown}{file}:{line}: {type(error).__name__}: {error}"
    if isinstance(error, _regions.RegionError):
        at = at_line(f"{shown}{name}.py", error)
    return to_author("raised", error=at)
