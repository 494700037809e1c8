"""The TPU simulator: out-of-bounds reads raise, uninitialised memory is NaN."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from puzzles._jax import (
    ClosedJaxpr,
    JaxprEqn,
    compiler_param,
    interpret_params,
    reset_tpu_interpret_mode_state,
    simulator_callbacks,
    with_compiler_param,
)
from puzzles._launch import (
    Endless,
    Traced,
    fingerprint,
    on_cpu,
    remembered,
    run_program,
    with_interpret,
)
from puzzles._tpu import simulator_words as words
from puzzles._tpu.watch import Watch


class SimulationError(Exception):
    """What the simulated TPU refuses: `says` in words, at grid step `step` where that is known."""

    def __init__(
        self, kind: str, operand: str | None, step: tuple[int, ...] | None, says: str
    ) -> None:
        super().__init__(says)
        self.kind, self.operand, self.step, self.says = kind, operand, step, says


def simulate(traced: Traced, *, seed: int = 0, eager: bool = False) -> list[np.ndarray]:
    """The flat results of `traced` on its leaves, on a simulated TPU with one core.

    Raises `SimulationError`, also for what JAX's simulator itself lets pass: a buffer touched while
    a copy is in flight, a copy nobody waits for, a wait that would never end, a `pl.ANY` ref that
    is indexed. `seed` orders parallel axes; copies are made when waited for, or at once if `eager`.
    """
    for leaf in traced.leaves:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(f"simulating needs data, and {leaf} is only a shape")

    launch = functools.partial(_launch, _strictest(seed, eager))
    return [np.asarray(x) for x in run_program(traced.jaxpr, traced.leaves, launch, _plainly)]


def _plainly(_: object, program: ClosedJaxpr, values: list[Any]) -> Sequence:
    return on_cpu(program, values)


def _launch(how: Any, group: list[JaxprEqn], program: ClosedJaxpr, values: list[Any]) -> Sequence:
    """`program` in the simulator; it is one equation, a `pallas_call`."""
    words.refuse_indexed_hbm(group[0], SimulationError)
    program = with_interpret(_every_axis_has_a_word(program), how)
    # The same kernel on other data is not compiled again, and its callbacks name the same lines.
    made = remembered(_programs, fingerprint(program, lines=True), lambda: (group[0], program))
    watch, program = Watch(made[0]), made[1]
    try:
        with _listening(watch):
            return jax.block_until_ready(on_cpu(program, values, key=program))
    except Endless as error:
        raise SimulationError("endless", None, watch.step, str(error)) from None
    except Exception as error:
        cause = watch.failure or error
        if not isinstance(cause, Exception):  # an interrupt that came inside a callback
            raise cause from None
        raise SimulationError(*words.translate(cause, watch)) from None
    finally:
        reset_tpu_interpret_mode_state()


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
_watching: list[Watch] = []  # the last is the one whose launch runs


def _here(*given: Any) -> Any:
    return _watching[-1].here(*given)


def _strictest(seed: int, eager: bool) -> Any:
    return interpret_params(
        out_of_bounds_reads="raise",
        uninitialized_memory="nan",
        dma_execution_mode="eager" if eager else "on_wait",
        buffer_bounds="logical",
        random_seed=seed,
        grid_point_recorder=_here,
    )


@contextlib.contextmanager
def _listening(watch: Watch) -> Iterator[None]:
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
