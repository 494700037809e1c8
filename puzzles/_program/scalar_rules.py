"""Scalar primitives in NumPy with XLA's integer semantics, vectorised over the grid.

A value has one axis per grid axis, of length 1 if it does not vary along it, then its own axes. So
`program_id(1)` on a grid (4, 8, 2) is an array of shape (1, 8, 1), and values that depend only on
it are computed eight times, not sixty-four.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from puzzles._jax import JaxprEqn, bind_params

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


def elementwise(function: Callable[..., np.ndarray]) -> Rule:
    """A rule for `function`. Scalars next to arrays (a predicate, a bound) gain axes."""

    def rule(_: JaxprEqn, values: list[np.ndarray], rank: int) -> np.ndarray:
        ndims = {v.ndim for v in values}
        if len(ndims) == 1:
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
    if not np.issubdtype(x.dtype, np.integer):
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, np.ones_like(y), y)))


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    out = cases[0]
    for n, case in enumerate(cases[1:], 1):
        out = np.where(which if which.dtype == bool else which == n, case, out)
    return out


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


_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div,
    "rem": _rem, "max": np.maximum, "min": np.minimum, "neg": np.negative, "sign": np.sign,
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "square": np.square,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "select_n": _select, "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}  # fmt: skip
_BOOL = np.dtype(bool)
_SAME_DATA = (
    "reshape", "squeeze", "expand_dims", "copy", "copy_p", "stop_gradient", "multiple_of",
    "max_contiguous",
)  # fmt: skip
RULES: dict[str, Rule] = {
    **{name: elementwise(function) for name, function in _ELEMENTWISE.items()},
    **dict.fromkeys(_SAME_DATA, _same_data),
    "convert_element_type": lambda e, v, _: v[0] != 0 if e.params["new_dtype"] == _BOOL else v[0],
    "integer_pow": lambda e, v, _: np.power(v[0], e.params["y"]),
    "broadcast_in_dim": _broadcast_in_dim,
    "iota": _iota,
}
