"""Scalar primitives in NumPy with XLA's integer semantics, vectorised over the grid.

A value is one number for each grid step, with one axis per grid axis, of length 1 where it does not
vary. So `program_id(1)` on a grid (4, 8, 2) is an array of shape (1, 8, 1), and what follows from
it alone is computed eight times, not sixty-four.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from puzzles._jax import JaxprEqn, bind_params


def evaluate(equation: JaxprEqn, values: list[np.ndarray], rank: int) -> list[np.ndarray]:
    """Results of `equation` on known values with `rank` grid axes; JAX computes what NumPy has not.

    Raises whatever JAX raises for a primitive that cannot run by itself.
    """
    name = equation.primitive.name
    function = FUNCTIONS.get(name)
    if function is None or (name == "mul" and equation.params.get("out_dtype") is not None):
        return _by_jax(equation, values, rank)
    result = np.asarray(function(*values))
    return [result.astype(equation.outvars[0].aval.dtype, copy=False)]


def bind(equation: JaxprEqn, *values: Any) -> list[Any]:
    """Bind an equation's primitive, as every supported JAX version wants it."""
    functions, params = bind_params(equation)
    with equation.ctx.manager:
        out = equation.primitive.bind(*functions, *values, **params)
    return list(out) if equation.primitive.multiple_results else [out]


def _by_jax(equation: JaxprEqn, values: list[np.ndarray], rank: int) -> list[np.ndarray]:
    lead = np.broadcast_shapes((1,) * rank, *(v.shape for v in values))
    pairs = zip(values, equation.invars, strict=True)
    flat = [np.broadcast_to(v, lead).reshape(-1, *var.aval.shape) for v, var in pairs]
    with jax.ensure_compile_time_eval():
        each = jax.vmap(lambda *one: bind(equation, *one), axis_size=math.prod(lead))
        out = each(*flat)
    return [np.asarray(o).reshape(lead) for o in out]


def _div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not np.issubdtype(x.dtype, np.integer):
        return np.true_divide(x, y)
    safe = np.where(y == 0, np.ones_like(y), y)
    floor = np.floor_divide(x, safe)
    truncated = floor + ((np.fmod(x, safe) != 0) & ((x < 0) != (safe < 0)))
    return np.where(y == 0, np.array(-1).astype(x.dtype), truncated)


def _rem(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not np.issubdtype(x.dtype, np.integer):
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, np.ones_like(y), y)))


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    out = cases[0]
    for n, case in enumerate(cases[1:], 1):
        out = np.where(which == n, case, out)
    return out


def _same(x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    return x


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div,
    "rem": _rem, "max": np.maximum, "min": np.minimum, "neg": np.negative, "sign": np.sign,
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "square": np.square,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "select_n": _select, "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    **dict.fromkeys((
        "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type", "copy",
        "copy_p", "stop_gradient", "multiple_of", "max_contiguous",
    ), _same),
}  # fmt: skip
