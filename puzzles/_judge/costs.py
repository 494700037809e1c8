"""The costs of an answer next to those of the reference. `COSTS` has a row for each cost.

Both are traced without data. The sentence about a cost that is too high is in `rules.toml`, as
`cost-<name>`; here are its facts, in addition to `mine` and `par`, which are both `Cost`s.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from puzzles._compile import CHIPS, price
from puzzles._judge.cost import ALIASES, Cost, multiplies
from puzzles._judge.exceptions import learners_code
from puzzles._launch import Launch, Operand, Traced, trace_call
from puzzles._program import (
    AbstractValueError,
    fingerprint,
    kernel_calls,
    over_mesh,
    parameter_names,
)
from puzzles._puzzle import Puzzle
from puzzles._receipt import amount, amounts, scaled, seconds_words
from puzzles._rules import Breach, plural, sentence

# If blocks differ, costs that follow from them also differ: full tiles along the edge of a mask or
# a group, and fetches of a block.
_EXACT = 1.0
_BY_BLOCKS = 1.34
_BY_TRAFFIC = 2.0
_BY_TIME = 6.0  # right answers on record, with other blocks, take up to 5.4 times
# Always allowed beside the reference's share of steps without work, and of dots that only sum.
_SOME = 0.02
# Of its arrays, or of the bytes moved: an allowance for arrays made outside of kernels.
_MADE = 0.01
# And of bytes: one more list of numbers may help to find blocks.
_LIST = 0.004
# Of a chip's SMEM: a table may replace arithmetic, fetches or steps.
_TABLES = 0.5
# Of the arrays of a launch that moves each byte once: blocks hang over edges.
_ONCE = 1.02
_CHIP = CHIPS["v5e"]
_LONG = 4096  # a dim to shorten before a growing kernel is traced
Facts = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """An answer and the reference solution at the puzzle's production shape, `label` in words.

    slack: the puzzle's own limits.
    """

    label: str
    mine: Cost
    par: Cost
    slack: Mapping[str, float] = field(default_factory=dict)

    def wrong(self, rule: str, /, form: str = "", **facts: object) -> Breach:
        """That a rule is broken there."""
        return Breach(rule, facts, self.label, scale=True, form=form)


@dataclass(frozen=True)
class Limit:
    """A cost, by its name in `Puzzle.slack` and in `Cost`, and its upper limit.

    same: times the reference's, if an answer cuts its arrays as the reference does. others: if it
    does not; None without a limit. more: an allowance on top, computed from both costs and from
    whether the blocks are equal. asked: whether the limit applies to two costs. facts: facts of
    its sentence; `form` selects the sentence.
    """

    name: str
    same: float | None
    others: float | None
    facts: Callable[[Cost, Cost], Facts] = lambda mine, par: {}
    more: Callable[[Cost, Cost, bool], float] = lambda mine, par, same: 0
    asked: Callable[[Cost, Cost], bool] = lambda mine, par: True


def dearer(scale: Scale) -> Breach | None:
    """The first cost above its limit: those that explain others come first."""
    mine, par = scale.mine.least, scale.par
    same = mine.blocks == par.blocks
    for limit in COSTS:
        times = limit.same if same else limit.others
        if times is None or not limit.asked(mine, par):
            continue
        most = getattr(par, limit.name) * scale.slack.get(limit.name, times)
        if getattr(mine, limit.name) > most + limit.more(mine, par, same):
            facts = {"mine": mine, "par": par, **limit.facts(mine, par)}
            return scale.wrong(f"cost-{limit.name}", **facts)
    return None


def at_scale(puzzle: Puzzle, fn: Callable) -> Scale | None:
    """`fn` next to the reference, both traced without data; None if the puzzle has no scale.

    Also None if its blocks depend on data. Raises `RejectedError` if `fn` raises.
    """
    if puzzle.scale is None:
        return None
    known = _reference(puzzle)  # an author's own fault is no learner's
    if known is None:
        return None
    program, par = known
    label = _label(usual_dims(puzzle))
    with learners_code(f"at the production shape, {label}"):
        try:
            traced = traced_for(puzzle, fn, usual_dims(puzzle))
            mine = par if _program(traced) == program else Cost.of(traced)
        except AbstractValueError:
            return None
    return Scale(label, mine, par, puzzle.slack)


def smaller(puzzle: Puzzle, fn: Callable) -> list[tuple[str, Traced]]:
    """(label, trace) of `fn` at two parts of the production shape, the second twice the first.

    [] if it cannot be traced there: tables may not fit other dims.
    """
    usual, traces = usual_dims(puzzle), []
    for half in (2, 1):
        dims = usual | {
            name: x // half // (64 if x >= _LONG**2 else 16)
            for name, x in usual.items()
            if isinstance(x, int) and x >= _LONG
        }
        with suppress(Exception):
            traces.append((_label(dims), traced_for(puzzle, fn, dims)))
    return traces if len(traces) == 2 else []


def usual_dims(puzzle: Puzzle) -> dict[str, Any]:
    """The dims of the production shape."""
    parameters = inspect.signature(puzzle.scale).parameters if puzzle.scale else {}
    return {name: one.default for name, one in parameters.items()}


def _label(dims: Mapping[str, Any]) -> str:
    return ", ".join(f"{n}={x:,}" if isinstance(x, int) else f"{n}={x}" for n, x in dims.items())


def traced_for(puzzle: Puzzle, fn: Callable, dims: Mapping[str, Any]) -> Traced:
    """Trace `fn`, or the function that observes it, on what `Puzzle.scale` makes of these dims."""
    assert puzzle.scale is not None
    return trace_call(in_blocks(puzzle, fn, dims), *puzzle.scale(**dims))


def in_blocks(puzzle: Puzzle, fn: Callable, dims: Mapping[str, Any]) -> Callable:
    """The function to judge, which is given each dim that is one of the puzzle's settings."""
    own = puzzle.settings & {*dims} & {*inspect.signature(fn).parameters}
    chosen = partial(fn, **{n: dims[n] for n in own}) if own else fn
    return puzzle.judged(chosen, puzzle.axes, over_mesh)


