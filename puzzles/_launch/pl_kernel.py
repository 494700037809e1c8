"""Kernels of `pl.kernel` as launches: JAX itself lowers them as a `pallas_call`."""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import pallas as pl

from puzzles._jax import ClosedJaxpr, JaxprEqn
from puzzles._program import as_tpu, equations, kernel_calls, rewritten

_KIND = "mpmd_map"  # since JAX 0.10
_MESH = "TensorCoreMesh"  # other meshes are for other kinds of cores


def with_kernels_launched(program: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program with a `pallas_call` for each kernel of one function on a TensorCore."""
    names = {equation.primitive.name for equation in equations(program.jaxpr)}
    return rewritten(program, _launched) if _KIND in names else program


def _launched(equation: JaxprEqn) -> JaxprEqn:
    if equation.primitive.name != _KIND:
        return equation
    p = equation.params
    if len(p["jaxprs"]) != 1 or type(p["meshes"][0]).__name__ != _MESH or p["external_meshes"]:
        return equation
    (kernel,), (mesh,) = p["jaxprs"], p["meshes"]
    if set(mesh.shape.values()) != {1}:  # several cores run the kernel at once
        return equation
    arrays = [v.aval for v in equation.invars]
    scratch = [v.aval for v in kernel.invars[len(arrays) + len(p["out_avals"]) :]]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)

    def launch(*arguments: Any) -> Any:
        return pl.pallas_call(
            lambda *_: None,  # replaced below by the traced kernel, which has names
            grid=tuple(mesh.shape.items()),
            in_specs=[anywhere] * len(arrays),
            out_specs=[anywhere] * len(p["out_avals"]),
            out_shape=[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in p["out_avals"]],
            scratch_shapes=[pl.MemoryRef(a.inner_aval, a.memory_space) for a in scratch],
            input_output_aliases=dict(p["input_output_aliases"]),
            compiler_params=p["compiler_params"],
            interpret=p["interpret"],
            name=p["name"],
        )(*arguments)

    forms = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)
    with as_tpu():
        (call,) = kernel_calls(jax.make_jaxpr(launch)(*forms).jaxpr)
    params = {**call.params, "jaxpr": kernel}
    return call.replace(
        params=params, invars=equation.invars, outvars=equation.outvars,
        source_info=equation.source_info,
    )  # fmt: skip
