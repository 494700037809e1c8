"""Kernels of `pl.kernel` as launches: a `pallas_call` whose operands stay in HBM.

Several cores are the steps of a parallel axis, and `axis_index` is the program id. One core is a
launch without a grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn
from puzzles._program import PALLAS_CALL, as_tpu, equations, kernel_calls, launch_name, rewritten

_KIND = "mpmd_map"  # since JAX 0.10.1
_MESH = "TensorCoreMesh"  # other meshes are for other kinds of cores
_WRITTEN: WeakKeyDictionary[Jaxpr, JaxprEqn] = WeakKeyDictionary()  # by the kernel of the launch


def with_kernels_launched(program: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program with a `pallas_call` for each kernel of one function on TensorCores."""
    several_cores = any(_cores(equation) for equation in equations(program.jaxpr))
    return rewritten(program, _launched) if several_cores else program


def as_written(program: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program with JAX's own equation for each kernel of `pl.kernel`, to lower it.

    Mosaic refuses the barrier of a pipeline on several cores in any other equation.
    """

    def rule(call: JaxprEqn) -> JaxprEqn:
        own = _WRITTEN.get(call.params["jaxpr"]) if call.primitive.name == PALLAS_CALL else None
        return call if own is None else own.replace(invars=call.invars, outvars=call.outvars)

    return rewritten(program, rule)


def _cores(equation: JaxprEqn) -> Mapping[str, int]:
    """Name and size of each axis of cores; empty if it is not a kernel on TensorCores."""
    p = equation.params
    if equation.primitive.name == _KIND:
        alone = len(p["jaxprs"]) == 1 and not p["external_meshes"]
        return p["meshes"][0].shape if alone and type(p["meshes"][0]).__name__ == _MESH else {}
    if equation.primitive.name != PALLAS_CALL:  # of `kernels_on_old_jax`, before 0.10.1
        return {}
    grid = p["grid_mapping"]
    return dict(zip(grid.grid_names or (), grid.grid, strict=False))


def _launched(equation: JaxprEqn) -> JaxprEqn:
    cores = _cores(equation)
    if not cores:
        return equation
    p, axes = equation.params, list(cores)
    several = any(n > 1 for n in cores.values())
    numbers = [_number(n, len(axes)) if several else _zero() for n in range(len(axes))]

    def numbered(inner: JaxprEqn) -> JaxprEqn:
        if inner.primitive.name != "axis_index" or inner.params["axis_name"] not in axes:
            return inner
        number = numbers[axes.index(inner.params["axis_name"])]
        return number.replace(outvars=inner.outvars, source_info=inner.source_info)

    of_a_call = equation.primitive.name == PALLAS_CALL
    written = p["jaxpr"] if of_a_call else p["jaxprs"][0]
    kernel = rewritten(written.replace(), numbered)
    arrays = [v.aval for v in equation.invars]
    scratch = [v.aval for v in kernel.invars[len(arrays) + len(p["out_avals"]) :]]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    params = p["compiler_params"]
    if several and not of_a_call:
        words = ("parallel",) * len(axes)
        params = replace(params or pltpu.CompilerParams(), dimension_semantics=words)

    def launch(*arguments: Any) -> Any:
        return pl.pallas_call(
            lambda *_: None,  # replaced below by the traced kernel, which has names
            grid=tuple(cores.items()) if several else (),
            in_specs=[anywhere] * len(arrays),
            out_specs=[anywhere] * len(p["out_avals"]),
            out_shape=[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in p["out_avals"]],
            scratch_shapes=[a.memory_space(a.shape, a.dtype) for a in scratch],
            input_output_aliases=dict(p["input_output_aliases"]),
            compiler_params=params,
            interpret=p["interpret"],
            name=launch_name(equation),
        )(*arguments)

    forms = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)
    with as_tpu():
        (call,) = kernel_calls(jax.make_jaxpr(launch)(*forms).jaxpr)
    _WRITTEN[kernel] = equation
    return call.replace(
        params={**call.params, "jaxpr": kernel},
        invars=equation.invars, outvars=equation.outvars, source_info=equation.source_info,
    )  # fmt: skip


def _zero() -> JaxprEqn:
    """The equation of the number of a core that is alone."""
    (sum_,) = jax.make_jaxpr(lambda x: jax.lax.add(x, np.int32(0)))(np.int32(0)).eqns
    return sum_.replace(invars=sum_.invars[1:] * 2)


def _number(axis: int, axes: int) -> JaxprEqn:
    """The equation of a program id, which JAX traces in kernels only."""

    def kernel(o_ref: Any) -> None:
        o_ref[0] = pl.program_id(axis)

    form, anywhere = jax.ShapeDtypeStruct((1,), "int32"), pl.BlockSpec(memory_space=pltpu.SMEM)
    launch = pl.pallas_call(kernel, out_shape=form, grid=(1,) * axes, out_specs=anywhere)
    with as_tpu():
        (call,) = kernel_calls(jax.make_jaxpr(launch)().jaxpr)
    return next(e for e in call.params["jaxpr"].eqns if e.primitive.name == "program_id")
