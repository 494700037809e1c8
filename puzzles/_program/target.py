"""Tracing as if on a TPU, on a machine without one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import jax
from jax.sharding import AbstractMesh

from puzzles._jax import abstract_device, answers_about_tpus, instead


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


@contextmanager
def devices_called(kind: str) -> Iterator[None]:
    """Within it, who asks JAX for its devices or its backend is answered as on one such TPU."""
    device = SimpleNamespace(
        device_kind=kind, platform="tpu", id=0, process_index=0, num_cores=1, coords=(0, 0, 0)
    )
    with (
        instead(jax, "devices", lambda *_, **__: [device]),
        instead(jax, "local_devices", lambda *_, **__: [device]),
        instead(jax, "default_backend", lambda: "tpu"),
    ):
        yield


@functools.cache
def pipelines_on_cpu() -> None:
    """Let `pltpu.emit_pipeline` be traced, and interpreted, on a machine without a TPU.

    It asks which TPU it is on, to align its buffers; from now on the answer is a v5e. Nothing else
    changes; on a TPU, or when called again, nothing at all.
    """
    if jax.default_backend() == "tpu":
        return
    for module, name in answers_about_tpus():
        setattr(module, name, _without_tpu(getattr(module, name)))


def _without_tpu(answer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(answer)
    def answered(*args: Any) -> Any:
        with as_tpu():
            return answer(*args)

    return answered
