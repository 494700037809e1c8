"""One-dimensional masks that are turned into columns, which the TPU compiler refuses.

Mosaic lowers such a mask, and since JAX 0.10 libtpu refuses it on every chip ("unsupported shape
cast") or crashes (JAX 0.12); vectors of numbers compile. Only masks computed from an iota are
detected, because the result of a sum over columns may be a column already.
tests/compile/test_columns.py compares with libtpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from puzzles._jax import ClosedJaxpr, JaxprEqn, Literal, Var
from puzzles._program import kernel_calls, outside, through


def mask_columns(closed: ClosedJaxpr) -> Iterator[JaxprEqn]:
    """Yield each equation of a kernel that turns a 1-D mask into a column."""
    for call in kernel_calls(closed.jaxpr):
        lying: set[Var] = set()  # the vectors that certainly run along the lanes
        for equation, begins, ends in through(call.params["jaxpr"], lambda *_: True):
            if begins is not None:
                lying.update(v for v, outer in outside(equation, begins).items() if outer in lying)
            elif ends is None:
                if _stands_up(equation, lying):
                    yield equation
                if _lies(equation, lying):
                    lying.update(equation.outvars)
            elif len(ends.outvars) == len(equation.outvars):
                results = zip(equation.outvars, ends.outvars, strict=True)
                lying.update(v for v, own in results if isinstance(own, Var) and own in lying)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value.aval, "shape", ()))


def _lies(equation: JaxprEqn, lying: set[Var]) -> bool:
    """True if the result is an iota, or elementwise of vectors along the lanes."""
    if [len(_shape(v)) for v in equation.outvars] != [1]:
        return False
    vectors = [v for v in equation.invars if not isinstance(v, Literal) and _shape(v)]
    if not vectors:
        return equation.primitive.name == "iota"
    same = _shape(equation.outvars[0])
    return all(v in lying and _shape(v) == same for v in vectors)


def _stands_up(equation: JaxprEqn, lying: set[Var]) -> bool:
    """True if the equation turns a mask along the lanes into a column."""
    if equation.primitive.name not in ("reshape", "broadcast_in_dim", "expand_dims"):
        return False
    mask, shape = equation.invars[0], _shape(equation.outvars[0])
    if not isinstance(mask, Var) or mask not in lying or mask.aval.dtype != np.bool_:
        return False
    if equation.primitive.name == "broadcast_in_dim":
        return equation.params["broadcast_dimensions"][0] != len(shape) - 1
    return len(shape) > 1 and shape[-1] == 1
