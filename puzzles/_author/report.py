"""What `verify` prints of a rung and of all of them."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from puzzles import _regions
from puzzles._author.repository import at_line
from puzzles._ladders import folder_of, front_page, ladder_of
from puzzles._record import RecordError
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
    before: bool = False

    def __str__(self) -> str:
        counts = "  ".join(f"{name} {value}" for name, value in self.counts.items())
        mark = "ok " if not self.problems else "BAD"
        before = "  (proven before)" if self.before else ""
        lines = [f"{mark} {self.rung:<36} {counts}{before}"]
        return "\n".join(lines + [f"    {p}" for p in (*self.problems, *self.undone)])


def total(reports: Sequence[Report], whole: int, undone: int, seconds: float) -> str:
    """The last line: what was verified, and what is wrong or left."""
    failed = sum(bool(r.problems) for r in reports)
    undone += sum(len(r.undone) for r in reports)
    before = sum(r.before for r in reports)
    parts = [f"{plural(len(reports), 'rung')}, {plural(failed, 'rung')} with problems"]
    parts += [f"{plural(whole, 'problem')} of the project as a whole"] * bool(whole)
    parts += [f"{plural(undone, 'thing')} left undone (exit status 2)"] * bool(undone)
    parts += [f"{before} proven before (--fresh proves all anew)"] * bool(before)
    return f"{', '.join(parts)}, in {seconds:.0f} s"


def problem(place: str, name: str, /, **facts: object) -> str:
    """Where something is wrong, and what an author is told of it under a name."""
    return f"{place}: {to_author(name, **facts)}"


def plural(count: int, noun: str) -> str:
    """'1 rung', '2 rungs'."""
    return f"{count} {noun}{'s' * (count != 1)}"


def raised(name: str, error: Exception) -> str:
    """Where in a ladder's own files an exception came from, and what it says."""
    if isinstance(error, RecordError):
        return to_author("raised", error=error)
    ladder = ladder_of(name)
    folder = folder_of(ladder)
    shown = front_page(ladder).removesuffix("__init__.py")
    places = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((str(error.filename), error.lineno))
    inside = [(Path(file).name, line) for file, line in places if Path(file).parent == folder]
    file, line = (inside or [(f"{name}.py", 1)])[-1]
    at = f"{shown}{file}:{line}: {type(error).__name__}: {error}"
    if isinstance(error, _regions.RegionError):
        at = at_line(f"{shown}{name}.py", error)
    return to_author("raised", error=at)
