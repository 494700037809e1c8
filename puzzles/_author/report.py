"""The report of `verify` on a puzzle, and the line about all puzzles."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from puzzles import _regions
from puzzles._author.repository import at_line
from puzzles._ladders import folder_of, front_page, ladder_of
from puzzles._record import RecordError
from puzzles._rules import plural, to_author


@dataclass
class Report:
    """The counts of a puzzle, its problems in sentences, and the steps that are left undone.

    raised: True if the author's own code raised. before: True if the proof came from the cache.
    """

    puzzle: str
    counts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    raised: bool = False
    before: bool = False

    def __str__(self) -> str:
        counts = "  ".join(f"{name} {value}" for name, value in self.counts.items())
        mark = "ok " if not self.problems else "BAD"
        before = "  (proven before)" if self.before else ""
        lines = [f"{mark} {self.puzzle:<36} {counts}{before}"]
        return "\n".join(lines + [f"    {p}" for p in (*self.problems, *self.undone)])


def total(reports: Sequence[Report], whole: int, undone: int, seconds: float) -> str:
    """The last line: the numbers of puzzles, of problems and of steps left undone."""
    failed = sum(bool(r.problems) for r in reports)
    undone += sum(len(r.undone) for r in reports)
    before = sum(r.before for r in reports)
    parts = [f"{plural(len(reports), 'puzzle')}, {plural(failed, 'puzzle')} with problems"]
    parts += [f"{plural(whole, 'problem')} of the project as a whole"] * bool(whole)
    parts += [f"{plural(undone, 'thing')} left undone (exit status 2)"] * bool(undone)
    parts += [f"{before} proven before (--fresh proves all anew)"] * bool(before)
    return f"{', '.join(parts)}, in {seconds:.0f} s"


def problem(place: str, name: str, /, **facts: object) -> str:
    """A problem: its place, and the message to authors with this key."""
    return f"{place}: {to_author(name, **facts)}"


def raised(name: str, error: Exception) -> str:
    """The message for an exception, with the last line of the ladder's own files on its way."""
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
