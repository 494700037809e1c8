"""A launch run step by step in NumPy, which compiles nothing.

It gives what JAX's interpreter gives. Where it cannot, as where an access reaches outside, it
raises `Beyond`, and the interpreter is asked. A strict run does what a TPU may do, too: parallel
axes run backwards, blocks are fetched when they change, an output holds NaN at first, copies
arrive when they are waited for. What must not be done there is `Beyond`, too: the simulator finds
the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from puzzles._jax import JaxprEqn, copy_parts, is_remote, written_refs
from puzzles._launch.events import accessed
from puzzles._launch.in_numpy import CONTROL, Beyond, Evaluator, Found, Observer, Values
from puzzles._launch.jaxprs import CALLS
from puzzles._launch.launch import Launch
from puzzles._launch.operand import Operand
from puzzles._launch.run import run_program, runs_in_python
from puzzles._launch.slices import taken
from puzzles._launch.traced import Traced


def stepped(machine: _Machine, values: Sequence[Any]) -> Values:
    """The results of a machine's launch on its operands."""
    launch, kernel = machine.launch, machine.kernel
    first = len(launch.scalars)
    given = [np.asarray(x) for x in values[len(values) - first - len(launch.inputs) :]]
    if kernel.constvars or any(n < first for n in written_refs(kernel)):
        raise Beyond
    arrays = [machine.padded(x, o) for x, o in zip(given[first:], launch.inputs, strict=True)]
    sources = {o: i for i, o in launch.aliases}
    for n, out in enumerate(launch.outputs):
        i = sources.get(n)
        if i is None:
            arrays.append(machine.padded(machine.unwritten(out.shape, out.dtype), out))
            continue
        arrays.append(machine.padded(given[first + i], out, launch.inputs[i]))
        if machine.strict:  # one piece of memory
            arrays[i] = arrays[-1]
    machine.run_grid(given[:first], arrays)
    outputs = zip(arrays[len(launch.inputs) :], launch.outputs, strict=True)
    return [array[tuple(map(slice, out.shape))] for array, out in outputs]


