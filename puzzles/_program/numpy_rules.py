"""Arithmetic on arrays in NumPy, as XLA does it on a CPU: what scalars alone do not need.

A rule is given an equation's parameters and its operands. It raises where it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._program.scalar_rules import RULES, evaluate

Rule = Callable[[dict[str, Any], list[np.ndarray]], Any]

# Sums, whose order in a narrow float decides what is lost: that is XLA's to say.
_SUMS = {"dot_general", "reduce_sum", "cumsum", "scatter-add"}


def bitcast(value: np.ndarray, dtype: Any) -> np.ndarray:
    """The bits as another type: rows that lie in one word of 32 bits become one, or come of one."""
    old, new = value.dtype.itemsize, np.dtype(dtype).itemsize
    *leading, rows, lanes = value.shape
    if new > old:
        words = value.reshape(*leading, rows * old // new, new // old, lanes)
        return np.ascontiguousarray(np.swapaxes(words, -1, -2)).view(dtype)[..., 0]
    parts = np.ascontiguousarray(value)[..., None].view(dtype)
    return np.swapaxes(parts, -1, -2).reshape(*leading, rows * old // new, lanes)


def known(equation: JaxprEqn) -> bool:
    """Whether `computed` may be asked."""
    name = equation.primitive.name
    if name in _SUMS and narrow(equation.outvars[0].aval.dtype):
        return False
    return name in BLOCKS or (name in RULES and equation.params.get("out_dtype") is None)


def computed(equation: JaxprEqn, values: list[np.ndarray]) -> list[np.ndarray]:
    """Results of an equation that is `known`, of the dtypes that it says."""
    rule = BLOCKS.get(equation.primitive.name)
    if rule is None:
        return evaluate(equation, values, 0)
    made = rule(equation.params, values)
    results = made if equation.primitive.multiple_results else [made]
    pairs = zip(results, equation.outvars, strict=True)
    return [np.asarray(x).astype(v.aval.dtype, copy=False) for x, v in pairs]


@cache
def narrow(dtype: Any) -> bool:
    """Whether it is a float below 32 bits."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def _wide(x: np.ndarray) -> np.ndarray:
    """Narrow floats in f32: there the CPU computes, and rounds once."""
    return x.astype(np.float32) if narrow(x.dtype) else x


def _elementwise(function: Callable) -> Rule:
    return lambda _, values: function(*map(_wide, values))


def _exp(x: np.ndarray) -> np.ndarray:
    """Without subnormal numbers, which are 0 on a TPU, and to XLA on a CPU."""
    made = np.exp(_wide(x))
    return np.where(made < np.finfo(made.dtype).tiny, 0, made)


