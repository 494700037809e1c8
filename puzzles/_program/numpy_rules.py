"""Arithmetic on arrays in NumPy, with XLA's results on a CPU.

A rule takes an equation's parameters and its operands, and raises if it does not cover them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._program.scalar_rules import ELEMENTWISE, RULES, narrow, wide

Rule = Callable[[dict[str, Any], list[np.ndarray]], Any]

# In a narrow float, the order of a sum decides the rounding; only XLA knows its order.
_SUMS = {"dot_general", "reduce_sum", "cumsum", "scatter-add"}


def bitcast(value: np.ndarray, dtype: Any) -> np.ndarray:
    """The bits as another type; rows are packed into 32-bit words, or unpacked from them."""
    old, new = value.dtype.itemsize, np.dtype(dtype).itemsize
    *leading, rows, lanes = value.shape
    if new > old:
        words = value.reshape(*leading, rows * old // new, new // old, lanes)
        return np.ascontiguousarray(np.swapaxes(words, -1, -2)).view(dtype)[..., 0]
    parts = np.ascontiguousarray(value)[..., None].view(dtype)
    return np.swapaxes(parts, -1, -2).reshape(*leading, rows * old // new, lanes)


def rule_of(equation: JaxprEqn) -> Callable[[list[np.ndarray]], list[np.ndarray]] | None:
    """A function that computes the equation's results, in its own dtypes; None without a rule."""
    name, params = equation.primitive.name, equation.params
    dtypes = [v.aval.dtype for v in equation.outvars]
    if name in _SUMS and narrow(dtypes[0]):
        return None
    if (block := BLOCKS.get(name)) is not None:
        if equation.primitive.multiple_results:
            return lambda values: list(map(np.asarray, block(params, values), dtypes))
        return lambda values: [np.asarray(block(params, values), dtypes[0])]
    if params.get("out_dtype") is not None:
        return None
    if (plain := ELEMENTWISE.get(name)) is not None:
        return lambda values: [np.asarray(plain(*values), dtypes[0])]
    if (scalar := RULES.get(name)) is not None:
        return lambda values: [np.asarray(scalar(equation, values, 0), dtypes[0])]
    return None


def _elementwise(function: Callable) -> Rule:
    return lambda _, values: function(*map(wide, values))


def _exp(x: np.ndarray) -> np.ndarray:
    """The exponential, with subnormal results flushed to 0, as on a TPU and in XLA on a CPU."""
    result = np.exp(wide(x))
    return np.where(result < np.finfo(result.dtype).tiny, 0, result)


