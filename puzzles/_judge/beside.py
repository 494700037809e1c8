"""The receipt of a pass: what an answer costs at production scale, beside the reference's."""

from __future__ import annotations

from puzzles._judge.cost import Cost
from puzzles._judge.costs import Scale
from puzzles._launch import Launch
from puzzles._puzzle import Puzzle
from puzzles._receipt import (
    amount,
    amounts,
    scaled,
    seconds_words,
    step_seconds,
    stored,
    times,
)
from puzzles._tpu import CHIPS

_CHIP = CHIPS["v5e"]


def line(puzzle: Puzzle, label: str, mine: Cost, par: Cost | None = None) -> str:
    """The number that the rung is about, and what bounds it: "At N=512: 6 steps; at least ..."."""
    plainly = f"{mine.steps:,} step{'s' * (mine.steps != 1)}, {amount(mine.bytes)} moved"
    told = _par(puzzle, mine, par or mine) or plainly
    return f"At {label}: {'; '.join((told, *_bound(mine)[:1]))}."


def beside(scale: Scale, ran: tuple[str, ...]) -> str:
    """Both costs as a table, of what is not zero; what is made outside only where it differs."""
    mine, par = scale.mine, scale.par
    made, theirs = (f"at most {size}" for size in amounts(mine.outside, par.outside))
    several = mine.steps > 1 or any(one.copies for one in mine.launches)
    rows: list[tuple[str, str, str]] = [
        (name, a, b)
        for name, worth, a, b in (
            ("grid", _grids(mine.launches) != "()", _grids(mine.launches), _grids(par.launches)),
            ("steps", mine.steps > 1, f"{mine.steps:,}", f"{par.steps:,}"),
            ("with dots", mine.with_dots, f"{mine.with_dots:,}", f"{par.with_dots:,}"),
            ("blocks", several, f"{mine.transfers:,} moved", f"{par.transfers:,} moved"),
            ("HBM", mine.bytes, *amounts(mine.bytes, par.bytes)),
            ("made outside", False, made, theirs),
            ("VMEM", mine.vmem, *amounts(mine.vmem, par.vmem)),
            ("SMEM", mine.smem, *amounts(mine.smem, par.smem)),
            ("FLOPs", mine.dots, scaled(mine.flops), scaled(par.flops)),
        )
        if worth or a != b
    ]
    if all(a == b for _, a, b in rows):
        rows = [("", "yours, and the reference's", ""), *((name, a, "") for name, a, _ in rows)]
    else:
        rows = [("", "yours", "reference"), *rows]
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{name:<{wide[0]}}  {a:<{wide[1]}}  {b}".rstrip() for name, a, b in rows]
    told = {
        "a step": "".join(_bound(mine)[1:]),
        "stored": stored(mine.launches),
        "ran": ", ".join(ran) if mine.steps > 1 else "",
    }
    lines += [f"{name:<{wide[0]}}  {text}" for name, text in told.items() if text]
    return "\n".join(lines)


def _par(puzzle: Puzzle, mine: Cost, par: Cost) -> str | None:
    """The number that the rung is about: 'dots in 36 of 64 steps (the reference: 28 of 64)'."""
    if puzzle.par is None:
        return None
    try:
        told, theirs = puzzle.par(*mine.launches), puzzle.par(*par.launches)
    except Exception:  # the author asks for operands that this launch does not have
        return None
    return f"{told} (the reference: {theirs})" if theirs and told != theirs else told


def _grids(launches: tuple[Launch, ...]) -> str:
    if len(launches) > 3:
        return f"{len(launches)} launches"
    return ", ".join(str(one.grid) for one in launches)


def _bound(cost: Cost) -> tuple[str, ...]:
    """What bounds it: HBM and the matrix unit, which work at the same time, or its many steps.

    Then, where it is the steps: how long one takes, and all else.
    """
    least = cost.least
    memory, matrix = times(least.bytes, least.flops if least.dot_flops else 0, _CHIP)
    seconds, steps = max(memory, matrix), step_seconds(cost.launches, _CHIP)
    if not seconds:
        return ()
    slower = "the matrix unit" if matrix > memory else "HBM"
    if steps <= seconds:
        return (f"at least {seconds_words(seconds)} on one {_CHIP.name}, bound by {slower}",)
    return (
        f"about {seconds_words(steps)} on one {_CHIP.name}, bound by its steps",
        f"takes {seconds_words(_CHIP.step_seconds)} by itself, by libtpu's estimate; "
        f"{slower} alone needs {seconds_words(seconds)}",
    )
