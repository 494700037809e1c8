"""`pl.kernel` on versions of JAX that lack it, or whose own returns zeros on a CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def kernels_on_old_jax() -> None:
    """Let cells that call `pl.kernel` with a `pltpu.TensorCoreMesh` run on every supported JAX.

    JAX has both since 0.11, and then this function does nothing. JAX 0.10.1 and 0.10.2 lack the
    mesh. Older versions lack `pl.kernel`, or have one with other arguments that returns zeros if it
    is interpreted: they get `_kernel`, which launches a `pallas_call`.
    """
    if hasattr(pltpu, "TensorCoreMesh"):
        return
    mesh: Callable[..., Any] = _tensorcore_mesh
    if jax.__version_info__ < (0, 10, 1):
        pl.kernel, mesh = _kernel, _Mesh
    pltpu.TensorCoreMesh = mesh


def _tensorcore_mesh(*, axis_name: str, num_cores: int = 1) -> Any:
    return pltpu.create_tensorcore_mesh(axis_name, num_cores=num_cores)


@dataclass(frozen=True, kw_only=True)
class _Mesh:
    axis_name: str
    num_cores: int = 1


def _kernel(
    body: Callable | None = None,
    out_type: Any = (),
    *,
    mesh: _Mesh,
    scratch_types: Mapping[str, Any] | Sequence = (),
    compiler_params: Any = None,
    interpret: Any = False,
    name: str | None = None,
) -> Callable[..., Any]:
    """`pl.kernel` of JAX 0.11: a `pallas_call` with a named parallel grid and operands in HBM.

    scratch_types: by the name of the body's keyword, or in the order of its last parameters.
    """
    if body is None:
        settings = dict(mesh=mesh, scratch_types=scratch_types, compiler_params=compiler_params)
        return lambda body: _kernel(body, out_type, interpret=interpret, name=name, **settings)
    named = scratch_types if isinstance(scratch_types, Mapping) else {}
    kernel = _with_positions(body, tuple(named)) if named else body
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    if mesh.num_cores > 1:
        settings = compiler_params or pltpu.CompilerParams()
        compiler_params = replace(settings, dimension_semantics=("parallel",))

    def launch(*arrays: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=((mesh.axis_name, mesh.num_cores),),
            in_specs=[anywhere] * len(arrays),
            out_specs=jax.tree.map(lambda _: anywhere, out_type),
            out_shape=out_type,
            scratch_shapes=list(named.values() if named else scratch_types),
            compiler_params=compiler_params,
            interpret=interpret,
            name=name or body.__name__,
        )(*arrays)

    return launch


def _with_positions(body: Callable, keywords: tuple[str, ...]) -> Callable[..., None]:
    """The body with its keywords as the last parameters, which keep their names."""

    def kernel(*refs: Any) -> None:
        first = len(refs) - len(keywords)
        body(*refs[:first], **dict(zip(keywords, refs[first:], strict=True)))

    names = inspect.signature(body).parameters
    order = [*(name for name in names if name not in keywords), *keywords]
    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, kind) for name in order]
    vars(kernel)["__signature__"] = inspect.Signature(parameters)
    return kernel
