"""The receipt of a pass: what an answer costs at production scale, beside the reference's."""

from __future__ import annotations

from puzzles._judge.cost import Cost
from puzzles._judge.scale import Scale
from puzzles._launch import Launch
from puzzles._puzzle import Puzzle
from puzzles._receipt import amount, scaled, seconds_words, step_seconds, times
from puzzles._tpu import CHIPS

_CHIP = CHIPS["v5e"]


def beside(puzzle: Puzzle, scale: Scale, ran: tuple[str, ...]) -> str:
    """Both costs as a table, led by the number that the rung is about."""
    mine, par = scale.mine, scale.par
    rows = [
        (name, a, b)
        for name, a, b in (
            ("grid", _grids(mine.launches), _grids(par.launches)),
            ("steps", f"{mine.steps:,}", f"{par.steps:,}"),
            ("with dots", f"{mine.with_dots:,}", f"{par.with_dots:,}"),
            ("blocks", f"{mine.transfers:,} moved", f"{par.transfers:,} moved"),
            ("HBM", amount(mine.bytes), amount(par.bytes)),
            ("made outside", amount(mine.outside), amount(par.outside)),
            ("VMEM", amount(mine.vmem), amount(par.vmem)),
            ("SMEM", amount(mine.smem), amount(par.smem)),
            ("FLOPs", scaled(mine.flops), scaled(par.flops)),
        )
        if {a, b} != {"0"} and {a, b} != {"0 B"}
    ]
    if all(a == b for _, a, b in rows):
        rows = [("", "yours, and the reference's", ""), *((name, a, "") for name, a, _ in rows)]
    else:
        rows = [("", "yours", "reference"), *rows]
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"at production scale: {scale.label}"]
    if told := _par(puzzle, scale):
        lines.append(told)
    lines += [f"{name:<{wide[0]}}  {a:<{wide[1]}}  {b}".rstrip() for name, a, b in rows]
    lines += [_time(mine), f"ran    {', '.join(ran)}"]
    return "\n".join(lines)


def _par(puzzle: Puzzle, scale: Scale) -> str | None:
    """The number that the rung is about: 'dots in 36 of 64 steps; par: 36 of 64'."""
    if puzzle.par is None:
        return None
    try:
        mine, par = puzzle.par(*scale.mine.launches), puzzle.par(*scale.par.launches)
    except Exception:  # the author asks for operands that this launch does not have
        return None
    theirs = f"the reference: {par}" if par and mine != par else ""
    return "; ".join(filter(None, (mine, theirs)))


def _grids(launches: tuple[Launch, ...]) -> str:
    if len(launches) > 3:
        return f"{len(launches)} launches"
    return ", ".join(str(one.grid) for one in launches)


def _time(cost: Cost) -> str:
    """What bounds it: HBM and the matrix unit, which work at the same time, or its many steps."""
    memory, matrix = times(cost.bytes, cost.flops if cost.dot_flops else 0, _CHIP)
    least, steps = max(memory, matrix), step_seconds(cost.launches, _CHIP)
    slower = "the matrix unit" if matrix > memory else "HBM"
    if steps <= least:
        return f"at least {seconds_words(least)} on one {_CHIP.name}, bound by {slower}"
    return (
        f"about {seconds_words(steps)} on one {_CHIP.name}, bound by its steps, of "
        f"{seconds_words(_CHIP.step_seconds)} each; {slower} alone needs {seconds_words(least)}"
    )
