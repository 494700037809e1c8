"""The costs of an answer next to those of the reference. `COSTS` has a row for each cost.

Both are traced without data. The sentence about a cost that is too high is in `rules.toml`, as
`cost-<name>`; here are its facts, in addition to `answer` and `par`, which are both `Cost`s.
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
    answer: Cost
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
    facts: Callable[[Cost, Cost], Facts] = lambda answer, par: {}
    more: Callable[[Cost, Cost, bool], float] = lambda answer, par, same: 0
    asked: Callable[[Cost, Cost], bool] = lambda answer, par: True


def dearer(scale: Scale) -> Breach | None:
    """The first cost above its limit: those that explain others come first."""
    answer, par = scale.answer.least, scale.par
    same = answer.blocks == par.blocks
    for limit in COSTS:
        times = limit.same if same else limit.others
        if times is None or not limit.asked(answer, par):
            continue
        most = getattr(par, limit.name) * scale.slack.get(limit.name, times)
        if getattr(answer, limit.name) > most + limit.more(answer, par, same):
            facts = {"answer": answer, "par": par, **limit.facts(answer, par)}
            return scale.wrong(f"cost-{limit.name}", **facts)
    return None


def at_scale(puzzle: Puzzle, fn: Callable) -> Scale | None:
    """`fn` next to the reference, both traced without data; None if the puzzle has no scale.

    Also None if its blocks depend on data. Raises `RejectedError` if `fn` raises.
    """
    if puzzle.scale is None:
        return None
    reference = _reference(puzzle)  # an author's own fault is no learner's
    if reference is None:
        return None
    program, par = reference
    label = _label(usual_dims(puzzle))
    with learners_code(f"at the production shape, {label}"):
        try:
            traced = traced_for(puzzle, fn, usual_dims(puzzle))
            answer = par if _program(traced) == program else Cost.of(traced)
        except AbstractValueError:
            return None
    return Scale(label, answer, par, puzzle.slack)


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
    return {name: parameter.default for name, parameter in parameters.items()}


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


def _made_outside(answer: Cost, par: Cost) -> Facts:
    expected = Counter((array.bytes, array.primitive) for array in par.made)
    actual = Counter((array.bytes, array.primitive) for array in answer.made)
    new = [array for array in answer.made if (array.bytes, array.primitive) in actual - expected]
    lines = {array.line for array in par.made}
    scatters = [array for array in new if array.primitive.startswith("scatter")]
    most = max(scatters or new or answer.made, key=lambda one: (one.bytes, one.line not in lines))
    return {
        "form": "aliased" if most.primitive == ALIASES else "scatter" if scatters else "",
        "made": amount(answer.outside),
        "enough": amount(par.outside),
        "primitive": most.primitive,
        "where": f" in `{most.line}`" if most.line else "",
        "size": amount(most.bytes),
    }


def _vmem(answer: Cost, par: Cost) -> Facts:
    launch = max(answer.launches, key=lambda candidate: candidate.vmem_bytes)
    most = max(launch.operands, key=lambda candidate: candidate.vmem_bytes)
    form = "scratch" if most in launch.scratch else "whole" if most.sizes == most.shape else ""
    needed, limit = amounts(launch.vmem_bytes, launch.vmem_limit_bytes or _CHIP.scoped_vmem_bytes)
    return {
        "form": form,
        "needed": needed,
        "given": limit,
        "chip": _CHIP.name,
        "name": most.name,
        "takes": amount(most.vmem_bytes),
        "sizes": most.sizes,
    }


def _dots(answer: Cost, par: Cost) -> Facts:
    done, enough = scaled(answer.dot_flops), scaled(par.dot_flops)
    alike = (answer.with_dots, answer.steps) == (par.with_dots, par.steps)
    steps = "" if alike else sentence("steps_with_dots", answer=answer, par=par)
    return {"done": done, "enough": enough, "steps": steps, "first": _first_dot(answer, par)}


def _first_dot(answer: Cost, par: Cost) -> str:
    """Words for the first step with a needless dot, or for another grid than the reference's."""
    as_many = len(answer.launches) == len(par.launches)
    for launch, model in zip(answer.launches, par.launches, strict=True) if as_many else ():
        if launch.grid == model.grid != () and launch.dots and model.dots:
            step = _first_more(multiplies(launch), multiplies(model))
            if step is not None:
                return sentence("first_dot_in_vain", step=launch.at(step))
    if answer.steps != par.steps:
        return sentence("another_grid", answer=answer.grids, par=par.grids)
    return ""


def _first_more(answer: np.ndarray, par: np.ndarray) -> int | None:
    """The first step at which only the answer does something, if the reference's are all there."""
    more = answer & ~par
    return int(np.argmax(more)) if more.any() and not (par & ~answer).any() else None


def _moved(answer: Cost, par: Cost) -> Facts:
    moved, enough = amounts(answer.bytes, par.bytes)
    return {"moved": moved, "enough": enough, "whose": _whose(answer, par)}


