"""What no limit on a cost tells: what is lost on the way, left out, or fetched for nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from puzzles._judge.cost import Cost
from puzzles._judge.narrowing import foreign
from puzzles._launch import Launch, Operand, absent, itemsize
from puzzles._receipt import amount, scaled
from puzzles._tpu import CHIPS

_SOME = 0.02  # of blocks or bytes, whatever the reference does
# Of the reference's dots at least: a better kernel skips some, and never most of them.
_LEAST = 0.5
_GUARD = ". Does the guard of the start hold at this size?"
_MORE = 4  # times the reference's copies
_Moved = tuple[Operand, str | None]  # what of it is not moved, in words
_LOST, _OUTGROWN = "it rounds on the way", "numbers outgrow their dtype"
_LEFT_OUT, _IN_VAIN = "something is left out", "something is fetched for nothing"


def slips(mine: Cost, par: Cost) -> Iterator[tuple[str, str]]:
    """(words, title) of each, beside the reference at the same shape."""
    for one in foreign(mine.narrowings, par.narrowings):
        yield one.words, _OUTGROWN if one.how == "counted" else _LOST
    for says in _rounding_dots(mine, par):
        yield says, _LOST
    for says in _wide_dots(mine, par):
        yield says, "its dots are not the reference's"
    for says in _left_out(mine, par):
        yield says, _LEFT_OUT
    for launch in mine.launches:
        yield from _limited(launch)
        yield from _one_buffer(launch)
    for says in _goes_on(mine, par):
        yield says, "what one block leaves, the next one gets"
    for says in _in_vain(mine, par):
        yield says, _IN_VAIN
    for says in _small_copies(mine, par):
        yield says, "its copies are small"


def _small_copies(mine: Cost, par: Cost) -> Iterator[str]:
    ours, theirs = (
        sum(c.times for one in cost.launches for c in one.copies) for cost in (mine, par)
    )
    if 0 < theirs < ours / _MORE:
        yield (
            f"it starts {ours:,} copies by hand, the reference {theirs:,}: each takes its time to "
            "begin, however little it moves. Copy larger pieces."
        )


def _limited(launch: Launch) -> Iterator[tuple[str, str]]:
    limit, most = launch.vmem_limit_bytes, max(chip.vmem_bytes for chip in CHIPS.values())
    if limit is None:
        return
    if launch.vmem_bytes > limit:
        needed = f"its blocks and scratch take {launch.vmem_bytes:,} B"
        yield f"`vmem_limit_bytes={limit:,}` is too little: {needed}.", "it asks for less VMEM"
    if limit > most:
        says = f"`vmem_limit_bytes={limit:,}`: no TPU has more than {most:,} B of VMEM."
        yield says, "it asks for more VMEM than there is"


def _one_buffer(launch: Launch) -> Iterator[tuple[str, str]]:
    for one in (*launch.inputs, *launch.outputs):
        if one.piped and one.buffers == 1 < launch.steps < 2 * one.transfers:
            yield (
                f"`{one.name}` has one buffer, and {one.transfers:,} of {launch.steps:,} steps "
                "move a block of it: each of them waits until the block has come or gone. "
                "`pl.Buffered(1)` is for blocks that stay.",
                "copies and work take turns",
            )


def _rounding_dots(mine: Cost, par: Cost) -> Iterator[str]:
    """Dots where the reference has none: they may stand for a sum or a product in f32."""
    for dot in () if par.dots else mine.dots:
        if dot.rounds:
            where = f"`{dot.line}`" if dot.line else "a dot"
            yield (
                f"{where} multiplies float32 on the matrix unit, which on a TPU takes factors in "
                "bfloat16: two or three digits are left. Without a dot nothing is rounded; "
                "`precision=jax.lax.Precision.HIGHEST` keeps the digits, in several passes."
            )
            return


def _wide_dots(mine: Cost, par: Cost) -> Iterator[str]:
    """A product without the matrix unit, or with operands wider than it is built for."""
    if par.dot_flops and not mine.dot_flops and not any(one.unknown_loops for one in mine.launches):
        yield (
            f"no dot runs, where the reference's do {scaled(par.dot_flops)} FLOPs: only a dot runs "
            "on the matrix unit, sums and products by hand do not."
        )
    share, usual = (_in_float32(one) for one in (mine, par))
    if par.dot_flops and share > usual + _SOME:
        yield (
            f"{share:.0%} of the FLOPs of its dots have a float32 operand, in the reference "
            f"{usual:.0%}: leave blocks of narrow floats as they come, which is what the matrix "
            "unit is built for, and ask for `preferred_element_type=jnp.float32`."
        )


def _in_float32(cost: Cost) -> float:
    dots = [(dot, one.times or 1) for one in cost.launches for dot in one.dots]
    wide = sum(dot.flops * n for dot, n in dots if "float32" in dot.dtypes[:2])
    return wide / max(1, cost.dot_flops)


def _left_out(mine: Cost, par: Cost) -> Iterator[str]:
    counted = not any(one.unknown_loops for one in mine.launches)
    if counted and 0 < mine.dot_flops < _LEAST * par.dot_flops:
        part = f"{mine.dot_flops / par.dot_flops:.0%} of the reference's"
        yield (
            f"the dots do {scaled(mine.dot_flops)} FLOPs, {part}: something is left out at this "
            "size. Does a count outgrow its dtype, or a grid round down?"
        )
    yield from _read_in_part(mine, par)
    if mine.blocks == par.blocks:
        yield from _not_visited(mine, par)
        yield from _not_together(mine, par)


def _goes_on(mine: Cost, par: Cost) -> Iterator[str]:
    """What starts afresh for the first block of an output, and not for a later one."""
    usual = [one.touched for one in par.launches]
    early = any(one.early for one in usual)
    kept = any(one.kept for one in usual) or any(one.copies for one in par.launches)
    for launch in mine.launches:
        for name, step in launch.touched.early if not early else ():
            if step:  # who chooses the start by a `where` reads at the first step, too
                read = f"`{name}` is read at step {launch.at(step)}"
                yield f"{read} before anything is written there{_GUARD}"
        for name, count, total, step in launch.touched.kept if not (kept or launch.copies) else ():
            yield (
                f"for {count:,} of {total:,} blocks `{name}` goes on with what it held for the "
                f"block before, first at grid step {launch.at(step)}; for the others it starts "
                f"afresh{_GUARD}"
            )


def _in_vain(mine: Cost, par: Cost) -> Iterator[str]:
    unread = [name for one in par.launches for name in one.touched.unread]
    share = max((a / b for one in par.launches for _, a, b in one.touched.vain), default=0.0)
    for launch in mine.launches:
        for name in launch.touched.unread:
            if name not in unread:
                shared = any(launch.inputs[i].name == name for i, _ in launch.aliases)
                what = "take it out of the call, or read it"
                if shared:
                    what = "it is there for the memory that an output shares, so let it stay in HBM"
                    what += ", memory_space=pl.ANY"
                yield f"no step reads `{name}`: {what}."
        # Of the reference's own blocks it is told how many are too many.
        for name, count, often in launch.touched.vain if mine.blocks != par.blocks else ():
            if count > (share + _SOME) * often:
                yield (
                    f"of {often:,} blocks of `{name}` that are fetched, no step reads {count:,}: "
                    "where there is no work, let its index map name the block that is there."
                )


def _read_in_part(mine: Cost, par: Cost) -> Iterator[str]:
    """Arrays that the reference reads, or copies to HBM, wholly, and the answer in part."""
    theirs, ours = (_by_array(one) for one in (par, mine))
    for form, parts in ours.items():
        others = theirs.get(form)
        if not others or any(missing for _, missing in others) or _skips(parts, others):
            continue
        partly = [missing for _, missing in parts if missing]
        # One array may come as several operands; as many as the reference has are read wholly.
        if partly and len(parts) - len(partly) < (len(others) if len(parts) == len(others) else 1):
            yield f"{partly[0]}: something is left out at this size."


def _skips(mine: Sequence[_Moved], par: Sequence[_Moved]) -> bool:
    """Whether more prefetched arrays choose its blocks: then those without work may be skipped."""
    return max(one.looked_up for one, _ in mine) > max(one.looked_up for one, _ in par)


def _by_array(cost: Cost) -> dict[tuple, list[_Moved]]:
    """For each form of an array what of it is not moved, in words; None where all of it is."""
    found: dict[tuple, list[_Moved]] = {}
    for launch in cost.launches:
        for one in (*launch.inputs, *launch.outputs):
            form = one.output, one.shape, str(one.dtype)
            found.setdefault(form, []).append((one, _missing(launch, one)))
    return found


def _missing(launch: Launch, operand: Operand) -> str | None:
    """What of an array a launch does not move; an output in blocks has a finder of its own."""
    if operand.piped:
        for name, gone, count, example in launch.touched.missed:
            if name == operand.name and gone > _SOME * count:
                return (
                    f"no step gets {gone:,} of the {count:,} blocks of `{name}`, for example "
                    f"{example}"
                )
        return None
    whole = math.prod(operand.shape) * itemsize(operand.dtype)
    if launch.unknown_loops or operand.hbm_bytes >= (1 - _SOME) * whole:
        return None
    verb = "copied to" if operand.output else "read of"
    return f"{amount(operand.hbm_bytes)} are {verb} `{operand.name}`, which has {amount(whole)}"


def _not_visited(mine: Cost, par: Cost) -> Iterator[str]:
    """Blocks that the reference's pipeline moves and the answer's does not, cut alike."""
    for one, gone, count, example in _without(_by_cut(mine), _by_cut(par)):
        yield (
            f"{gone:,} of the {count:,} blocks of `{one.names[0]}` that the reference needs are "
            f"in no step, for example the one at {example}. Is an index cut short?"
        )


def _not_together(mine: Cost, par: Cost) -> Iterator[str]:
    """Blocks of an input and a result that work needs together; program ids choose both."""
    if not len(mine.launches) == len(par.launches) == 1:
        return
    dots = bool(mine.dot_flops and par.dot_flops)  # an end of a sum is no work then
    both = (_at_work(cost.launches[0], dots) for cost in (mine, par))
    for one, gone, count, example in _without(*both):
        names, rank = one.names, one.rank
        yield (
            f"of {count:,} pairs of blocks of `{names[0]}` and `{names[1]}` that belong together, "
            f"no step computes with {gone:,}, for example {example[:rank]} and "
            f"{example[rank:]}. Do the index maps, and the guard, hold at this size?"
        )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Indices of blocks at each step: of one operand, or of two side by side.

    rank: how many numbers are the first's; looked_up: how many prefetched arrays choose them.
    """

    names: tuple[str, ...]
    rows: np.ndarray
    rank: int
    looked_up: int = 0


