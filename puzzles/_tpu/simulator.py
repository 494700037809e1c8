"""The TPU simulator: out-of-bounds reads raise, uninitialised memory is NaN."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._jax import (
    ClosedJaxpr,
    JaxprEqn,
    compiler_param,
    forget_callbacks,
    interpret_params,
    is_key,
    key_bits,
    keys_of,
    reset_tpu_interpret_mode_state,
    simulated_ids,
    simulator_callbacks,
    with_compiler_param,
)
from puzzles._launch import (
    ERROR,
    Endless,
    Finding,
    Launch,
    Traced,
    Unreadable,
    faults,
    fingerprint,
    kernel_calls,
    on_cpu,
    remembered,
    run_program,
    single,
    step_by_step,
    with_interpret,
)
from puzzles._tpu import simulator_words as words
from puzzles._tpu.moments import copied
from puzzles._tpu.watch import Enough, How, Watch, comparable, floating


class SimulationError(Exception):
    """What the simulated TPU refuses: a `finding`, None where it is the simulator that stops."""

    def __init__(self, found: Finding | str) -> None:
        self.finding = None if isinstance(found, str) else found
        self.says = found if isinstance(found, str) else found.words
        super().__init__(self.says)


@dataclass
class Run:
    """What a simulated program gave, and what was seen of its launches meanwhile.

    cut: a launch ended before its last step, and others went on with numbers made up for it.
    """

    results: list[np.ndarray] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    cut: bool = False


def simulate(traced: Traced, *, seed: int = 0) -> list[np.ndarray]:
    """The flat results of `traced` on its leaves, on a simulated TPU with one core.

    Raises `SimulationError`, also for what JAX's simulator itself lets pass: a buffer touched while
    a copy is in flight, a copy nobody waits for, a wait that would never end, a `pl.ANY` ref that
    is indexed. `seed` orders parallel axes; copies are made when waited for.
    """
    if (known := foreseen(traced)) is not None:
        raise SimulationError(known)
    return run(traced, How(seed)).results


def run(traced: Traced, how: How) -> Run:
    """What it gives, and what was seen; nothing is foreseen."""
    for leaf in traced.leaves:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(f"simulating needs data, and {leaf} is only a shape")
    made = Run()
    launch = functools.partial(_launch, made, how)
    made.results += run_program(traced.jaxpr, traced.leaves, launch)
    return made


def same_in_numpy(program: Traced) -> bool:
    """Whether NumPy gives the same numbers as strictly as a TPU, and as JAX's interpreter does
    where memory that nobody wrote holds others. Parallel axes have to come first."""
    for launch in program.launches:
        words = [word.endswith("parallel") for word in launch.dimension_semantics or ()]
        if words != sorted(words, reverse=True):
            return False
    one = step_by_step(program, strict=True)
    other = None if one is None else step_by_step(program, blank=True)
    pairs = zip(one or (), other or (), strict=True)
    return other is not None and all(comparable(a) == comparable(b) for a, b in pairs)


def first_nan(traced: Traced) -> tuple[str, str] | None:
    """The ref, and the line, of the first NaN that is read from no input.

    None where it is not known, or NaN is among the data.
    """
    data = [x for x in map(np.asarray, traced.leaves) if floating(x)]
    if any(np.isnan(x).any() for x in data):
        return None
    for watch in run(traced, How()).watches:
        for seen in watch.nans:
            if seen.operand is not None and seen.operand not in watch.inputs and seen.what:
                return seen.operand, seen.what.partition(": ")[2]
    return None


def foreseen(traced: Traced, rewritten: bool = False) -> Finding | None:
    """What the simulator would stop at, or let pass, as far as the launches alone tell it.

    An indexed ref in HBM, a block that is nowhere or comes back after another, a copy by hand.
    Nothing where a launch cannot be read, as in a loop around it whose turns choose its blocks.
    rewritten: a block may come back if it is written whole each time.
    """
    try:
        launches = traced.launches
    except Unreadable:
        return None
    for call, launch in zip(kernel_calls(traced.jaxpr.jaxpr), launches, strict=True):
        kinds = ("out-of-bounds", "revisited")
        wrong = (f for f in faults(launch) if f.kind in kinds and f.severity == ERROR)
        if rewritten:
            wrong = (f for f in wrong if not again_whole(launch, f))
        found = words.indexed_hbm(call) or next(wrong, None) or copied(launch)
        if found is not None:
            return found
    return None


def again_whole(launch: Launch, found: Finding) -> bool:
    """Whether a finding is of an output that is revisited, and written whole each time."""
    return found.kind == "revisited" and launch.rewritten(found.operand)


def _launch(made_up: Run, how: How, call: JaxprEqn, values: list[Any]) -> Sequence:
    """A `pallas_call` in the simulator."""
    program, values = single(call, values)
    ids = _at_edges(program) if how.edges else None
    if ids is not None:
        program = _with_grid(program, tuple(map(len, ids)))
    equation, program = simulated(call, program, how.seed)
    watch = Watch(equation, how)
    made_up.watches.append(watch)
    try:
        with listening(watch), nullcontext() if ids is None else simulated_ids(ids):
            key = program if ids is None else (program, *(one.tobytes() for one in ids))
            return jax.block_until_ready(on_cpu(program, values, key=key))
    except Endless as error:
        at, name = watch.step, watch.launch
        raise SimulationError(Finding("hazard", ERROR, str(error), "", name, step=at)) from None
    except Exception as error:
        forget_callbacks()
        cause = watch.failure or error
        if not isinstance(cause, Exception):  # an interrupt that came inside a callback
            raise cause from None
        if isinstance(cause, Enough):
            made_up.cut = True
            return [drawn(v.aval, 0) for v in call.outvars]
        raise SimulationError(words.translate(cause, watch)) from None
    finally:
        reset_tpu_interpret_mode_state()


EDGE = 3  # steps of an axis at its edges: the first two, and the last


def _at_edges(program: ClosedJaxpr) -> list[np.ndarray]:
    """For each axis of the grid of a launch the program ids of its first steps and of its last."""
    (call,) = program.jaxpr.eqns
    grid = call.params["grid_mapping"].grid
    if not all(isinstance(n, int | np.integer) for n in grid):
        raise NotImplementedError("a grid whose length is data")
    cut = ([*range(n)] if n <= EDGE else [*range(EDGE - 1), n - 1] for n in grid)
    return [np.array(axis, np.int32) for axis in cut]


def _with_grid(program: ClosedJaxpr, grid: tuple[int, ...]) -> ClosedJaxpr:
    (call,) = program.jaxpr.eqns
    mapping = replace(call.params["grid_mapping"], grid=grid)
    call = call.replace(params={**call.params, "grid_mapping": mapping})
    return program.replace(jaxpr=program.jaxpr.replace(eqns=[call]))


def simulated(equation: JaxprEqn, program: ClosedJaxpr, seed: int) -> tuple[JaxprEqn, ClosedJaxpr]:
    """A launch and the program that simulates it, of all that are equal the first.

    The same kernel on other data is not compiled again, and its callbacks name the same lines.
    """
    program = _every_axis_has_a_word(program)
    words_of_axes = compiler_param(program.eqns[0].params["compiler_params"], "dimension_semantics")
    # Random numbers become part of the program, and compiling them takes a tenth of a check.
    shuffled = any(str(word).endswith("parallel") for word in words_of_axes or ())
    program = with_interpret(program, _strictest(seed if shuffled else None))
    return remembered(_programs, fingerprint(program, lines=True), lambda: (equation, program))


def _every_axis_has_a_word(program: ClosedJaxpr) -> ClosedJaxpr:
    """`program` with `dimension_semantics` for the axes that `vmap` adds; the simulator asks."""
    (call,) = program.jaxpr.eqns
    grid, given = call.params["grid_mapping"], call.params["compiler_params"]
    words = compiler_param(given, "dimension_semantics")
    if words is None or not grid.vmapped_dims or len(words) == len(grid.grid):
        return program
    rest = iter(words)
    # `vmap` makes axes whose steps share nothing: any order is right.
    axes = range(len(grid.grid))
    full = tuple("parallel" if a in grid.vmapped_dims else next(rest) for a in axes)
    params = {**call.params, "compiler_params": with_compiler_param(
        given, "dimension_semantics", full)}  # fmt: skip
    return program.replace(jaxpr=program.jaxpr.replace(eqns=[call.replace(params=params)]))


_programs: dict[Hashable, tuple[JaxprEqn, ClosedJaxpr]] = {}
_watching: list[Any] = []  # the last is the one whose launch runs


def _here(*given: Any) -> Any:
    return _watching[-1].here(*given)


def drawn(form: Any, seed: int) -> Any:
    """Made-up data of a shape and dtype: floats around zero, everything else 0."""
    if is_key(form):
        return keys_of(jnp.zeros(key_bits(form).shape, jnp.uint32), form)
    if not jnp.issubdtype(form.dtype, jnp.floating):
        return np.zeros(form.shape, form.dtype)
    return np.random.default_rng(seed).standard_normal(form.shape, np.float32).astype(form.dtype)


def _strictest(seed: int | None) -> Any:
    return interpret_params(
        out_of_bounds_reads="raise",
        uninitialized_memory="nan",
        dma_execution_mode="on_wait",
        buffer_bounds="logical",
        random_seed=seed,
        grid_point_recorder=_here,
    )


@contextlib.contextmanager
def listening(watch: Any) -> Iterator[None]:
    """Route the simulator's callbacks through `watch`, and keep JAX's log of them silent.

    JAX copies the arguments of every callback to a device and back; the simulator's want NumPy
    anyway. Without that detour it runs four times faster. Where the name is gone, it still runs.
    """
    logger = logging.getLogger("jax._src.callback")
    was_disabled, logger.disabled = logger.disabled, True
    _watching.append(watch)
    try:
        with simulator_callbacks(watch.call):
            yield
    finally:
        _watching.pop()
        logger.disabled = was_disabled
