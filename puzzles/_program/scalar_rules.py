"""Scalar primitives in NumPy with XLA's integer semantics, vectorised over the grid.

A value has one axis per grid axis, of length 1 if it does not vary along it, then its own axes. So
`program_id(1)` on a grid (4, 8, 2) is an array of shape (1, 8, 1), and values that depend only on
it are computed eight times, not sixty-four.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._equations import bind_params
from puzzles._jax import JaxprEqn

Rule = Callable[[JaxprEqn, list[np.ndarray], int], np.ndarray]


def evaluate(equation: JaxprEqn, values: list[np.ndarray], rank: int) -> list[np.ndarray]:
    """The results of `equation` on values with `rank` grid axes.

    JAX computes primitives without a NumPy rule, and may raise for those that cannot run alone.
    """
    name = equation.primitive.name
    rule = RULES.get(name)
    if rule is None or (name == "mul" and equation.params.get("out_dtype") is not None):
        return _by_jax(equation, values, rank)
    result = np.asarray(rule(equation, values, rank))
    return [result.astype(equation.outvars[0].aval.dtype, copy=False)]


def _by_jax(equation: JaxprEqn, values: list[np.ndarray], rank: int) -> list[np.ndarray]:
    lead = np.broadcast_shapes(*(v.shape[:rank] for v in values))
    flat = [np.broadcast_to(v, lead + v.shape[rank:]).reshape(-1, *v.shape[rank:]) for v in values]
    functions, params = bind_params(equation)
    with jax.ensure_compile_time_eval(), equation.ctx.manager:
        out = jax.vmap(lambda *row: equation.primitive.bind(*functions, *row, **params))(*flat)
    outputs = out if equation.primitive.multiple_results else [out]
    return [np.asarray(o).reshape(lead + o.shape[1:]) for o in outputs]


@cache
def narrow(dtype: Any) -> bool:
    """True for a float of fewer than 32 bits."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def wide(x: np.ndarray) -> np.ndarray:
    """Narrow floats as f32, because the CPU computes in f32 and rounds once."""
    return x.astype(np.float32) if narrow(x.dtype) else x


def elementwise(function: Callable[..., np.ndarray]) -> Rule:
    """A rule for `function`. Scalars next to arrays (a predicate, a bound) gain axes."""

    def rule(_: JaxprEqn, values: list[np.ndarray], rank: int) -> np.ndarray:
        if not rank or len(ndims := {v.ndim for v in values}) == 1:
            return function(*values)
        ndim = max(ndims)
        lined = [
            v.reshape(v.shape[:rank] + (1,) * (ndim - v.ndim) + v.shape[rank:]) for v in values
        ]
        return function(*lined)

    return rule


def _div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not np.issubdtype(x.dtype, np.integer):
        return np.true_divide(x, y)
    safe = np.where(y == 0, np.ones_like(y), y)
    floor = np.floor_divide(x, safe)
    truncated = floor + ((np.fmod(x, safe) != 0) & ((x < 0) != (safe < 0)))
    return np.where(y == 0, np.array(-1).astype(x.dtype), truncated)


def _rem(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if np.all(y) or not np.issubdtype(x.dtype, np.integer):
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, np.ones_like(y), y)))


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    if not which.ndim:
        return cases[int(which)]
    out = cases[0]
    for n, case in enumerate(cases[1:], 1):
        out = np.where(which if which.dtype == bool else which == n, case, out)
    return out


def _cast(equation: JaxprEqn, values: list[np.ndarray], _: int) -> np.ndarray:
    """Cast; a float beyond an integer's range becomes the range's end, and NaN becomes 0."""
    (x,), dtype = values, np.dtype(equation.params["new_dtype"])
    if dtype.kind == "b":
        return x != 0
    if dtype.kind in "iu" and jnp.issubdtype(x.dtype, jnp.floating):
        ends, whole = np.iinfo(dtype), np.nan_to_num(np.trunc(x.astype(np.float64)))
        return np.clip(whole, ends.min, ends.max)
    return x.astype(dtype)


def _same_data(equation: JaxprEqn, values: list[np.ndarray], rank: int) -> np.ndarray:
    return values[0].reshape(values[0].shape[:rank] + equation.outvars[0].aval.shape)


def _broadcast_in_dim(equation: JaxprEqn, values: list[np.ndarray], rank: int) -> np.ndarray:
    own = [1] * len(equation.params["shape"])
    for axis, size in zip(
        equation.params["broadcast_dimensions"], values[0].shape[rank:], strict=True
    ):
        own[axis] = size
    lead = values[0].shape[:rank]
    return np.broadcast_to(values[0].reshape(lead + tuple(own)), lead + equation.params["shape"])


def _iota(equation: JaxprEqn, _: list[np.ndarray], rank: int) -> np.ndarray:
    shape, axis = equation.params["shape"], equation.params["dimension"]
    along = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.broadcast_to(along, shape).reshape((1,) * rank + tuple(shape))


ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div,
    "rem": _rem, "max": np.maximum, "min": np.minimum, "neg": np.negative,
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),  # the sign of -0.0 is -0.0
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "square": np.square,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "select_n": _select, "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}  # fmt: skip
_SAME_DATA = (
    "reshape", "squeeze", "expand_dims", "copy", "copy_p", "stop_gradient", "multiple_of",
    "max_contiguous",
)  # fmt: skip
RULES: dict[str, Rule] = {
    **{name: elementwise(function) for name, function in ELEMENTWISE.items()},
    **dict.fromkeys(_SAME_DATA, _same_data),
    "convert_element_type": _cast,
    "integer_pow": lambda equation, values, _: np.power(wide(values[0]), equation.params["y"]),
    "broadcast_in_dim": _broadcast_in_dim,
    "iota": _iota,
}
