"""Compiling programs for the CPU: quickly, once for all that are equal, and ahead of their turn."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import jax

from puzzles._jax import CPU_FLAGS, ClosedJaxpr, jaxpr_as_fun
from puzzles._launch.faithful import faithful

# Without LLVM's optimiser and XLA's fusion emitters a kernel compiles in a third of the time and
# runs, at the sizes of a puzzle, just as fast. The algebraic simplifier would turn a product with
# a mask into a choice, and NaN times 0, which a TPU leaves NaN, into 0.
_QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_disable_hlo_passes": "algsimp",
}
# A program, and a key that it shares with all that are equal.
Keyed = tuple[ClosedJaxpr, Hashable]
Compiled = Callable[..., list[jax.Array]]

T = TypeVar("T")
_KEPT = 500
_compiled: dict[Hashable, Future[Compiled]] = {}
_lock = threading.Lock()


def remembered(cache: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """`cache[key]`, made where it is missing; of many the oldest is forgotten."""
    if key not in cache:
        if len(cache) >= _KEPT:
            cache.pop(next(iter(cache)))
        cache[key] = make()
    return cache[key]


def compiled(program: ClosedJaxpr, key: Hashable, args: Sequence[Any]) -> Compiled:
    """`program` for arguments like `args`; who asks while another thread compiles it waits."""
    config = jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision
    full = key, config, tuple((x.shape, x.dtype) for x in args)
    mine: Future[Compiled] = Future()
    with _lock:
        future = remembered(_compiled, full, lambda: mine)
    if future is mine:
        try:
            mine.set_result(_compile(program, args))
        except BaseException as error:
            with _lock:
                _compiled.pop(full, None)
            mine.set_exception(error)
    return future.result()


def _compile(program: ClosedJaxpr, args: Sequence[Any]) -> Compiled:
    lowered = jax.jit(jaxpr_as_fun(faithful(program))).lower(*args)
    try:
        return lowered.compile(CPU_FLAGS | _QUICK)
    except Exception:  # an XLA that does not know one of the flags
        return lowered.compile(CPU_FLAGS)


@contextmanager
def ahead(programs: Iterable[Keyed]) -> Iterator[None]:
    """Within it, other threads compile `programs`, in this order.

    XLA compiles without holding Python up, so on two cores others run meanwhile. PUZZLES_AHEAD=0
    leaves it out, for processes that fill all cores: some of it is compiled in vain.
    """
    if os.environ.get("PUZZLES_AHEAD") == "0":
        programs = ()

    def forms(program: ClosedJaxpr) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.jaxpr.invars]

    begun = [_threads().submit(compiled, one, key, forms(one)) for one, key in programs]
    try:
        yield
    finally:
        for each in begun:
            each.cancel()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, thread_name_prefix="compiling")
