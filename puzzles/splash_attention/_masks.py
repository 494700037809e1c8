"""Masks and caps as callers pass them, and the VMEM that stored patterns need."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def known_mask(mask: Any, N: int, T: int, S: int) -> Any:
    """Return the mask as a rule, or as a NumPy array of shape (T, S), (1, T, S) or (N, T, S).

    Raises:
        TypeError: The mask is traced, or is neither a rule nor an array.
        ValueError: The array has another shape.
    """
    if isinstance(mask, jax.core.Tracer):
        raise TypeError(
            "mask is traced. Its list of tiles is made before the launch: pass a NumPy array, or a "
            "rule, from outside of `jit`"
        )
    if callable(mask):
        return mask
    if not isinstance(mask, np.ndarray | jax.Array):
        raise TypeError(
            f"mask is a {type(mask).__name__}: pass a rule, such as "
            "`lambda row, column: column <= row`, or an array of booleans"
        )
    if mask.shape not in ((T, S), (1, T, S), (N, T, S)):
        raise ValueError(f"mask has shape {mask.shape}: give it {T, S}, or {N, T, S}")
    return np.asarray(mask)


def known_cap(soft_cap: Any) -> float | None:
    """Return the cap as a float, or None if there is none.

    Raises:
        TypeError: The cap is traced.
    """
    if isinstance(soft_cap, jax.core.Tracer):
        raise TypeError(
            "soft_cap is traced. It is a constant of the kernels: pass a Python float, and name "
            "soft_cap in `static_argnames` of `jit`"
        )
    return None if soft_cap is None else float(soft_cap)


def vmem_limit(patterns: Any) -> int | None:
    """Return a `vmem_limit_bytes` that has room for stored patterns, or None for the default.

    A block of booleans takes 4 bytes a number in VMEM, in two buffers: of 1024 × 1024, 8 MiB of the
    16 that a kernel gets by default on v5e and v5p.
    """
    large = patterns is not None and patterns.shape[1] * patterns.shape[2] > 2**19
    return 2**25 if large else None