class _Machine(Evaluator):
    """One run of a launch."""

    def __init__(
        self,
        call: JaxprEqn,
        launch: Launch,
        strict: bool,
        observer: Observer | None = None,
        blank: bool = False,
    ) -> None:
        super().__init__(observer)
        self.kernel, self.launch = call.params["jaxpr"], launch
        self.strict, self.blank = strict, blank
        mapped = call.params["grid_mapping"].vmapped_dims
        self.axes = [a for a in range(len(launch.grid)) if a not in mapped]
        self.ids: tuple[int, ...] = ()
        self.flying: list[tuple[int, np.ndarray, np.ndarray]] = []  # semaphore, source, target
        self.due: dict[int, int] = {}  # bytes, by semaphore

    def unwritten(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Memory that nobody has written: NaN, the least integer, False, or a semaphore at zero.

        blank: zero, or where that was the least, one.
        """
        if jnp.issubdtype(dtype, jnp.floating):
            return np.full(shape, 0 if self.blank else np.nan, dtype)
        if jnp.issubdtype(dtype, jnp.integer):
            least = np.iinfo(dtype).min
            return np.full(shape, (least == 0) if self.blank else least, dtype)
        if jnp.issubdtype(dtype, jnp.bool_):
            return np.full(shape, self.blank)
        if "sem" not in str(dtype):
            raise Beyond
        return np.zeros(shape, np.int64)

    def padded(self, x: np.ndarray, *operands: Operand) -> np.ndarray:
        """A copy that holds whole blocks of each operand."""
        if any(any(map(any, one.padding)) for one in operands):
            raise Beyond
        blocks = zip(x.shape, *(one.sizes for one in operands), strict=True)
        sizes = tuple(max(-(-n // b) * b for b in some) for n, *some in blocks)
        whole = self.unwritten(sizes, x.dtype)
        whole[tuple(map(slice, x.shape))] = x
        return whole

    def run_grid(self, scalars: Values, arrays: list[np.ndarray]) -> None:
        """All steps; outputs are written into their arrays."""
        operands = (*self.launch.inputs, *self.launch.outputs)
        for one, array in zip(operands, arrays, strict=True):
            last = one.starts + np.array(one.sizes, np.int64)
            if (one.starts < 0).any() or (last > array.shape).any():
                raise Beyond
        scratch = [self.unwritten(one.shape, one.dtype) for one in self.launch.scratch]
        starts = [one.starts.tolist() for one in operands]
        held: list[Any] = [None] * len(operands)
        places: list[Any] = [None] * len(operands)
        for number in self.order():
            self.ids = self.launch.at(number)
            for n, (one, array) in enumerate(zip(operands, arrays, strict=True)):
                place = _place(one, starts[n], number)
                if not (self.strict and one.piped):
                    held[n] = array[(*place, ...)]  # a view, of one element, too
                elif place != places[n]:
                    self.put_back(n, held, places, arrays)
                    fresh = array[(*place, ...)].copy()
                    held[n] = self.unwritten(fresh.shape, one.dtype) if one.output else fresh
                    places[n] = place
            self.run(self.kernel, [], [*scalars, *held, *scratch])
        for n in range(len(operands)):
            self.put_back(n, held, places, arrays)
        if self.flying:
            raise Beyond

    def order(self) -> np.ndarray:
        """The numbers of the steps, in the order in which they run."""
        launch = self.launch
        numbers = np.arange(launch.steps)
        if not self.strict or not launch.dimension_semantics:
            return numbers
        order = numbers.reshape(launch.grid)
        for axis, word in enumerate(launch.dimension_semantics):
            if word.endswith("parallel"):
                order = np.flip(order, axis)  # where there are two steps, they change places, too
        return order.reshape(-1)

    def put_back(self, n: int, held: Values, places: Values, arrays: list[np.ndarray]) -> None:
        """An output's block to its array."""
        if n >= len(self.launch.inputs) and places[n] is not None:
            arrays[n][places[n]] = held[n]

    def reads(self, view: np.ndarray) -> None:
        """It must not read where a copy may still land."""
        if self.flying and any(np.shares_memory(view, target) for _, _, target in self.flying):
            raise Beyond

    def writes(self, view: np.ndarray) -> None:
        """Nor write there, or where a copy may still read."""
        if any(np.shares_memory(view, end) for _, *ends in self.flying for end in ends):
            raise Beyond

    def _program_id(self, equation: JaxprEqn, _: Values) -> Values:
        return [np.int32(self.ids[self.asked(equation)])]

    def _num_programs(self, equation: JaxprEqn, _: Values) -> Values:
        return [np.int32(self.launch.grid[self.asked(equation)])]

    def asked(self, equation: JaxprEqn) -> int:
        """The axis that is asked for; JAX's interpreter does not answer in loops and branches."""
        if not self.strict and equation not in self.kernel.eqns:
            raise Beyond
        return self.axes[equation.params["axis"]]

    def _load(self, equation: JaxprEqn, values: Values) -> Values:
        ref, transforms, _, mask = accessed(equation, values)
        if mask is not None:
            raise Beyond
        view = taken(ref, transforms)
        self.reads(view)
        return [view.copy()]

    def _store(self, equation: JaxprEqn, values: Values) -> Values:
        ref, transforms, stored, mask = accessed(equation, values)
        view = taken(ref, transforms)
        if not np.may_share_memory(view, ref):  # a copy, of which nobody would know
            raise Beyond
        self.writes(view)
        if equation.primitive.name == "addupdate":
            view += stored
            return []
        before = view.copy()
        view[...] = stored if mask is None else np.where(mask, stored, before)
        return [before]

    def _dma_start(self, equation: JaxprEqn, values: Values) -> Values:
        (source, target, (semaphore, index)) = copy_parts(equation.params["tree"], values)
        if is_remote(equation) or equation.params.get("add"):
            raise Beyond
        old, new = taken(*source), taken(*target)
        alike = old.shape == new.shape and old.dtype == new.dtype
        if not alike or not np.may_share_memory(new, target[0]):
            raise Beyond
        self.reads(old)
        self.writes(new)
        if not self.strict:
            new[...] = old
            return []
        told = _address(taken(semaphore, index))
        self.flying.append((told, old, new))
        self.due[told] = self.due.get(told, 0) + new.nbytes
        return []

    def _dma_wait(self, equation: JaxprEqn, values: Values) -> Values:
        (_, target, (semaphore, index)) = copy_parts(equation.params["tree"], values)
        if not self.strict:
            return []
        told, size = _address(taken(semaphore, index)), taken(*target).nbytes
        self.due[told] = self.due.get(told, 0) - size
        if self.due[told] < 0:
            raise Beyond
        if self.due[told] == 0:
            for semaphore, old, new in self.flying:
                if semaphore == told:
                    new[...] = old
            self.flying = [one for one in self.flying if one[0] != told]
        return []

    def _run_scoped(self, equation: JaxprEqn, values: Values) -> Values:
        jaxpr = equation.params["jaxpr"]
        made = [self.unwritten(v.aval.shape, v.aval.dtype) for v in jaxpr.invars]
        return self.run(jaxpr, values, made)


def _place(operand: Operand, starts: Sequence, step: int) -> tuple[Any, ...]:
    """Which part of its array an operand holds at a step."""
    each = zip(starts[step], operand.block, strict=True)
    return tuple(start if block is None else slice(start, start + block) for start, block in each)


def _address(semaphore: np.ndarray) -> int:
    return semaphore.__array_interface__["data"][0]


_Machine.meanings = CONTROL | {
    "program_id": _Machine._program_id,
    "num_programs": _Machine._num_programs,
    "run_scoped": _Machine._run_scoped,
    "dma_start": _Machine._dma_start,
    "dma_wait": _Machine._dma_wait,
    "get": _Machine._load,
    "masked_load": _Machine._load,
    "swap": _Machine._store,
    "masked_swap": _Machine._store,
    "addupdate": _Machine._store,
}


def step_by_step(
    traced: Traced, strict: bool = False, observer: Observer | None = None, blank: bool = False
) -> list[np.ndarray] | None:
    """The flat results of a program whose launches run in NumPy; None where JAX has to run them.

    observer: see `Evaluator`. blank: memory that nobody wrote holds other numbers.
    """
    if not runs_in_python(traced.jaxpr.jaxpr, CALLS):  # a loop's launch is another in each turn
        return None
    try:
        launches = iter(traced.launches)

        def launch(call: JaxprEqn, values: Values) -> Values:
            return stepped(_Machine(call, next(launches), strict, observer, blank), values)

        return run_program(traced.jaxpr, traced.leaves, launch, observer)
    except Found:
        raise
    except Exception:  # whatever it is, JAX does it, or says in its own words why not
        return None
