"""Compiling programs for the CPU: quickly, and once for all that are equal."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax

from puzzles._jax import CPU_FLAGS, NAN_FLAGS, QUICK_FLAGS, ClosedJaxpr, jaxpr_as_fun
from puzzles._launch.faithful import faithful

Compiled = Callable[..., list[jax.Array]]

T = TypeVar("T")
_KEPT = 500
_compiled: dict[Hashable, Compiled] = {}


def remembered(cache: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """`cache[key]`, made where it is missing; of many the oldest is forgotten."""
    if key not in cache:
        if len(cache) >= _KEPT:
            cache.pop(next(iter(cache)))
        cache[key] = make()
    return cache[key]


def compiled(program: ClosedJaxpr, key: Hashable, args: Sequence[Any]) -> Compiled:
    """`program` for arguments like `args`; equal programs have an equal `key`."""
    config = jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision
    full = key, config, tuple((x.shape, x.dtype) for x in args)
    return remembered(_compiled, full, lambda: _compile(program, args))


def _compile(program: ClosedJaxpr, args: Sequence[Any]) -> Compiled:
    lowered = jax.jit(jaxpr_as_fun(faithful(program))).lower(*args)
    try:
        return lowered.compile(CPU_FLAGS | QUICK_FLAGS | NAN_FLAGS)
    except Exception:  # an XLA that does not know one of the flags
        return lowered.compile(CPU_FLAGS)