def _whose(answer: Cost, par: Cost) -> str:
    """Whose blocks are moved more often than the same array's in the reference."""
    pairs = list(_pairs(answer, par))
    more = [moved.hbm_bytes - like.hbm_bytes for _, moved, _, like in pairs]
    if not pairs or max(more) <= 0:
        return ""
    launch, operand, model, like = pairs[more.index(max(more))]
    if operand.transfers > like.transfers and operand.portion == like.portion:
        count = sentence("times_enough", times=operand.transfers, enough=like.transfers)
    else:
        sizes = amount(operand.hbm_bytes), amount(like.hbm_bytes)
        count = sentence("bytes_enough", size=sizes[0], enough=sizes[1])
    verb = "written" if operand.output else "fetched"
    moves = sentence("a_block_moves") if operand.piped else ""
    words = sentence("whose_blocks", name=operand.name, verb=verb, count=count, moves=moves)
    alike = launch.grid == model.grid != () and operand.sizes == like.sizes
    if alike and operand.piped and like.piped:
        if _first_more(operand.fetched, like.fetched) is not None:
            apart = operand.fetched & (operand.blocks != like.blocks).any(axis=1)
            step = int(np.argmax(apart))
            block, block_there = (tuple(map(int, x.blocks[step])) for x in (operand, like))
            facts = {"step": launch.at(step), "block": block, "other": block_there}
            words += sentence("first_move_in_vain", **facts) if apart.any() else ""
    return words


def _pairs(answer: Cost, par: Cost) -> Iterator[tuple[Launch, Operand, Launch, Operand]]:
    """Each operand of an answer, with its launch, and that of the same array in the reference."""
    left = _operands(par)
    for launch, operand in _operands(answer):
        form = (operand.output, operand.shape, operand.dtype)
        for model, like in left:
            if (like.output, like.shape, like.dtype) == form:
                left.remove((model, like))
                yield launch, operand, model, like
                break


def _operands(cost: Cost) -> list[tuple[Launch, Operand]]:
    return [(launch, o) for launch in cost.launches for o in (*launch.inputs, *launch.outputs)]


def _time(answer: Cost, par: Cost) -> Facts:
    cause = next(iter(price(answer.launches, _CHIP).causes), "")
    return {
        "time": seconds_words(answer.seconds),
        "enough": seconds_words(par.seconds),
        "cause": cause,
        "steps": sentence("more_steps", answer=plural(answer.steps, "step"), par=par.steps)
        if answer.steps > par.steps
        else "",
    }


def _fits(answer: Cost, par: Cost, same: bool) -> float:
    """Bytes of VMEM that a kernel gets, or that the reference requests."""
    limits = (launch.vmem_limit_bytes or 0 for launch in par.launches)
    return max(_CHIP.scoped_vmem_bytes, *limits, par.vmem)


# In the order in which they are told.
COSTS = (
    Limit(
        "count", _EXACT, _EXACT,
        lambda answer, par: {"are": "is" if par.count == 1 else "are"},
    ),
    Limit(
        "outside", _EXACT, _EXACT, _made_outside,
        more=lambda answer, par, same: _MADE * min(par.bytes, par.arrays),
    ),
    Limit(  # if the reference has none, a dot may replace a sum
        "dot_flops", _EXACT, _BY_BLOCKS, _dots,
        more=lambda answer, par, same: _SOME * par.dot_flops,
        asked=lambda answer, par: par.dot_flops > 0,
    ),
    Limit("vmem", 0, 0, _vmem, more=_fits),
    Limit(  # a column's may be in all lanes of its vectors, once a block
        "transcendentals", _BY_BLOCKS, 3.0,
        asked=lambda answer, par: answer.lanes > _BY_BLOCKS * par.lanes,
    ),
    Limit(
        "idle", 0, 0,
        more=lambda answer, par, same: answer.steps
        * (par.idle / max(1, par.steps) * (_EXACT if same else _BY_BLOCKS) + _SOME),
    ),
    Limit("transfers", _EXACT, None, lambda answer, par: {"whose": _whose(answer, par)}),
    Limit(
        "bytes", _EXACT, _BY_TRAFFIC, _moved,
        more=lambda answer, par, same: _LIST * par.bytes * same,
    ),
    Limit(  # if the reference moves each byte once, blocks of other sizes can do so, too
        "bytes", None, _BY_BLOCKS, _moved,
        asked=lambda answer, par: par.bytes <= _ONCE * par.arrays,
    ),
    Limit(
        "smem", _EXACT, None,
        lambda answer, par: {"used": amount(answer.smem), "enough": amount(par.smem)},
        more=lambda answer, par, same: _TABLES * _CHIP.smem_bytes,
    ),
    Limit("with_dots", _EXACT, None, _dots, asked=lambda answer, par: par.dot_flops > 0),
    Limit(
        "seconds", _BY_TIME, _BY_TIME,
        _time,
    ),
)  # fmt: skip
