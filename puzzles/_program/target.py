"""Tracing as if on a TPU, on a machine without one."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import jax
from jax.experimental.pallas import tpu as pltpu
from jax.extend import backend
from jax.sharding import AbstractMesh

from puzzles._jax import abstract_device, answers_about_tpus, instead

_devices: list[dict[str, Any]] = [dict(device_kind="TPU v5 lite", num_cores=1)]


@contextmanager
def aimed_at(kind: str, cores: int = 1) -> Iterator[None]:
    """Context manager: `as_tpu` means devices of this kind, with so many cores each."""
    # The key of a trace that JAX keeps has the kind of device, except in a `shard_map`.
    forget = jax.clear_caches if kind != _devices[-1]["device_kind"] else lambda: None
    _devices.append(dict(device_kind=kind, num_cores=cores))
    forget()
    try:
        yield
    finally:
        _devices.pop()
        forget()


@contextmanager
def as_tpu() -> Iterator[None]:
    """Context manager: tracing and lowering see a TPU, a v5e unless it is within `aimed_at`.
    On a real TPU it changes nothing.

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
            # Kernels that import `get_tpu_info` itself call these functions.
            function = inspect.unwrap(getattr(pltpu, "get_tpu_info", _tpu_mesh))
            home = sys.modules[function.__globals__["__name__"]]
            for name in {"get_device_kind", "get_num_device_cores"} & vars(home).keys():
                answer = _devices[-1]["device_kind" if name.endswith("kind") else "num_cores"]
                stack.enter_context(instead(home, name, lambda answer=answer: answer))
        yield


def _tpu_mesh() -> AbstractContextManager:
    """A context of an abstract TPU."""
    device = abstract_device(**_devices[-1], platform="tpu")
    if device is None:
        return nullcontext()
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


class _Device(SimpleNamespace):
    """A device as JAX describes it, in sets too."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@contextmanager
def devices_called() -> Iterator[None]:
    """Context manager: JAX's devices, its default one and its backend are the TPU of `as_tpu`."""
    places = dict(id=0, process_index=0, coords=(0, 0, 0))
    device = _Device(platform="tpu", **places, **_devices[-1])
    with (
        as_tpu(),  # a later one finds a TPU, and changes nothing
        instead(jax, "devices", lambda *_, **__: [device]),
        instead(jax, "local_devices", lambda *_, **__: [device]),
        instead(jax, "default_backend", lambda: "tpu"),
        instead(backend, "get_default_device", lambda: device),
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