def _exp2(_: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    """As JAX has it on a CPU: the exponent is rounded to the operand's dtype before."""
    return _exp(values[0] * values[0].dtype.type(math.log(2)))


def _cast(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    """Of a float beyond an integer's range that range's end, and of NaN 0."""
    (x,), dtype = values, np.dtype(params["new_dtype"])
    if dtype.kind == "b":
        return x != 0
    if dtype.kind in "iu" and jnp.issubdtype(x.dtype, jnp.floating):
        ends, whole = np.iinfo(dtype), np.nan_to_num(np.trunc(x.astype(np.float64)))
        return np.clip(whole, ends.min, ends.max)
    return x.astype(dtype)


def _dot(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    (over, other_over), (shared, other_shared) = params["dimension_numbers"]
    x, lead, rows = _matrices(values[0], shared, over)
    y, _, columns = _matrices(values[1], other_shared, other_over)
    return _product(x, y.swapaxes(-1, -2)).reshape([*lead, *rows, *columns])


def _product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of matrices. Sums of integers below 2**53 are exact in f64, which has a fast product."""
    if any(one.dtype.kind not in "iub" for one in (x, y)):
        return np.matmul(_wide(x), _wide(y))
    bits = 8 * (x.dtype.itemsize + y.dtype.itemsize) + x.shape[-1].bit_length()
    if bits < 53:
        return np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(np.int64)
    return np.matmul(x.astype(np.int64), y.astype(np.int64))


def _matrices(
    x: np.ndarray, shared: Sequence[int], over: Sequence[int]
) -> tuple[np.ndarray, list[int], list[int]]:
    """Matrices whose columns are summed over, and the sizes of their batch and of their rows."""
    rows = [a for a in range(x.ndim) if a not in (*shared, *over)]
    sizes = [[x.shape[a] for a in axes] for axes in (shared, rows, over)]
    ordered = x.transpose(*shared, *rows, *over).reshape(*sizes[0], *map(math.prod, sizes[1:]))
    return ordered, sizes[0], sizes[1]


def _reduced(function: Callable) -> Rule:
    return lambda params, values: function(values[0], axis=tuple(params["axes"]))


def _first(function: Callable) -> Rule:
    return lambda params, values: function(values[0], axis=params["axes"][0])


def _cumsum(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    (x,), axis = values, params["axis"]
    if params["reverse"]:
        return np.flip(np.cumsum(np.flip(x, axis), axis, x.dtype), axis)
    return np.cumsum(x, axis, x.dtype)


def _slice(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    strides = params["strides"] or (1,) * values[0].ndim
    each = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return values[0][tuple(slice(*one) for one in each)]


def _dynamic_slice(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    x, *starts = values
    return x[_clamped(x.shape, starts, params["slice_sizes"])]


def _dynamic_update_slice(_: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    x, update, *starts = values
    made = x.copy()
    made[_clamped(x.shape, starts, update.shape)] = update
    return made


def _clamped(
    shape: Sequence[int], starts: Sequence[np.ndarray], sizes: Sequence[int]
) -> tuple[slice, ...]:
    each = zip(shape, starts, sizes, strict=True)
    firsts = [(min(max(int(start), 0), n - size), size) for n, start, size in each]
    return tuple(slice(first, first + size) for first, size in firsts)


def _windows(
    shape: Sequence[int],
    indices: np.ndarray,
    axes: Sequence[int],
    sizes: Sequence[int],
    batches: dict[int, int],
    clamps: bool,
) -> tuple[np.ndarray, ...]:
    """An index of windows of an array: `indices` has for each where it starts along `axes`.

    batches: axes of the array along which the axis of `indices` that is given there runs, too.
    clamps: a window that reaches outside is moved inside; otherwise there must be none.
    """
    place = []
    for axis, (n, size) in enumerate(zip(shape, sizes, strict=True)):
        along = np.arange(size).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        starts = np.zeros(indices.shape[:-1], np.int64)
        if axis in batches:
            starts = np.indices(starts.shape)[batches[axis]]
        elif axis in axes:
            starts = indices[..., axes.index(axis)]
        inside = np.clip(starts, 0, n - size).astype(np.int64)
        if not clamps and (inside != starts).any():
            raise NotImplementedError
        place.append(inside.reshape(*inside.shape, *(1,) * len(shape)) + along)
    return tuple(place)


def _gather(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    (x, indices), of, sizes = values, params["dimension_numbers"], params["slice_sizes"]
    batches = dict(zip(of.operand_batching_dims, of.start_indices_batching_dims, strict=True))
    found = x[_windows(x.shape, indices, of.start_index_map, sizes, batches, clamps=True)]
    if "FILL" in str(params["mode"]):
        most = [x.shape[axis] - sizes[axis] for axis in of.start_index_map]
        found[((indices < 0) | (indices > most)).any(-1)] = params["fill_value"]
    batch = indices.ndim - 1
    found = found.squeeze(tuple(batch + a for a in (*of.collapsed_slice_dims, *batches)))
    return np.moveaxis(found, range(batch, found.ndim), of.offset_dims)


def _scatter_add(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    (x, indices, updates), of = values, params["dimension_numbers"]
    batches = dict(zip(of.operand_batching_dims, of.scatter_indices_batching_dims, strict=True))
    batch = indices.ndim - 1
    new = np.moveaxis(updates, of.update_window_dims, range(batch, updates.ndim))
    new = np.expand_dims(new, tuple(batch + a for a in (*of.inserted_window_dims, *batches)))
    axes, sizes = of.scatter_dims_to_operand_dims, new.shape[batch:]
    made, clamps = x.copy(), "CLIP" in str(params["mode"])  # XLA drops others that reach outside
    np.add.at(made, _windows(x.shape, indices, axes, sizes, batches, clamps), new)
    return made


def _before(_: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    if any(x.dtype.kind not in "iub" for x in values):
        raise NotImplementedError  # NaN and zeros have an order there
    return values[0] < values[1]


def _sort(params: dict[str, Any], values: list[np.ndarray]) -> list[np.ndarray]:
    axis, keys = params["dimension"], values[: params["num_keys"]]
    order = np.lexsort([_wide(key) for key in reversed(keys)], axis=axis)
    return [np.take_along_axis(x, order, axis) for x in values]


def _top_k(params: dict[str, Any], values: list[np.ndarray]) -> list[np.ndarray]:
    (x,), k = values, params["k"]
    if params.get("axis", x.ndim - 1) != x.ndim - 1 or np.isnan(x).any():
        raise NotImplementedError
    # Of equal numbers the first, but 0.0 before -0.0.
    falling = [~x] if x.dtype.kind in "iub" else [np.signbit(x), -_wide(x)]
    order = np.lexsort(falling, axis=-1)[..., :k]
    return [np.take_along_axis(x, order, -1), order]


BLOCKS: dict[str, Rule] = {
    "convert_element_type": _cast,
    "dot_general": _dot,
    "reduce_sum": _reduced(np.sum), "reduce_max": _reduced(np.max),
    "reduce_min": _reduced(np.min),
    "reduce_and": _reduced(np.bitwise_and.reduce), "reduce_or": _reduced(np.bitwise_or.reduce),
    "argmax": _first(np.argmax), "argmin": _first(np.argmin), "cumsum": _cumsum,
    "exp": _elementwise(_exp), "exp2": _exp2, "log": _elementwise(np.log),
    "log1p": _elementwise(np.log1p), "tanh": _elementwise(np.tanh),
    "sqrt": _elementwise(np.sqrt), "rsqrt": _elementwise(lambda x: 1 / np.sqrt(x)),
    "logistic": _elementwise(lambda x: 1 / (1 + np.exp(-x))), "pow": _elementwise(np.power),
    "integer_pow": lambda params, values: np.power(_wide(values[0]), params["y"]),
    "sign": _elementwise(lambda x: np.where(x == 0, x, np.sign(x))),  # -0.0 keeps its own
    "lt_to": _before,
    "is_finite": lambda _, values: np.isfinite(values[0]),
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "split": lambda params, values: np.split(
        values[0], np.cumsum(params["sizes"])[:-1], params["axis"]),
    "concatenate": lambda params, values: np.concatenate(values, params["dimension"]),
    "stack": lambda params, values: np.stack(values, params["axis"]),
    "transpose": lambda params, values: values[0].transpose(params["permutation"]),
    "bitcast": lambda params, values: bitcast(values[0], params["ty"]),
    "tile": lambda params, values: np.tile(values[0], params["reps"]),
    "rev": lambda params, values: np.flip(values[0], params["dimensions"]),
    "gather": _gather,
    "scatter-add": _scatter_add,
    "sort": _sort,
    "device_put": lambda _, values: values,
    "top_k": _top_k,
}  # fmt: skip