def _dot(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    (left_over, right_over), (left_shared, right_shared) = params["dimension_numbers"]
    x, lead, rows = _matrices(values[0], left_shared, left_over)
    y, _, columns = _matrices(values[1], right_shared, right_over)
    return _product(x, y.swapaxes(-1, -2)).reshape([*lead, *rows, *columns])


def _product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A product of matrices. Integer sums below 2**53 are exact in f64, which is fast."""
    if any(factor.dtype.kind not in "iub" for factor in (x, y)):
        return np.matmul(wide(x), wide(y))
    bits = 8 * (x.dtype.itemsize + y.dtype.itemsize) + x.shape[-1].bit_length()
    if bits < 53:
        return np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(np.int64)
    return np.matmul(x.astype(np.int64), y.astype(np.int64))


def _matrices(
    x: np.ndarray, shared: Sequence[int], over: Sequence[int]
) -> tuple[np.ndarray, list[int], list[int]]:
    """Matrices whose columns are the summed axes, and the sizes of their batch and rows."""
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
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return values[0][tuple(slice(*bound) for bound in bounds)]


def _dynamic_slice(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    x, *starts = values
    return x[_clamped(x.shape, starts, params["slice_sizes"])]


def _dynamic_update_slice(_: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    x, update, *starts = values
    result = x.copy()
    result[_clamped(x.shape, starts, update.shape)] = update
    return result


def _clamped(
    shape: Sequence[int], starts: Sequence[np.ndarray], sizes: Sequence[int]
) -> tuple[slice, ...]:
    axes = zip(shape, starts, sizes, strict=True)
    firsts = [(min(max(int(start), 0), n - size), size) for n, start, size in axes]
    return tuple(slice(first, first + size) for first, size in firsts)


def _windows(
    shape: Sequence[int],
    indices: np.ndarray,
    axes: Sequence[int],
    sizes: Sequence[int],
    batches: dict[int, int],
    clamps: bool,
) -> tuple[np.ndarray, ...]:
    """An index of windows of an array; `indices` has the start of each window along `axes`.

    batches: axis of the array -> axis of `indices` that runs along it.
    clamps: move a window that reaches outside back inside; if False, such a window raises.
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
    windows = x[_windows(x.shape, indices, of.start_index_map, sizes, batches, clamps=True)]
    if "FILL" in str(params["mode"]):
        most = [x.shape[axis] - sizes[axis] for axis in of.start_index_map]
        windows[((indices < 0) | (indices > most)).any(-1)] = params["fill_value"]
    batch = indices.ndim - 1
    windows = windows.squeeze(tuple(batch + a for a in (*of.collapsed_slice_dims, *batches)))
    return np.moveaxis(windows, range(batch, windows.ndim), of.offset_dims)


def _scatter_add(params: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    (x, indices, updates), of = values, params["dimension_numbers"]
    batches = dict(zip(of.operand_batching_dims, of.scatter_indices_batching_dims, strict=True))
    batch = indices.ndim - 1
    new = np.moveaxis(updates, of.update_window_dims, range(batch, updates.ndim))
    new = np.expand_dims(new, tuple(batch + a for a in (*of.inserted_window_dims, *batches)))
    axes, sizes = of.scatter_dims_to_operand_dims, new.shape[batch:]
    result, clamps = x.copy(), "CLIP" in str(params["mode"])  # other modes drop outside updates
    np.add.at(result, _windows(x.shape, indices, axes, sizes, batches, clamps), new)
    return result


def _before(_: dict[str, Any], values: list[np.ndarray]) -> np.ndarray:
    if any(x.dtype.kind not in "iub" for x in values):
        raise NotImplementedError  # `lt_to` is a total order, with NaN and both zeros
    return values[0] < values[1]


def _sort(params: dict[str, Any], values: list[np.ndarray]) -> list[np.ndarray]:
    axis, keys = params["dimension"], values[: params["num_keys"]]
    order = np.lexsort([wide(key) for key in reversed(keys)], axis=axis)
    return [np.take_along_axis(x, order, axis) for x in values]


def _top_k(params: dict[str, Any], values: list[np.ndarray]) -> list[np.ndarray]:
    (x,), k = values, params["k"]
    if params.get("axis", x.ndim - 1) != x.ndim - 1 or np.isnan(x).any():
        raise NotImplementedError
    # Equal numbers keep their order, but 0.0 comes before -0.0.
    falling = [~x] if x.dtype.kind in "iub" else [np.signbit(x), -wide(x)]
    order = np.lexsort(falling, axis=-1)[..., :k]
    return [np.take_along_axis(x, order, -1), order]


BLOCKS: dict[str, Rule] = {
    "dot_general": _dot,
    "reduce_sum": _reduced(np.sum), "reduce_max": _reduced(np.max),
    "reduce_min": _reduced(np.min),
    "reduce_and": _reduced(np.bitwise_and.reduce), "reduce_or": _reduced(np.bitwise_or.reduce),
    "argmax": _first(np.argmax), "argmin": _first(np.argmin), "cumsum": _cumsum,
    "exp": _elementwise(_exp), "log": _elementwise(np.log),
    # As in JAX on a CPU: the exponent is rounded to the operand's dtype first.
    "exp2": lambda _, values: _exp(values[0] * values[0].dtype.type(math.log(2))),
    "log1p": _elementwise(np.log1p), "tanh": _elementwise(np.tanh),
    "sqrt": _elementwise(np.sqrt), "rsqrt": _elementwise(lambda x: 1 / np.sqrt(x)),
    "logistic": _elementwise(lambda x: 1 / (1 + np.exp(-x))), "pow": _elementwise(np.power),
    "lt_to": _before,
    "is_finite": lambda _, values: np.isfinite(values[0]),
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "split": lambda params, values: np.split(
        values[0], np.cumsum(params["sizes"])[:-1], params["axis"]),
    "concatenate": lambda params, values: np.concatenate(values, params["dimension"]),
    "unstack": lambda params, values: [*np.moveaxis(values[0], params["axis"], 0)],  # since 0.12
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
