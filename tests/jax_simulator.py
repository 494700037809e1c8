"""JAX's own simulator of a TPU, a second opinion on right kernels.

It waits forever for a copy that nobody starts, so do not run a learner's answer in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from puzzles._equations import compiler_param
from puzzles._jax import ClosedJaxpr, JaxprEqn, instead, jaxpr_as_fun
from puzzles._launch import Launch, Traced
from puzzles._program import run_program, single, with_interpret

try:
    from jax._src import callback
except ImportError:  # without this name, it runs more slowly
    callback = None  # type: ignore[assignment]


def in_jax(traced: Traced) -> list[np.ndarray]:
    """The flat results in JAX's own simulator; raises its exceptions."""
    with _quick_callbacks():
        return run_program(traced.jaxpr, traced.leaves, _launched)


def beyond_jax(launches: Sequence[Launch]) -> bool:
    """True if JAX's simulator fails for any of these launches, although a TPU does not."""
    cut_off = any(
        n % size
        for launch in launches
        for _, out in launch.aliases
        for n, size in zip(launch.outputs[out].shape, launch.outputs[out].sizes, strict=True)
    )
    return cut_off or any(
        any(pair) for one in launches for operand in one.operands for pair in operand.padding
    )


def _launched(call: JaxprEqn, values: list[Any]) -> Sequence[Any]:
    program, values = single(call, values)
    wanted = dict(
        out_of_bounds_reads="raise",
        uninitialized_memory="nan",
        dma_execution_mode="on_wait",
        buffer_bounds="logical",  # older versions lack it
    )
    known = inspect.signature(pltpu.InterpretParams).parameters
    strictest = pltpu.InterpretParams(**{k: v for k, v in wanted.items() if k in known})
    run = jaxpr_as_fun(with_interpret(_every_axis_has_a_word(program), strictest))
    try:
        return jax.block_until_ready(jax.jit(run)(*values))
    finally:
        pltpu.reset_tpu_interpret_mode_state()


def _every_axis_has_a_word(program: ClosedJaxpr) -> ClosedJaxpr:
    """`program` with `dimension_semantics` for the axes that `vmap` adds; the simulator asks."""
    (call,) = program.jaxpr.eqns
    grid, given = call.params["grid_mapping"], call.params["compiler_params"]
    words = compiler_param(given, "dimension_semantics")
    if words is None or not grid.vmapped_dims or len(words) == len(grid.grid):
        return program
    rest = iter(words)
    # The steps along axes that `vmap` adds are independent.
    axes = range(len(grid.grid))
    full = tuple("parallel" if a in grid.vmapped_dims else next(rest) for a in axes)
    params = {**call.params, "compiler_params": _with_words(given, full)}
    return program.replace(jaxpr=program.jaxpr.replace(eqns=[call.replace(params=params)]))


def _with_words(params: Any, words: tuple[str, ...]) -> Any:
    if isinstance(params, Mapping):  # 0.7 files them by backend
        return type(params)({k: _with_words(v, words) for k, v in params.items()})  # type: ignore[call-arg]
    return dataclasses.replace(params, dimension_semantics=words)


@contextlib.contextmanager
def _quick_callbacks() -> Iterator[None]:
    """JAX copies the arguments of every callback to a device and back; the simulator's want NumPy
    anyway. Without that detour it runs four times faster.
    """

    def call(*args: Any, callback: Any, **_: Any) -> list[np.ndarray]:
        given, keywords = jax.tree.unflatten(callback.in_tree, args)
        made = callback.callback_func(*given, **keywords)
        return [np.asarray(x) for x in jax.tree.leaves(made)]

    logger = logging.getLogger("jax._src.callback")
    was_disabled, logger.disabled = logger.disabled, True
    quickly = (
        instead(callback, "io_callback_impl", call)
        if hasattr(callback, "io_callback_impl")
        else contextlib.nullcontext()
    )
    try:
        with quickly:
            yield
    finally:
        logger.disabled = was_disabled