@lru_cache(maxsize=128)
def _reference(puzzle: Puzzle) -> tuple[Hashable, Cost] | None:
    """The solution's program at the production shape, and its cost, read once.

    None if its blocks depend on data that `scale` does not give.
    """
    traced = traced_for(puzzle, puzzle.solution, usual_dims(puzzle))
    try:
        return _program(traced), Cost.of(traced)
    except AbstractValueError:
        return None


def _program(traced: Traced) -> Hashable:
    """A key that is equal for equal programs whose kernels have equal names of Refs."""
    names = (tuple(parameter_names(call)) for call in kernel_calls(traced.jaxpr.jaxpr))
    return fingerprint(traced.jaxpr), *names


def _made(mine: Cost, par: Cost) -> Facts:
    known = Counter((one.bytes, one.primitive) for one in par.made)
    seen = Counter((one.bytes, one.primitive) for one in mine.made)
    new = [one for one in mine.made if (one.bytes, one.primitive) in seen - known]
    lines = {one.line for one in par.made}
    most = max(new or mine.made, key=lambda one: (one.bytes, one.line not in lines))
    return {
        "form": "aliased" if most.primitive == ALIASES else "",
        "made": amount(mine.outside),
        "enough": amount(par.outside),
        "primitive": most.primitive,
        "where": f" in `{most.line}`" if most.line else "",
        "size": amount(most.bytes),
    }


def _vmem(mine: Cost, par: Cost) -> Facts:
    launch = max(mine.launches, key=lambda one: one.vmem_bytes)
    most = max(launch.operands, key=lambda one: one.vmem_bytes)
    form = "scratch" if most in launch.scratch else "whole" if most.sizes == most.shape else ""
    needed, given = amounts(launch.vmem_bytes, launch.vmem_limit_bytes or _CHIP.scoped_vmem_bytes)
    return {
        "form": form,
        "needed": needed,
        "given": given,
        "chip": _CHIP.name,
        "name": most.name,
        "takes": amount(most.vmem_bytes),
        "sizes": most.sizes,
    }


def _dots(mine: Cost, par: Cost) -> Facts:
    done, enough = scaled(mine.dot_flops), scaled(par.dot_flops)
    return {"done": done, "enough": enough, "first": _first_dot(mine, par)}


def _first_dot(mine: Cost, par: Cost) -> str:
    """Words for the first step with a needless dot, or for another grid than the reference's."""
    as_many = len(mine.launches) == len(par.launches)
    for launch, other in zip(mine.launches, par.launches, strict=True) if as_many else ():
        if launch.grid == other.grid != () and launch.dots and other.dots:
            step = _first_more(multiplies(launch), multiplies(other))
            if step is not None:
                return sentence("first_dot_in_vain", step=launch.at(step))
    if mine.steps != par.steps:
        return sentence("another_grid", mine=mine.grids, par=par.grids)
    return ""


def _first_more(mine: np.ndarray, par: np.ndarray) -> int | None:
    """The first step at which only the answer does something, if the reference's are all there."""
    more = mine & ~par
    return int(np.argmax(more)) if more.any() and not (par & ~mine).any() else None


def _moved(mine: Cost, par: Cost) -> Facts:
    moved, enough = amounts(mine.bytes, par.bytes)
    return {"moved": moved, "enough": enough, "whose": _whose(mine, par)}


