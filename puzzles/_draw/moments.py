"""The copies that a kernel makes by hand as plain data for a picture."""

from __future__ import annotations

from typing import Any

from puzzles._launch import Launch
from puzzles._tpu import Timeline, timeline


def copies_data(launch: Launch) -> dict[str, Any] | None:
    """What the picture of a launch's copies needs; None if its kernel starts none by hand."""
    found = timeline(launch)
    if found is None or not launch.copies:
        return None
    computing, overlapped = found.overlap
    return {
        "rows": [f"{slot.name}{slot.part}" for slot in found.slots],
        "trips": [[t.slot, t.start, t.end, int(t.inward), t.other, t.line] for t in found.trips],
        "moments": [[m.kind, m.line, list(m.slots), int(m.wrong)] for m in found.moments],
        "steps": _steps(launch, found),
        "open": found.faults[0].moment if found.faults else 0,
        "faults": [[one.moment, one.says] for one in found.faults],
        "computing": computing,
        "overlapped": overlapped,
        "unknown": found.unknown,
    }


def _steps(launch: Launch, found: Timeline) -> list[list[Any]]:
    """The moment at which each grid step begins, and its program ids."""
    if not launch.grid:
        return []
    ids = launch.program_ids
    firsts: dict[int, int] = {}
    for number, moment in enumerate(found.moments):
        firsts.setdefault(moment.step, number)
    return [[at, [int(i) for i in ids[step]]] for step, at in firsts.items()]
