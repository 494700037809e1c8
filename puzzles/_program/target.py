"""Tracing as if on a TPU, on a machine without one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import jax
from jax.sharding import AbstractMesh

from puzzles._jax import abstract_device, answers_about_tpus, instead


@contextmanager
def as_tpu() -> Iterator[None]:
    """Context manager: tracing and lowering see a TPU v5e. On a real TPU it changes nothing.

    JAX 0.10 and newer ask for the chip when they lower a 1-D block or a traced `//`, and when they
    trace `emit_pipeline`. Every equation remembers the mesh under which it was traced, so entering
    this context only to lower is too late. A `shard_map` has a mesh of its own without a
    chip, so JAX's questions about the chip are answered here.
    """
    with ExitStack() as stack:
        if jax.default_backend() != "tpu":
            stack.enter_context(_tpu_mesh())
            for module, name in answers_about_tpus():
                stack.enter_context(instead(module, name, _without_tpu(getattr(module, name))))
        yield


def _tpu_mesh() -> AbstractContextManager:
    """A context of an abstract TPU v5e."""
    device = abstract_device(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    if device is None:
        return nullcontext()
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


@contextmanager
def devices_called(kind: str) -> Iterator[None]:
    """Context manager: `jax.devices()` and `jax.default_backend()` report one TPU of this kind."""
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
    """Make `pltpu.emit_pipeline` work on a machine without a TPU.

    It asks JAX for the TPU, to align its buffers; from now on the answer is a v5e. On a TPU, and
    when called again, this function does nothing.
    """
    if jax.default_backend() == "tpu":
        return
    for module, name in answers_about_tpus():
        setattr(module, name, _without_tpu(getattr(module, name)))


def _without_tpu(answer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(answer)
    def answered(*args: Any) -> Any:
        with _tpu_mesh():
            return answer(*args)

    return answered