def _whose(mine: Cost, par: Cost) -> str:
    """Whose blocks are moved more often than the same array's in the reference."""
    pairs = list(_pairs(mine, par))
    more = [one.hbm_bytes - like.hbm_bytes for _, one, _, like in pairs]
    if not pairs or max(more) <= 0:
        return ""
    launch, operand, other, like = pairs[more.index(max(more))]
    if operand.transfers > like.transfers and operand.portion == like.portion:
        count = sentence("times_enough", times=operand.transfers, enough=like.transfers)
    else:
        sizes = amount(operand.hbm_bytes), amount(like.hbm_bytes)
        count = sentence("bytes_enough", size=sizes[0], enough=sizes[1])
    verb = "written" if operand.output else "fetched"
    moves = sentence("a_block_moves") if operand.piped else ""
    said = sentence("whose_blocks", name=operand.name, verb=verb, count=count, moves=moves)
    alike = launch.grid == other.grid != () and operand.sizes == like.sizes
    if alike and operand.piped and like.piped:
        step = _first_more(operand.fetched, like.fetched)
        if step is not None:
            block = tuple(int(n) for n in operand.blocks[step])
            said += sentence("first_move_in_vain", step=launch.at(step), block=block)
    return said


def _pairs(mine: Cost, par: Cost) -> Iterator[tuple[Launch, Operand, Launch, Operand]]:
    """Each operand of an answer, with its launch, and that of the same array in the reference."""
    left = _operands(par)
    for launch, operand in _operands(mine):
        form = (operand.output, operand.shape, operand.dtype)
        for other, like in left:
            if (like.output, like.shape, like.dtype) == form:
                left.remove((other, like))
                yield launch, operand, other, like
                break


def _operands(cost: Cost) -> list[tuple[Launch, Operand]]:
    return [(one, o) for one in cost.launches for o in (*one.inputs, *one.outputs)]


def _time(mine: Cost, par: Cost) -> Facts:
    cause = next(iter(price(mine.launches, _CHIP).causes), "")
    return {
        "time": seconds_words(mine.seconds),
        "enough": seconds_words(par.seconds),
        "cause": cause,
        "steps": sentence("more_steps", mine=plural(mine.steps, "step"), par=par.steps)
        if mine.steps > par.steps
        else "",
    }


def _fits(mine: Cost, par: Cost, same: bool) -> float:
    """Bytes of VMEM that a kernel gets, or that the reference requests."""
    given = (one.vmem_limit_bytes or 0 for one in par.launches)
    return max(_CHIP.scoped_vmem_bytes, *given, par.vmem)


# In the order in which they are told.
COSTS = (
    Limit(
        "count", _EXACT, _EXACT,
        lambda mine, par: {"are": "is" if par.count == 1 else "are"},
    ),
    Limit(
        "outside", _EXACT, _EXACT, _made,
        more=lambda mine, par, same: _MADE * min(par.bytes, par.arrays),
    ),
    Limit("vmem", 0, 0, _vmem, more=_fits),
    Limit(  # if the reference has none, a dot may replace a sum
        "dot_flops", _EXACT, _BY_BLOCKS, _dots,
        more=lambda mine, par, same: _SOME * par.dot_flops,
        asked=lambda mine, par: par.dot_flops > 0,
    ),
    Limit(  # a column's may be in all lanes of its vectors, once a block
        "transcendentals", _BY_BLOCKS, 3.0,
        asked=lambda mine, par: mine.lanes > _BY_BLOCKS * par.lanes,
    ),
    Limit(
        "idle", 0, 0,
        more=lambda mine, par, same: mine.steps
        * (par.idle / max(1, par.steps) * (_EXACT if same else _BY_BLOCKS) + _SOME),
    ),
    Limit("transfers", _EXACT, None, lambda mine, par: {"whose": _whose(mine, par)}),
    Limit(
        "bytes", _EXACT, _BY_TRAFFIC, _moved,
        more=lambda mine, par, same: _LIST * par.bytes * same,
    ),
    Limit(  # if the reference moves each byte once, blocks of other sizes can do so, too
        "bytes", None, _BY_BLOCKS, _moved,
        asked=lambda mine, par: par.bytes <= _ONCE * par.arrays,
    ),
    Limit(
        "smem", _EXACT, None,
        lambda mine, par: {"used": amount(mine.smem), "enough": amount(par.smem)},
        more=lambda mine, par, same: _TABLES * _CHIP.smem_bytes,
    ),
    Limit("with_dots", _EXACT, None, _dots, asked=lambda mine, par: par.dot_flops > 0),
    Limit(
        "seconds", _BY_TIME, _BY_TIME,
        _time,
    ),
)  # fmt: skip
