"""One-dimensional masks that are turned into columns, which the TPU compiler refuses.

Mosaic lowers them, and libtpu then refuses them on every chip ("unsupported shape cast"; the one
that goes with JAX 0.10 does, that of 0.7.2 does not). Numbers it turns into columns, booleans it
does not. Known here are masks of numbers that begin with an iota; others are left to libtpu,
since what is left of a sum over columns may stand up. tests/compile/test_columns.py asks libtpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from puzzles._jax import ClosedJaxpr, JaxprEqn, Literal, Var
from puzzles._program import kernel_calls, outside, through


def mask_columns(closed: ClosedJaxpr) -> Iterator[JaxprEqn]:
    """Each equation of a kernel that makes a column of a 1-D mask."""
    for call in kernel_calls(closed.jaxpr):
        lying: set[Var] = set()  # the vectors that lie along the lanes for certain
        for equation, begins, ends in through(call.params["jaxpr"], lambda *_: True):
            if begins is not None:
                lying.update(v for v, one in outside(equation, begins).items() if one in lying)
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
    """Whether the result is an iota, or made element by element of vectors that lie."""
    if [len(_shape(v)) for v in equation.outvars] != [1]:
        return False
    vectors = [v for v in equation.invars if not isinstance(v, Literal) and _shape(v)]
    if not vectors:
        return equation.primitive.name == "iota"
    same = _shape(equation.outvars[0])
    return all(v in lying and _shape(v) == same for v in vectors)


def _stands_up(equation: JaxprEqn, lying: set[Var]) -> bool:
    """Whether a mask that lies along the lanes becomes a column here."""
    if equation.primitive.name not in ("reshape", "broadcast_in_dim", "expand_dims"):
        return False
    mask, shape = equation.invars[0], _shape(equation.outvars[0])
    if not isinstance(mask, Var) or mask not in lying or mask.aval.dtype != np.bool_:
        return False
    if equation.primitive.name == "broadcast_in_dim":
        return equation.params["broadcast_dimensions"][0] != len(shape) - 1
    return len(shape) > 1 and shape[-1] == 1
