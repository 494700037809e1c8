"""A machine in NumPy that runs a launch step by step and compiles nothing.

Without `Semantics` it returns the results of JAX's interpreter, or raises `UnsupportedError` if it
cannot, for instance if an access reaches outside. With `Semantics` it runs as a TPU may: it fetches
blocks when they change, fills an output with NaN at first, runs parallel axes in reverse, and lands
copies at their waits. It raises `HazardError`, with grid step and line, for a hazard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from puzzles._equations import Part, compiler_param, copy_ends, copy_parts, is_key, is_remote
from puzzles._jax import JaxprEqn, made_by_a_pipeline, written_refs
from puzzles._launch import (
    Flight,
    Flights,
    Launch,
    Operand,
    View,
    accessed,
    before_bitcast,
    bytes_of,
    happens,
    in_last_tile,
    line_of,
    program_of,
    ranges_of,
    ranges_shown,
    scoped_names,
    taken,
    text_of,
    told,
    unlike,
    when,
)
from puzzles._program import (
    CONTROL,
    BudgetError,
    NumpyInterpreter,
    Observer,
    UnsupportedError,
    Values,
    interpreted,
    parameter_names,
    scoped_program,
)
from puzzles._simulator.semantics import (
    EDGE,
    HazardError,
    Observation,
    RunLog,
    Semantics,
    address,
    comparable,
    floating,
)


class Machine(NumpyInterpreter):
    """One run of a launch; without `how`, as JAX's interpreter runs it."""

    def __init__(
        self,
        call: JaxprEqn,
        launch: Launch,
        how: Semantics | None = None,
        observer: Observer | None = None,
        trail: RunLog | None = None,
    ) -> None:
        super().__init__(observer)
        self.kernel, self.launch, self.how = call.params["jaxpr"], launch, how
        self.unchecked = compiler_param(call.params["compiler_params"], "disable_bounds_checks")
        self.trail = trail
        self.parameters = parameter_names(call)
        self.names = [*self.parameters]  # of `buffers`
        mapped = call.params["grid_mapping"].vmapped_dims
        self.axes = [a for a in range(len(launch.grid)) if a not in mapped]
        self.ids: tuple[int, ...] = ()
        self.buffers: list[Any] = []  # the kernel's parameters, then its allocations
        self.random = np.random.default_rng(0)  # for `pltpu.prng_random_bits`
        self.flights = Flights()  # the key of a semaphore is its address

    def results(self, values: Sequence[Any]) -> Values:
        """Return the results of the launch on its operands."""
        launch, scalars = self.launch, len(self.launch.scalars)
        operands = values[len(values) - scalars - len(launch.inputs) :]
        if any(map(is_key, operands)):
            raise UnsupportedError("random keys")
        arguments = [np.asarray(x) for x in operands]
        if self.how is None and any(n < scalars for n in written_refs(self.kernel)):
            raise UnsupportedError
        for n, operand in enumerate(launch.inputs):
            if operand.name in launch.around.empty:
                arguments[scalars + n] = self.unwritten(operand.shape, operand.dtype)
        inputs = zip(arguments[scalars:], launch.inputs, strict=True)
        arrays = [self.padded(x, operand) for x, operand in inputs]
        sources = {o: i for i, o in launch.aliases}
        for n, out in enumerate(launch.outputs):
            i = sources.get(n)
            if i is None:
                arrays.append(self.padded(self.unwritten(out.shape, out.dtype), out))
                continue
            arrays.append(self.padded(arguments[scalars + i], out, launch.inputs[i]))
            if self.how is not None:  # one piece of memory
                arrays[i] = arrays[-1]
        self.run_grid([x.copy() for x in arguments[:scalars]], arrays)
        outputs = zip(arrays[len(launch.inputs) :], launch.outputs, strict=True)
        return [array[tuple(map(slice, out.shape))] for array, out in outputs]

    def unwritten(
        self, shape: Sequence[int], dtype: Any, as_nan: tuple[str, ...] = ("nan", "garbage")
    ) -> np.ndarray:
        """Return unwritten memory: NaN, about the least integer, False, or a semaphore at zero.

        as_nan: the values of `Semantics.unwritten` for these contents. For other values, memory
        holds zero, or one for an unsigned integer, and for a float if it is "one".
        """
        nan = self.how is None or self.how.unwritten in as_nan
        odd = self.how is not None and self.how.unwritten != "nan"
        if jnp.issubdtype(dtype, jnp.floating):
            one = self.how is not None and self.how.unwritten == "one"
            return np.full(shape, np.nan if nan else one, dtype)
        if jnp.issubdtype(dtype, jnp.integer):
            least = np.iinfo(dtype).min
            return np.full(shape, least + (odd and least < 0) if nan else least == 0, dtype)
        if jnp.issubdtype(dtype, jnp.bool_):
            return np.full(shape, not nan)
        if "sem" not in str(dtype):
            raise UnsupportedError(f"memory of {dtype}")
        return np.zeros(shape, np.int64)

    def padded(self, x: np.ndarray, *operands: Operand) -> np.ndarray:
        """Return a copy of `x` that is padded to whole blocks of each operand."""
        if any(any(map(any, operand.padding)) for operand in operands):
            raise UnsupportedError("the padding of a `pl.Element`")
        blocks = zip(x.shape, *(operand.sizes for operand in operands), strict=True)
        sizes = tuple(max(max(1, -(-n // max(1, b))) * b for b in sizes) for n, *sizes in blocks)
        whole = self.unwritten(sizes, x.dtype, ("nan", "garbage", "padding"))
        whole[tuple(map(slice, x.shape))] = x
        return whole

    def run_grid(self, scalars: Values, arrays: list[np.ndarray]) -> None:
        """Run all steps and write the outputs into their arrays."""
        operands = (*self.launch.inputs, *self.launch.outputs)
        scratch = [self.unwritten(ref.shape, ref.dtype) for ref in self.launch.scratch]
        starts = []
        for operand, array in zip(operands, arrays, strict=True):
            # Negative starts count from the end, as in `jax.lax.dynamic_slice`.
            inside = np.where(operand.starts < 0, operand.starts + array.shape, operand.starts)
            inside = inside.clip(0, np.subtract(array.shape, operand.sizes))
            if self.how is not None and (inside != operand.starts).any():
                raise UnsupportedError("a block outside its array")
            starts.append(inside.tolist())
        held: list[Any] = [None] * len(operands)
        places: list[Any] = [None] * len(operands)
        for count, number in enumerate(self.order()):
            if self.how is not None and count == self.how.most:
                raise BudgetError
            for n, (operand, array) in enumerate(zip(operands, arrays, strict=True)):
                place = _place(operand, starts[n], number)
                if self.how is None or not operand.piped:
                    held[n] = array[(*place, ...)]  # the ellipsis makes a view of one element, too
                elif place != places[n]:
                    self.put_back(n, held, places, arrays)
                    fresh = array[(*place, ...)].copy()
                    if operand.output:
                        fresh = self.unwritten(fresh.shape, operand.dtype)
                    held[n] = fresh
                    places[n] = place
            self.run_step(number, [*scalars, *held, *scratch])
        for n in range(len(operands)):
            self.put_back(n, held, places, arrays)
        self.ends()
        for out, array in zip(self.launch.outputs, arrays[len(self.launch.inputs) :], strict=True):
            if self.trail is not None and not out.piped:
                whole = array[tuple(map(slice, out.shape))]
                seen = Observation(out.name, self.ids, comparable(whole), array=whole)
                self.trail.carried.append(seen)

    def run_step(self, number: int, refs: Values) -> None:
        """Run the kernel at one grid step."""
        self.flights.earlier = [*self.flights.flying]
        self.ids = self.launch.at(number)
        self.buffers, self.names = refs, [*self.parameters]
        self.run(self.kernel, [], refs[:])

    def order(self) -> Sequence[int]:
        """Return the numbers of the steps in the order in which they run."""
        launch, how = self.launch, self.how
        order = np.arange(launch.steps).reshape(launch.grid)
        backwards = how is not None and how.backwards
        for axis, word in enumerate(launch.dimension_semantics or () if backwards else ()):
            if word.endswith("parallel"):
                order = np.flip(order, axis)
        for axis, n in enumerate(launch.grid if how is not None and how.edges else ()):
            order = order.take([*range(min(n, EDGE - 1)), *range(EDGE - 1, n)[-1:]], axis)
        return order.reshape(-1).tolist()

    def put_back(self, n: int, held: Values, places: Values, arrays: list[np.ndarray]) -> None:
        """Write an output's block to its array, and log the block."""
        if n < len(self.launch.inputs) or places[n] is None:
            return
        arrays[n][places[n]] = held[n]
        if self.trail is None:
            return
        out = self.launch.outputs[n - len(self.launch.inputs)]
        inside = arrays[n][tuple(map(slice, out.shape))][(*places[n], ...)]  # without padding
        self.trail.carried.append(Observation(out.name, self.ids, comparable(inside)))

    def ends(self) -> None:
        """Raise `HazardError` if a copy is in flight or a semaphore is above zero at the end."""
        if self.flights.flying:
            line = self.flights.flying[0].line
            started = f": it was started in `{line}`" if line else ""
            self.wrong(None, "copy_never_waited_for", then=started)
        if any(self.flights.due.values()):
            self.wrong(None, "semaphore_left_signalled")

    def wrong(
        self, equation: JaxprEqn | None, words: str, kind: str = "hazard", **facts: Any
    ) -> None:
        """Raise `HazardError` with the message `words`, or `UnsupportedError` without `how`."""
        if self.how is None:
            raise UnsupportedError
        info, step = None if equation is None else equation.source_info, self.ids or None
        line = line_of(info) or self.launch.line
        where = dict(launch=self.launch.name, step=step, line=line)
        at = dict(when=when(step, text_of(info)[:100]), where=when(step, text_of(info)[:100]))
        raise HazardError(told(kind, words, **where, **at | facts))

    def part(
        self,
        equation: JaxprEqn,
        ref: np.ndarray,
        transforms: Sequence[Any],
        words: str = "block_of_a_ref_outside",
    ) -> np.ndarray:
        """Return the part of a ref; if it reaches outside, raise with the message `words`."""
        try:
            return taken(ref, transforms)
        except Exception:
            ranges, name = ranges_of(transforms), self.name_of(ref)
            if made_by_a_pipeline(equation.source_info) and in_last_tile(ranges, ref):
                raise UnsupportedError("the last block of a pipeline hangs over") from None
            if ranges is not None and len(ranges) == ref.ndim:
                if any(scalar is ref for scalar in self.buffers[: len(self.launch.scalars)]):
                    words = "scalars_outside"
                elif min(first for first, *_ in ranges) < 0:
                    words = "index_below_zero"
                elif words == "block_of_a_ref_outside" and not self.launch.grid:
                    pairs = zip(ranges, ref.shape, strict=True)
                    beyond = any(index and first >= size for (first, _, index), size in pairs)
                    words = "index_of_a_ref_outside" if beyond else "slice_of_a_ref_outside"
                span = ", ".join(f"{a}" if index else f"{a}:{b}" for a, b, index in ranges)
                spelt = dict(ref=f"`{name}`" if name else "a ref", name=name or "ref", part=span)
                self.wrong(equation, words, "out-of-bounds", operand=name, shape=ref.shape, **spelt)
            if any(np.ndim(i) for part in transforms for i in getattr(part, "indices", ())):
                which = f"`{name}`" if name else "A ref"
                self.wrong(equation, "indexed_with_an_array", "lowering", operand=name, which=which)
            raise

    def end(self, equation: JaxprEqn, ref: np.ndarray, transforms: Sequence[Any]) -> np.ndarray:
        """Return the source or the target of a copy."""
        return self.part(equation, ref, transforms, "copy_of_a_ref_outside")

    def semaphore(self, equation: JaxprEqn, ref: np.ndarray, transforms: Sequence[Any]) -> int:
        """Return a key that is unique to this semaphore."""
        return address(self.part(equation, ref, transforms, "no_such_semaphore"))

    def name_of(self, ref: np.ndarray) -> str | None:
        """The name of a buffer; None for what a part of a ref was taken as."""
        pairs = zip(self.names, self.buffers, strict=False)
        return next((name for name, buffer in pairs if buffer is ref), None)

    def view(self, array: np.ndarray, ref: np.ndarray, transforms: Sequence[Any]) -> View:
        """Return a view of a part of a ref, which computes its name when it is printed."""

        def name() -> str:
            part = ranges_shown(ranges_of(transforms), ref.shape)
            return f"{self.name_of(ref) or 'a buffer'}{part}"

        return View(array, name)

    def touches(
        self, equation: JaxprEqn, how: str, array: np.ndarray, ref: np.ndarray, transforms: Any,
        copy: Flight | None = None,
    ) -> None:  # fmt: skip
        """Raise `HazardError` for an access to a copy's target, or a write to its source."""
        if why := self.flights.forbidden(how, self.view(array, ref, transforms), copy):
            text = text_of(equation.source_info)
            says = happens(self.ids, f"`{text}`" if text else "the kernel", why)
            self.wrong(equation, "touched_too_early", says=says, operand=self.name_of(ref))

    def without_rule(self, equation: JaxprEqn, values: Values) -> Values:
        """Let JAX compute an equation without effects that has no NumPy rule."""
        if equation.effects:
            return super().without_rule(equation, values)
        try:
            return [np.asarray(x) for x in interpreted(equation, values)]
        except Exception:
            return super().without_rule(equation, values)

    def _program_id(self, equation: JaxprEqn, _: Values) -> Values:
        return [np.int32(self.ids[self.axis(equation)])]

    def _num_programs(self, equation: JaxprEqn, _: Values) -> Values:
        return [np.int32(self.launch.grid[self.axis(equation)])]

    def axis(self, equation: JaxprEqn) -> int:
        """The grid axis of `program_id`; JAX's interpreter has none in loops and branches."""
        if self.how is None and equation not in self.kernel.eqns:
            raise UnsupportedError
        return self.axes[equation.params["axis"]]

    def _load(self, equation: JaxprEqn, values: Values) -> Values:
        ref, transforms, _, mask = accessed(equation, values)
        if mask is not None:
            raise UnsupportedError("a load with a mask")
        view = self.part(equation, ref, transforms)
        if (part := before_bitcast(view, ref, transforms)) is not None:
            self.touches(equation, "reads", part, ref, transforms)
        self.note_nan(equation, ref, view if view.dtype == ref.dtype else ref)
        return [view.copy()]

    def note_nan(self, equation: JaxprEqn, ref: np.ndarray, read: np.ndarray) -> None:
        """Log the first NaN that the kernel reads from each ref."""
        if self.trail is None or not floating(read) or not np.isnan(read).any():
            return
        name, nans = self.name_of(ref), self.trail.nans
        if all(name != nan.operand for nan in nans):
            line = line_of(equation.source_info)
            nans.append(Observation(name, self.ids, line, name in self.trail.stored))

    def _store(self, equation: JaxprEqn, values: Values) -> Values:
        ref, transforms, stored, mask = accessed(equation, values)
        view = self.part(equation, ref, transforms)
        if (part := before_bitcast(view, ref, transforms)) is None:
            raise UnsupportedError("a store through a part of a bitcast or of a reshape")
        self.touches(equation, "writes", part, ref, transforms)
        self.flights.changed(self.view(part, ref, transforms))
        if self.trail is not None:
            self.trail.stored.add(self.name_of(ref))
        before = view.copy()
        if equation.primitive.name == "addupdate":
            view += stored
        else:
            view[...] = stored if mask is None else np.where(mask, stored, before)
        if part is not view:
            part[...] = unlike(view, part)
        return [before] if equation.outvars else []

    def _dma_start(self, equation: JaxprEqn, values: Values) -> Values:
        source, target, semaphore = copy_parts(equation.params["tree"], values)
        if is_remote(equation) or equation.params.get("add"):
            raise UnsupportedError("a copy to another device")
        old, new = (self.end(equation, *part) for part in (source, target))
        alike = old.shape == new.shape and old.dtype == new.dtype
        if not alike or (new.size and not np.may_share_memory(new, target[0])):
            raise UnsupportedError("a copy between two forms")
        copy = None
        if self.how is not None:
            ends = self.view(old, *source), self.view(new, *target)
            at, line = self.semaphore(equation, *semaphore), text_of(equation.source_info)
            copy = Flight(*ends, at, signals_of(equation, new.nbytes), line)
        self.touches(equation, "reads", old, *source)
        self.touches(equation, "writes", new, *target, copy=copy)
        to = self.name_of(target[0])
        outward = any(to == out.name for out in self.launch.outputs)
        if not (outward and made_by_a_pipeline(equation.source_info)):
            self.note_nan(equation, source[0], old)
        if self.trail is not None:
            self.trail.stored.add(to)
        if self.how is None or not self.how.late:
            new[...] = old
        if copy is not None:
            self.flights.start(copy)
        return []

    def _dma_wait(self, equation: JaxprEqn, values: Values) -> Values:
        _, target, semaphore = copy_parts(equation.params["tree"], values)
        if self.how is None:
            return []
        # a wait counts bytes: without bounds checks its part may reach outside
        size = bytes_of(*target) if self.unchecked else self.end(equation, *target).nbytes
        self.waits_for(equation, semaphore, signals_of(equation, size), "bytes")
        return []

    def waits_for(self, equation: JaxprEqn, semaphore: Part, count: int, unit: str) -> None:
        """Wait for "bytes" or "signals", and land the copies that this ends."""
        at = self.semaphore(equation, *semaphore)
        if endless := self.flights.wait(at, count):
            words = endless if unit == "bytes" else "semaphore_never_signalled"
            self.wrong(equation, words, wanted=count, due=self.flights.due[at])
        for flight in self.flights.landed if self.how is None or self.how.late else ():
            flight.target.array[...] = flight.source.array

    def _signal(self, equation: JaxprEqn, values: Values) -> Values:
        ref, transforms, count, device, _ = equation.params["args_tree"].unflatten(values)
        if self.how is None or device is not None:
            raise UnsupportedError("a signal to another device")
        self.flights.due[self.semaphore(equation, ref, transforms)] += int(count)
        return []

    def _wait(self, equation: JaxprEqn, values: Values) -> Values:
        ref, transforms, count, *_ = equation.params["args_tree"].unflatten(values)
        self.waits_for(equation, (ref, transforms), int(count), "signals")
        return []

    def _nothing(self, equation: JaxprEqn, values: Values) -> Values:
        """Skip a delay or a print with `how`; without `how`, JAX runs it."""
        return [] if self.how is not None else self.without_rule(equation, values)

    def _seeds(self, equation: JaxprEqn, values: Values) -> Values:
        if self.how is None:
            return self.without_rule(equation, values)
        self.random = np.random.default_rng([int(x) % 2**32 for x in values])
        return []

    def _draws(self, equation: JaxprEqn, values: Values) -> Values:
        if self.how is None:
            return self.without_rule(equation, values)
        bits = self.random.integers(-(2**31), 2**31, equation.params["shape"])
        return [bits.astype(equation.outvars[0].aval.dtype)]

    def _run_scoped(self, equation: JaxprEqn, values: Values) -> Values:
        jaxpr = scoped_program(equation)
        buffers = [self.unwritten(v.aval.shape, v.aval.dtype) for v in jaxpr.invars]
        self.buffers += buffers
        self.names += scoped_names(jaxpr)
        return self.run(jaxpr, values, buffers)


@lru_cache(maxsize=1024)
def signals_of(equation: JaxprEqn, size: int, which: int = 2) -> int:
    """The count that a copy adds to the semaphore at its end `which`: 1 if that is REGULAR."""
    parts, _ = copy_ends(equation.params["tree"], [v.aval for v in equation.invars])
    return size if "dma" in str(parts[which][0].dtype) else min(size, 1)


@lru_cache(maxsize=64)
def _launch(call: JaxprEqn, data: tuple[bytes, ...]) -> Launch:
    """The launch of a call whose first operands hold `data`; the others are only shapes."""
    pairs = zip(data, call.invars, strict=False)
    steering = [np.frombuffer(x, v.aval.dtype).reshape(v.aval.shape) for x, v in pairs]
    return program_of(call, steering=steering).launches[0]


def launch_of(call: JaxprEqn, values: Values) -> Launch:
    """The launch of a call on its operands; read once for the same bounds and scalars."""
    mapping = call.params["grid_mapping"]
    count = mapping.num_dynamic_grid_bounds + mapping.num_index_operands
    pairs = zip(call.invars[:count], values[:count], strict=True)
    return _launch(call, tuple(np.asarray(x, v.aval.dtype).tobytes() for v, x in pairs))


def _place(operand: Operand, starts: Sequence, step: int) -> tuple[Any, ...]:
    """The index of the part of its array that an operand holds at a step."""
    each = zip(starts[step], operand.block, strict=True)
    return tuple(start if block is None else slice(start, start + block) for start, block in each)


Machine.meanings = CONTROL | {
    "program_id": Machine._program_id,
    "num_programs": Machine._num_programs,
    "run_scoped": Machine._run_scoped,
    "debug_print": Machine._nothing,
    "debug_callback": Machine._nothing,
    "delay": Machine._nothing,
    "prng_seed": Machine._seeds,
    "prng_random_bits": Machine._draws,
    "dma_start": Machine._dma_start,
    "dma_wait": Machine._dma_wait,
    "semaphore_signal": Machine._signal,
    "semaphore_wait": Machine._wait,
    "get": Machine._load,
    "masked_load": Machine._load,
    "swap": Machine._store,
    "masked_swap": Machine._store,
    "addupdate": Machine._store,
}
