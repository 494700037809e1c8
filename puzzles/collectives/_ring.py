"""The position on a ring and the barrier that the kernels of the later puzzles use."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def neighbours(axis: str = "x") -> tuple[jax.Array, jax.Array, jax.Array, int]:
    """This device, its left and its right neighbour on the ring, and the number of devices."""
    me, n = lax.axis_index(axis), lax.axis_size(axis)
    return me, lax.rem(me + n - 1, n), lax.rem(me + 1, n), n


def barrier(*others: Any) -> None:
    """Wait until each of `others` is in the kernel; each of them must call it with this device.

    The launch needs a `collective_id`.
    """
    arrived = pltpu.get_barrier_semaphore()
    for other in others:
        pl.semaphore_signal(arrived, 1, device_id=(other,))
    pl.semaphore_wait(arrived, len(others))
