"""Abstract evaluation of a jaxpr, for all grid steps at once: index maps and kernel bodies.

Program ids, scalars in SMEM and arithmetic on them are known values; blocks of data are only
shapes (`UNKNOWN`, or a `Buffer` if a ref can be named). A branch is evaluated with the steps that
take it, so the counts are those of executed work.

A weight counts the executions by each step: an array of two counts over the grid. `weight[MOST]`
takes every branch that depends on data and runs a loop of unknown length once; `weight[LEAST]`
counts only certain executions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from puzzles._equations import copy_parts, scan_counts
from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from puzzles._launch.abstract_refs import LOOKS, UNKNOWN, Buffer, Cells, Ref, allocated
from puzzles._launch.copies import moved
from puzzles._launch.events import EVENTS, Event, accessed
from puzzles._launch.log import LEAST, MOST, Access, FalseHint, Log, vector_slots, work
from puzzles._program import Interpreter, callee, evaluate, scoped_program, subjaxprs

# Operands or results of an equation: arrays over the grid, refs, or UNKNOWN.
Values = list[Any]
Path = tuple[int, ...]  # the place of an equation in each of the nested programs around it
# The parts of an equation that are equal in each round: its meaning, and its amount of work
# (`work`, `vector_slots`).
Planned = tuple[Callable[..., Values], int, int, int]

SMALL = 64  # own elements of a value worth knowing; a mask of a block is not
LARGE = 4_000_000  # elements of such a value over all steps
_GLIMPSE = 64  # rounds that are evaluated of a loop that is too long
FUEL = 200_000_000  # per walk: 1000 an equation plus one an element, a few seconds


class AbstractInterpreter(Interpreter):
    """Evaluates a jaxpr once for a grid; `axes` are the grid axes that the kernel can name.

    events: whether to keep the accesses to buffers, in the order of the kernel.
    """

    def __init__(
        self, grid: tuple[int, ...], axes: Sequence[int] | None = None, events: bool = False
    ) -> None:
        super().__init__()
        self.grid, self.rank, self.events = grid, len(grid), events
        # The program id of every axis, each varying along its own axis alone.
        shapes = [tuple(g if a == b else 1 for b in range(self.rank)) for a, g in enumerate(grid)]
        along = zip(grid, shapes, strict=True)
        self.ids = [np.arange(g, dtype=np.int32).reshape(shape) for g, shape in along]
        # The factor of a weight (most, least) if it is unknown whether it counts.
        self.in_doubt = np.array([1, 0], np.int64).reshape(2, *(1,) * self.rank)
        self.axes = range(self.rank) if axes is None else axes
        self.log = Log()
        self.fuel = FUEL
        self.within: list[JaxprEqn] = []  # the current equation, after the equations around it

    def known(self, value: Any) -> Any:
        value = np.asarray(value)
        if value.size > SMALL or value.dtype.kind not in "biuf":
            return UNKNOWN
        return value.reshape((1,) * self.rank + value.shape)

    def start(self, closed: ClosedJaxpr, args: Values) -> Values:
        """Evaluate a whole jaxpr, every step once."""
        with np.errstate(all="ignore"):
            outs = self.closed(closed, args, np.ones((2, *(1,) * self.rank), np.int64), ())
        self._plans.clear()  # they refer to this interpreter: without them it is freed at once
        return outs

    def in_turn(self, closed: ClosedJaxpr, args: Values) -> None:
        """Evaluate it step by step, so that later steps load the scalars that a step stores."""
        for ids in np.ndindex(*self.grid):
            weight = np.zeros((2, *self.grid), np.int64)
            weight[(slice(None), *ids)] = 1
            self.ids = [np.full((1,) * self.rank, n, np.int32) for n in ids]
            with np.errstate(all="ignore"):
                self.closed(closed, args, weight, ())
        self._plans.clear()

    def closed(self, closed: ClosedJaxpr, args: Values, weight: np.ndarray, path: Path) -> Values:
        return self.run(closed.jaxpr, [self.known(c) for c in closed.consts], args, weight, path)

    def step(self, equation: JaxprEqn, plan: Planned, values: Values, *where: Any) -> Values:
        does, operations, lanes, slots = plan
        n, weight, path = where
        self.within.append(equation)
        if slots:
            self.log.slots = self.log.slots + slots * self.times(weight)
        if operations:
            self.count(equation, operations, lanes, weight, (*path, n))
        outs = does(values, weight, (*path, n))
        self.within.pop()
        self.fuel -= 1000 + sum(out.size for out in outs if isinstance(out, np.ndarray))
        return outs

    def literal(self, atom: Literal) -> Any:
        return self.known(np.asarray(atom.val, atom.aval.dtype))

    def planned(self, equation: JaxprEqn) -> Planned:
        does: Callable[..., Values] = partial(self.other, equation, list(subjaxprs(equation)))
        if (meaning := MEANINGS.get(equation.primitive.name)) is not None:
            does = partial(meaning, self, equation)
        elif (inner := callee(equation)) is not None:
            does = partial(self.closed, inner)
        return does, *work(equation), vector_slots(equation)

    def other(
        self, equation: JaxprEqn, inner: list[Jaxpr], values: Values, weight: np.ndarray, path: Path
    ) -> Values:
        """Every other primitive: evaluate it if all operands are known, else return UNKNOWN."""
        kinds = set(map(type, values))
        if kinds & {Buffer, Cells, Ref}:  # it may read and write them
            for writes in (False, True):
                self.touch(values, weight * self.in_doubt, writes)
            for value in values:
                if isinstance(value, Cells | Ref):
                    value.lost()
        for n, jaxpr in enumerate(inner):
            blind = [UNKNOWN] * len(jaxpr.invars)
            self.run(jaxpr, [UNKNOWN] * len(jaxpr.constvars), blind, weight, (*path, n))
        if kinds <= {np.ndarray} and self.worth(equation, values):
            try:
                return evaluate(equation, values, self.rank)
            except Exception:  # a primitive without a meaning outside a TPU kernel
                pass
        return [UNKNOWN] * len(equation.outvars)

    def touch(
        self, values: Sequence[Any], weight: np.ndarray, writes: bool, whole: bool = False
    ) -> None:
        """The kernel's parameters among `values` are read or written."""
        parameters = (
            parameter
            for parameter in values
            if isinstance(parameter, Buffer | Ref) and not parameter.path
        )
        self.log.touches += [
            Access(parameter.name, writes, weight, whole) for parameter in parameters
        ]

    def worth(self, equation: JaxprEqn, values: list[Any]) -> bool:
        """Whether a result can be known and may decide something: small, and without effects."""
        shapes = [getattr(v.aval, "shape", (2 * SMALL,)) for v in equation.outvars]
        own = max(map(math.prod, shapes), default=2 * SMALL)
        if equation.effects or own > SMALL:
            return False
        leads = (v.shape[: self.rank] for v in values)
        return own <= 1 or own * math.prod(np.broadcast_shapes(*leads)) <= LARGE

    def times(self, weight: np.ndarray) -> np.ndarray:
        """How often all steps together come by, as a pair (most, least) of Python's integers."""
        alike = math.prod(self.grid) // max(1, weight[MOST].size)
        return np.array([int(count.sum()) * alike for count in weight], object)

    def count(
        self, equation: JaxprEqn, operations: int, lanes: int, weight: np.ndarray, path: tuple
    ) -> None:
        """Add its operations, as often as `weight` says."""
        log, steps = self.log, self.times(weight)
        log.flops = log.flops + operations * steps
        log.transcendentals = log.transcendentals + operations * steps * bool(lanes)
        log.lanes = log.lanes + lanes * steps
        log.busy = log.busy | (weight > 0)
        last = log.events[-1] if log.events else None
        if last is None or last.name != "work" or last.weight is not weight:  # one is enough
            self.happens("work", equation, (), weight)
        if equation.primitive.name == "dot_general":
            log.dots[path] = (equation, log.dots.get(path, (None, 0))[1] + weight)

    def happens(
        self,
        name: str,
        equation: JaxprEqn,
        values: Sequence[Any],
        weight: np.ndarray,
        sizes: Collection[int] = (),
    ) -> None:
        if not self.events or self.log.cut:
            return
        self.log.cut = len(self.log.events) == EVENTS
        if not self.log.cut:
            size = sum(sizes) if len(sizes) == 1 else 0  # of several none is known
            self.log.events.append(Event(name, equation, tuple(values), weight, size))

    def give_up(self, saved: Log, long: bool) -> None:
        """Restore the counts from before a loop whose length is unknown or too long.

        The events of its first rounds stay.
        """
        saved.events, saved.cut = self.log.events, self.log.cut or long
        self.log = saved

    def _program_id(self, equation: JaxprEqn, *_: Any) -> list[Any]:
        return [self.ids[self.axes[equation.params["axis"]]]]

    def _num_programs(self, equation: JaxprEqn, *_: Any) -> list[Any]:
        return [self.known(np.int32(self.grid[self.axes[equation.params["axis"]]]))]

    def _multiple_of(
        self, equation: JaxprEqn, values: Values, weight: np.ndarray, _: Path
    ) -> Values:
        (value,), promised, before = values, equation.params["values"], self.log.lies
        if isinstance(value, np.ndarray) and value.ndim == self.rank and len(promised) == 1:
            steps = (value % promised[0] != 0) & (weight[LEAST] > 0)
            if steps.any() and all(lie.equation is not equation for lie in before):
                self.log.lies = (*before, FalseHint(equation, steps, promised[0], value))
        return values

    def _run_scoped(
        self, equation: JaxprEqn, values: Values, weight: np.ndarray, path: Path
    ) -> Values:
        jaxpr = scoped_program(equation)
        self.log.scoped[path] = [v.aval for v in jaxpr.invars]
        return self.run(jaxpr, values, list(allocated(jaxpr, path)), weight, path)

    def _dma_start(
        self, equation: JaxprEqn, values: Values, weight: np.ndarray, path: Path
    ) -> Values:
        sizes, parts = set(), copy_parts(equation.params["tree"], values)
        for move, steps in moved(equation, parts, self.rank):
            sizes.add(move.bytes_each)
            here = np.where(steps, weight, 0) * (1 if move.exact else self.in_doubt)
            copies, key = self.log.copies, (path, move)
            around, before = copies.get(key) or (tuple(self.within), 0)
            copies[key] = (around, before + here)
        (source, _), (target, _), _ = parts
        if any(sizes):
            self.touch([source], weight, False)
            self.touch([target], weight, True)
        if isinstance(target, Cells | Ref):
            target.lost()
        self.happens("dma_start", equation, values, weight, sizes)
        return []

    def _dma_wait(self, equation: JaxprEqn, values: Values, weight: np.ndarray, _: Path) -> Values:
        parts = copy_parts(equation.params["tree"], values)
        sizes = {move.bytes_each for move, _ in moved(equation, parts, self.rank)}
        self.happens("dma_wait", equation, values, weight, sizes)
        return []

    def _load(self, equation: JaxprEqn, values: Values, weight: np.ndarray, _: Path) -> Values:
        self.happens("get", equation, values, weight)
        ref, transforms, _, mask = accessed(equation, values)
        shape = equation.outvars[0].aval.shape
        if math.prod(shape):
            self.touch([ref], weight, False)
        if isinstance(ref, Cells) and mask is None and math.prod(shape) == 1:
            value = ref.load(transforms)  # over the grid: it gains axes of its own
            is_known = isinstance(value, np.ndarray)
            return [value.reshape(value.shape + shape) if is_known else value]
        if mask is not None or not isinstance(ref, Ref):
            return [UNKNOWN]
        value, look = ref.load(transforms, shape, weight[MOST])
        if look is not None and len(self.log.looks) < LOOKS:
            self.log.looks += (look,)
        if look is not None and look.stray.any():
            self.log.strays += (look,)
        return [value]

    def _store(self, equation: JaxprEqn, values: Values, weight: np.ndarray, _: Path) -> Values:
        self.happens("swap", equation, values, weight)
        ref, transforms, stored, _ = accessed(equation, values)
        plain = equation.primitive.name == "swap"
        into, size = (math.prod(v.aval.shape) for v in equation.invars[:2])
        if equation.primitive.name == "addupdate":
            self.touch([ref], weight, False)
        if size:
            self.touch([ref], weight, True, whole=plain and into == size)
        if isinstance(ref, Cells | Ref) and plain:
            ref.store(transforms, stored, weight)
        elif isinstance(ref, Cells | Ref):
            ref.lost()
        return [UNKNOWN] * len(equation.outvars)

    def merge(self, which: np.ndarray, new: Any, old: Any) -> Any:
        """The elements of `new` if `which` holds, else those of `old`."""
        if new is old:
            return old
        if not (isinstance(new, np.ndarray) and isinstance(old, np.ndarray)):
            return UNKNOWN
        extra = (1,) * (max(new.ndim, old.ndim) - self.rank)
        return np.where(which.reshape(which.shape[: self.rank] + extra), new, old)

    def _cond(self, equation: JaxprEqn, values: Values, weight: np.ndarray, path: Path) -> Values:
        branches, which = equation.params["branches"], values[0]
        if not isinstance(which, np.ndarray):  # most: every branch; least: none
            self.log.branches |= {path}
            for n, branch in enumerate(branches):
                self.closed(branch, values[1:], weight * self.in_doubt, (*path, n))
            return [UNKNOWN] * len(equation.outvars)
        outs: list[Any] | None = None
        index = np.minimum(np.maximum(which.astype(np.int64), 0), len(branches) - 1)
        for n, branch in enumerate(branches):
            taken = np.where(index == n, weight, 0)
            if np.count_nonzero(taken):
                new = self.closed(branch, values[1:], taken, (*path, n))
                pairs = zip(new, new if outs is None else outs, strict=True)
                outs = [self.merge(index == n, a, b) for a, b in pairs]
        return [UNKNOWN] * len(equation.outvars) if outs is None else outs

    def _while(self, equation: JaxprEqn, values: Values, weight: np.ndarray, path: Path) -> Values:
        p, saved = equation.params, self.log.copy()
        split = p["cond_nconsts"] + p["body_nconsts"]
        test, consts = values[: p["cond_nconsts"]], values[p["cond_nconsts"] : split]
        carry, active = values[split:], weight
        while self.fuel > 0:
            go = self.closed(p["cond_jaxpr"], [*test, *carry], active, (*path, 0))[0]
            if not isinstance(go, np.ndarray):
                break
            active = np.where(go, active, 0)
            if not active.any():
                return carry
            new = self.closed(p["body_jaxpr"], [*consts, *carry], active, (*path, 1))
            carry = [self.merge(active[MOST] > 0, a, b) for a, b in zip(new, carry, strict=True)]
        self.give_up(saved, self.fuel <= 0)
        self.log.loops |= {path}  # the body counts once, though it may never run
        blind = [UNKNOWN] * len(carry)
        once = weight * self.in_doubt
        self.closed(p["body_jaxpr"], [*consts, *blind], once, (*path, 1))
        return blind

    def _scan(self, equation: JaxprEqn, values: Values, weight: np.ndarray, path: Path) -> Values:
        p, saved = equation.params, self.log.copy()
        body, length, (first, carried) = p["jaxpr"], p["length"], scan_counts(p)
        split = first + carried
        consts, carry = values[:first], values[first:split]
        blind = [UNKNOWN] * (len(values) - split)
        ys = [UNKNOWN] * (len(equation.outvars) - len(carry))
        affordable = length * len(body.jaxpr.eqns) * 1000 < self.fuel
        glimpse = min(length, _GLIMPSE) if self.events else 0
        for n in range(length if affordable else glimpse):
            if self.fuel <= 0:
                affordable = False
                break
            at = length - 1 - n if p["reverse"] else n
            xs = [
                v[(slice(None),) * self.rank + (at,)] if isinstance(v, np.ndarray) else UNKNOWN
                for v in values[split:]
            ]
            carry = self.closed(body, [*consts, *carry, *xs], weight, path)[: len(carry)]
        if affordable:
            return [*carry, *ys]
        self.give_up(saved, long=True)
        lost = [UNKNOWN] * len(carry)
        self.closed(body, [*consts, *lost, *blind], weight * length, path)
        return [*lost, *ys]


# The meaning of a primitive; all others are calls, or arithmetic on known values.
MEANINGS: dict[str, Callable[..., Values]] = {
    "program_id": AbstractInterpreter._program_id,
    "num_programs": AbstractInterpreter._num_programs,
    "multiple_of": AbstractInterpreter._multiple_of,
    "run_scoped": AbstractInterpreter._run_scoped,
    "dma_start": AbstractInterpreter._dma_start,
    "dma_wait": AbstractInterpreter._dma_wait,
    "get": AbstractInterpreter._load,
    "masked_load": AbstractInterpreter._load,
    "swap": AbstractInterpreter._store,
    "masked_swap": AbstractInterpreter._store,
    "addupdate": AbstractInterpreter._store,
    "cond": AbstractInterpreter._cond,
    "while": AbstractInterpreter._while,
    "scan": AbstractInterpreter._scan,
}
