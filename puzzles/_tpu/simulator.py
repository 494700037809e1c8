"""A simulated TPU: memory that nobody wrote is NaN, and what must not be done there raises.

NumPy runs a launch as a TPU may (`simulate`). JAX's simulator is asked by `in_jax` alone, where an
author wants a second opinion on a kernel that is right.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
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
    ERROR,
    Enough,
    Finding,
    How,
    Launch,
    Ran,
    Traced,
    Unreadable,
    Unsafe,
    faults,
    floating,
    kernel_calls,
    launch_name,
    memory_space,
    on_cpu,
    outside,
    parameter_names,
    run_as,
    run_program,
    single,
    subjaxprs,
    told,
    visited,
    with_interpret,
)
from puzzles._rules import sentence
from puzzles._tpu.moments import copied


class SimulationError(Exception):
    """What the simulated TPU refuses: a `finding`, None where it is NumPy that cannot."""

    def __init__(self, found: Finding | str) -> None:
        self.finding = None if isinstance(found, str) else found
        self.says = found if isinstance(found, str) else found.words
        super().__init__(self.says)


def simulate(traced: Traced) -> list[np.ndarray]:
    """The flat results of `traced` on its leaves, on a simulated TPU with one core.

    Raises `SimulationError`, also for a buffer touched while a copy is in flight, a copy nobody
    waits for, a wait that would never end, a `pl.ANY` ref that is indexed. Parallel axes run
    backwards; copies are made when waited for.
    """
    if (known := foreseen(traced)) is not None:
        raise SimulationError(known)
    return _ran(traced).results


def _ran(traced: Traced) -> Ran:
    for leaf in traced.leaves:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(f"simulating needs data, and {leaf} is only a shape")
    try:
        ran = run_as(traced, How())
    except Unsafe as error:
        raise SimulationError(error.finding) from None
    except Exception as error:
        raise SimulationError(cannot(error)) from None
    if ran.cut:
        raise SimulationError(cannot(Enough("too many operations")))
    return ran


def cannot(error: Exception) -> str:
    """That NumPy does not run a program, and why."""
    return sentence("not in NumPy", why=str(error) or type(error).__name__)


def first_nan(traced: Traced) -> tuple[str, str] | None:
    """The ref, and the line, of the first NaN that is read from no input.

    None where it is not known, or NaN is among the data.
    """
    data = [x for x in map(np.asarray, traced.leaves) if floating(x)]
    if any(np.isnan(x).any() for x in data):
        return None
    for trail in _ran(traced).trails:
        for seen in trail.nans:
            if seen.operand is not None and seen.operand not in trail.inputs and seen.what:
                return seen.operand, seen.what.partition(": ")[2]
    return None


def foreseen(traced: Traced, rewritten: bool = False) -> Finding | None:
    """What would be stopped at, or let pass, as far as the launches alone tell it.

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
        found = _indexed_hbm(call) or next(wrong, None) or copied(launch)
        if found is not None:
            return found
    return None


def again_whole(launch: Launch, found: Finding) -> bool:
    """Whether a finding is of an output that is revisited, and written whole each time."""
    return found.kind == "revisited" and launch.rewritten(found.operand)


def _indexed_hbm(equation: JaxprEqn) -> Finding | None:
    """That the kernel indexes a ref in HBM; 0.7.2 lets it pass, 0.10 does not."""
    kernel = equation.params["jaxpr"]
    names = dict(zip(kernel.invars, parameter_names(equation), strict=True))
    for access, path in visited(kernel):
        if access.primitive.name in ("get", "swap", "addupdate", "masked_load", "masked_swap"):
            ref = access.invars[0]
            for around in reversed(path):
                for inner in subjaxprs(around):
                    ref = outside(around, inner).get(ref, ref)
            if memory_space(ref.aval) in ("any", "hbm"):
                name = names.get(ref)
                loads = access.primitive.name in ("get", "masked_load")
                words = "loaded from HBM" if loads else "stored to HBM"
                where = dict(launch=launch_name(equation), operand=name)
                which = f"`{name}`" if name else "A ref in HBM"
                return told("lowering", words, which=which, **where)
    return None


def beyond_jax(launches: Sequence[Launch]) -> str | None:
    """What JAX's simulator crashes on, or gets wrong, though a TPU does not."""
    for launch in launches:
        for _, position in launch.aliases:
            out = launch.outputs[position]
            if any(n % size for n, size in zip(out.shape, out.sizes, strict=True)):
                return "an aliased output whose last block is cut off"
        if any(any(pair) for operand in launch.operands for pair in operand.padding):
            return "the padding of a `pl.Element`"
    return None


def in_jax(traced: Traced) -> list[np.ndarray]:
    """The flat results in JAX's own simulator; what that raises passes through.

    For kernels that are right: it waits for ever for a copy that nobody starts.
    """
    with _quick_callbacks():
        return run_program(traced.jaxpr, traced.leaves, _in_jax)


def _in_jax(call: JaxprEqn, values: list[Any]) -> Sequence[Any]:
    program, values = single(call, values)
    strictest = interpret_params(
        out_of_bounds_reads="raise",
        uninitialized_memory="nan",
        dma_execution_mode="on_wait",
        buffer_bounds="logical",
    )
    try:
        return on_cpu(with_interpret(_every_axis_has_a_word(program), strictest), values)
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


@contextlib.contextmanager
def _quick_callbacks() -> Iterator[None]:
    """JAX copies the arguments of every callback to a device and back; the simulator's want NumPy
    anyway. Without that detour it runs four times faster. Where the name is gone, it still runs.
    """

    def call(*args: Any, callback: Any, **_: Any) -> list[np.ndarray]:
        given, keywords = jax.tree.unflatten(callback.in_tree, args)
        made = callback.callback_func(*given, **keywords)
        return [np.asarray(x) for x in jax.tree.leaves(made)]

    logger = logging.getLogger("jax._src.callback")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with simulator_callbacks(call):
            yield
    finally:
        logger.disabled = was_disabled
