"""What the copies that a kernel makes by hand say of an answer, before it runs and after."""

from __future__ import annotations

from collections.abc import Sequence

from puzzles._launch import Launch
from puzzles._tpu import timeline

_MANY = 2000  # copies: a kernel that goes outside with so many is not worth the wait


def unequal(launches: Sequence[Launch]) -> tuple[str, str] | None:
    """(rule, words) where ends of a copy hold not equally much, or one of many goes outside.

    JAX fails at others in words of its own, or passes.
    """
    for launch in launches:
        found = timeline(launch)
        many = launch.log.cut or sum(copy.times for copy in launch.copies) > _MANY
        for one in found.faults if found else ():
            if one.kind == "unequal":
                return "unequal-copy", one.says
            if one.kind == "outside" and many:
                return "out-of-bounds", one.says
    return None


def explains(launches: Sequence[Launch]) -> tuple[str, str] | None:
    """(kind, words) of what makes numbers wrong, however the kernel computes: None if nothing.

    A copy from where nothing is, one that is waited for and was not started, an output in HBM that
    nobody copies to. The kind tells one such fault from another.
    """
    for launch in launches:
        found = timeline(launch)
        told = [one for one in (found.faults if found else ()) if one.line or one.kind == "outside"]
        if any(one.kind in ("outside", "stuck") for one in told):  # and what came before it
            return f"{told[0].kind} {told[0].line}", told[0].says
        for out in launch.outputs:
            if launch.copies and not out.piped and not _filled(launch, out.name):
                says = (
                    f"`{out.name}` stays in HBM, and no copy goes there: nothing is written to it."
                )
                return f"unwritten {out.name}", says
    return None


def _filled(launch: Launch, name: str) -> bool:
    return any(copy.target == name and copy.times for copy in launch.copies)


def hazard(launches: Sequence[Launch]) -> str | None:
    """What touches a buffer while a copy is in flight, if anything does."""
    for launch in launches:
        found = timeline(launch)
        for one in found.faults if found else ():
            if one.kind == "hazard":
                return one.says
    return None