_Found = dict[tuple, list[_Rows]]  # by array and size of block


def _without(mine: _Found, par: _Found) -> Iterator[tuple[_Rows, int, int, tuple[int, ...]]]:
    """What the reference has and the answer has not, as far as they are cut alike.

    For each of the reference's, that of the answer's which is most like it, how many different rows
    are absent, of how many, and one of them.
    """
    for form, ours in mine.items():
        theirs = par.get(form, [])
        more = max(one.looked_up for one in ours) > max((o.looked_up for o in theirs), default=0)
        for other in theirs if len(ours) == len(theirs) and not more else ():
            pairs = ((absent(other.rows, one.rows), one) for one in ours)
            (gone, total, example), one = min(pairs, key=lambda pair: pair[0][0])
            if gone > _SOME * total:
                yield one, gone, total, example


def _at_work(launch: Launch, dots: bool) -> _Found:
    """Pairs of an input and an output at steps with work: with `dots`, or with anything."""
    busy = np.any([one.executed > 0 for one in launch.dots], axis=0) if dots else launch.busy
    found: _Found = {}
    for one in launch.inputs:
        for out in launch.outputs:
            if one.piped and out.piped:
                both = np.hstack([one.blocks, out.blocks])[busy]
                asks = one.looked_up + out.looked_up
                pair = _Rows((one.name, out.name), both, one.blocks.shape[1], asks)
                found.setdefault((_form(one), _form(out)), []).append(pair)
    return found


def _by_cut(cost: Cost) -> _Found:
    """The operands that are moved in blocks, and the pieces that the kernel copies by hand."""
    found: _Found = {}
    for one in (o for launch in cost.launches for o in (*launch.inputs, *launch.outputs)):
        if one.piped:
            blocks = _Rows((one.name,), one.blocks, one.blocks.shape[1], one.looked_up)
            found.setdefault(_form(one), []).append(blocks)
    for piece, starts in (one for launch in cost.launches for one in launch.pieces.items()):
        form = piece.output, piece.shape, piece.dtype, piece.sizes
        found.setdefault(form, []).append(_Rows((piece.name,), starts, starts.shape[1]))
    return found


def _form(operand: Operand) -> tuple:
    return operand.output, operand.shape, str(operand.dtype), operand.sizes
