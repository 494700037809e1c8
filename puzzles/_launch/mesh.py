"""Tracing as if on a TPU, on a machine without one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import jax
from jax.sharding import AbstractMesh

from puzzles._jax import abstract_device


def as_tpu() -> AbstractContextManager:
    """A context in which tracing takes the device for a TPU v5e; nothing changes on a real one.

    Newer JAX (0.10, not 0.7) asks for the chip where a kernel is lowered with a 1-D block or a
    traced `//`, and already when `emit_pipeline` is traced. Every equation remembers the mesh it
    was traced under, so entering this context only to lower comes too late.
    """
    if jax.default_backend() == "tpu":
        return nullcontext()
    device = abstract_device(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    if device is None:
        return nullcontext()
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))
