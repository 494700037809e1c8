"""One-dimensional masks that are turned into columns, which the TPU compiler refuses.

Mosaic lowers them, and libtpu then refuses them on every chip ("unsupported shape cast"; the one
that goes with JAX 0.10 does, that of 0.7.2 does not). Numbers it turns into columns, booleans it
does not, unless they lie along the sublanes already, as what is left of a sum over columns does.
tests/tpu/test_columns.py asks libtpu about each form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from puzzles._launch import kernel_calls, subjaxprs

_LANES, _SUBLANES = "lanes", "sublanes"
_REDUCTIONS = ("reduce_", "argmax", "argmin")
_Layouts = dict[Var, str]


def mask_columns(closed: ClosedJaxpr) -> Iterator[JaxprEqn]:
    """Each equation of a kernel that makes a column of a 1-D mask."""
    for call in kernel_calls(closed.jaxpr):
        yield from _walk(call.params["jaxpr"], {})


def _walk(jaxpr: Jaxpr, layouts: _Layouts) -> Iterator[JaxprEqn]:
    for equation in jaxpr.eqns:
        inner = list(subjaxprs(equation))
        for one in inner:
            arguments = equation.invars[len(equation.invars) - len(one.invars) :]
            given = {
                name: layouts[value]
                for name, value in zip(one.invars, arguments, strict=False)
                if isinstance(value, Var) and value in layouts
            }
            yield from _walk(one, given)
            if len(one.outvars) == len(equation.outvars):
                for name, value in zip(equation.outvars, one.outvars, strict=True):
                    if isinstance(value, Var) and value in given:
                        layouts[name] = given[value]
        if inner:
            continue
        if _stands_up(equation, layouts):
            yield equation
        layout = _layout(equation, layouts)
        if layout:
            layouts.update({v: layout for v in equation.outvars if len(_shape(v)) == 1})


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value.aval, "shape", ()))


def _stands_up(equation: JaxprEqn, layouts: Mapping[Var, str]) -> bool:
    """Whether a mask that lies along the lanes becomes a column here."""
    if equation.primitive.name not in ("reshape", "broadcast_in_dim", "expand_dims"):
        return False
    mask, shape = equation.invars[0], _shape(equation.outvars[0])
    if not isinstance(mask, Var) or layouts.get(mask) != _LANES or _shape(mask) == (1,):
        return False
    if mask.aval.dtype != np.bool_:
        return False
    if equation.primitive.name == "broadcast_in_dim":
        return equation.params["broadcast_dimensions"][0] != len(shape) - 1
    return len(shape) > 1 and shape[-1] == 1


def _layout(equation: JaxprEqn, layouts: Mapping[Var, str]) -> str | None:
    """How the 1-D result of an equation lies in a register, if we know."""
    name, shape = equation.primitive.name, _shape(equation.outvars[0]) if equation.outvars else ()
    if len(shape) != 1:
        return None
    if name == "iota":
        return _LANES
    whole = [v for v in equation.invars if hasattr(v.aval, "shape")]
    before = _shape(whole[0]) if whole else ()
    if name.startswith(_REDUCTIONS):
        return _remaining(before, equation.params["axes"])
    if name in ("reshape", "squeeze") and len(before) > 1:
        return _LANES if before[-1] == shape[0] else _SUBLANES if before[-1] == 1 else None
    if name in ("slice", "dynamic_slice") and len(before) == 1:
        return layouts.get(whole[0]) if isinstance(whole[0], Var) else None
    if name == "get":
        return _LANES if len(before) == 1 else None
    return _first(equation.invars, shape, layouts)


def _remaining(before: Sequence[int], axes: Sequence[int]) -> str | None:
    (left,) = [axis for axis in range(len(before)) if axis not in axes]
    return _LANES if left == len(before) - 1 else _SUBLANES


def _first(values: Sequence[Any], shape: tuple[int, ...], layouts: Mapping[Var, str]) -> str | None:
    """The compiler lets the first operand decide that is no single number spread out."""
    same = (v for v in values if isinstance(v, Var) and _shape(v) == shape)
    return next((layouts[v] for v in same if v in layouts), None)
