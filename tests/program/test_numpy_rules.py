"""Every rule for arrays in NumPy beside JAX itself, on drawn operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax import lax

from puzzles._program import interpreter as in_numpy
from puzzles._program import visited
from puzzles._program.interpreter import CONTROL, NumpyInterpreter, UnsupportedError
from puzzles._program.numpy_rules import BLOCKS
from puzzles._program.scalar_rules import RULES

DRAWS = 8  # of operands for each rule
FLOATS, INTEGERS = ("float32", "bfloat16"), ("int8", "int32", "uint8")
NUMBERS, ALL = FLOATS + INTEGERS, (*FLOATS, *INTEGERS, "bool")
SUMMED = ("float32", *INTEGERS)  # in narrow floats the order decides
AWKWARD = (0.0, -0.0, np.nan, np.inf, -np.inf, 127.5, -128.5, 256.0, 3e9, -3e9)
# JAX makes them, or Mosaic needs them, and no program that runs on a CPU has them.
ELSEWHERE = {
    "expand_dims", "copy_p", "stop_gradient", "multiple_of", "max_contiguous", "bitcast"
}  # fmt: skip
# Which of two zeros is the greater, and the sign of a sum of none, differ between machines.
UNSIGNED = ("max", "min", "reduce", "dot_general", "cumsum", "clamp", "integer_pow", "pow")


class Draw:
    """A random generator, and the arrays that it draws."""

    def __init__(self, seed: str) -> None:
        self.random = np.random.default_rng(list(seed.encode()))

    def of(self, *choices: Any) -> Any:
        return choices[self.random.integers(len(choices))]

    def below(self, *ends: int) -> list[int]:
        """A number below each."""
        return [int(self.random.integers(end)) for end in ends]

    def array(self, shape: tuple[int, ...], dtype: str, tame: bool = False) -> np.ndarray:
        """Small numbers, of which many are equal; if not `tame`, also infinities, NaN and -0.0."""
        form, few = np.dtype(dtype), self.random.random(shape) < self.of(0, 0.1, 0.5)
        if form.kind in "iu":
            ends = np.iinfo(form)
            low, high = self.of((max(ends.min, -4), 5), (0, ends.max))
            drawn, odd = self.random.integers(low, high, shape), (ends.min, ends.max, 0)
        else:
            drawn = self.random.integers(-3, 4, shape) + self.of(0, 0.25, 0.7)
            odd = (1.0, -0.3) if tame or form.kind == "b" else AWKWARD
        drawn = np.where(few, self.random.choice(odd, shape), drawn)
        return np.asarray(drawn > 0 if form.kind == "b" else drawn.astype(form))


@dataclass(frozen=True)
class Program:
    """A function of a generator and `count` arrays of a shape. empty: they may be empty."""

    function: Callable
    dtypes: tuple[str, ...]
    count: int = 1
    tame: bool = False
    empty: bool = False

    def drawn(self, seed: str) -> tuple[Callable, list[np.ndarray]]:
        draw = Draw(seed)
        sizes = (1, 2, 3, 5, 8, 0) if self.empty and draw.of(*range(4)) == 0 else (1, 2, 3, 5, 8)
        shape, dtype = (
            tuple(draw.of(*sizes) for _ in range(draw.of(1, 2, 3))),
            draw.of(*self.dtypes),
        )
        given = [draw.array(shape, dtype, self.tame) for _ in range(self.count)]
        return lambda *x: self.function(Draw(seed + " within"), *x), given


def elementwise(name: str, *dtypes: str, count: int = 1) -> Program:
    return Program(lambda _, *x: getattr(lax, name)(*x), dtypes, count, empty=True)


def along(function: Callable, *dtypes: str, tame: bool = False) -> Program:
    """The function of an array and one of its axes."""
    return Program(lambda draw, x: function(x, *draw.below(x.ndim)), dtypes, tame=tame)


def reduced(function: Callable, *dtypes: str, sums: bool = False) -> Program:
    def over_some(draw: Draw, x: Any) -> Any:
        axes = draw.random.permutation(x.ndim)[: draw.random.integers(x.ndim + 1)]
        return function(x, axes.tolist())

    return Program(over_some, dtypes, tame=sums, empty=sums)


def dot(draw: Draw) -> Any:
    """Axes that are shared, summed over and free, in any order on either side."""
    batch, over, rows, columns = ([draw.of(1, 2, 3, 5)] * draw.of(0, 1, 2) for _ in range(4))
    dtype, sides, numbers = draw.of(*NUMBERS), [], []
    for free in (rows, columns):
        sizes = [*batch, *over, *free]
        order = draw.random.permutation(len(sizes)).tolist()
        sides.append(draw.array(tuple(sizes[n] for n in order), dtype, tame=True))
        places = [order.index(n) for n in range(len(batch) + len(over))]
        numbers.append((places[len(batch) :], places[: len(batch)]))
    wanted = draw.of("int32", dtype) if dtype in INTEGERS else "float32"
    dimensions = tuple(zip(*numbers, strict=True))
    return lax.dot_general(*sides, dimensions, preferred_element_type=wanted)


def select(draw: Draw, *x: Any) -> Any:
    x = x[: draw.of(2, 3)]
    which = draw.random.integers(0, len(x), draw.of(x[0].shape, ()))
    return lax.select_n(which.astype(bool if len(x) == 2 else np.int32), *x)


def clamp(draw: Draw, low: Any, x: Any) -> Any:
    return lax.clamp(draw.of(low, np.asarray(1, x.dtype)), x, np.asarray(2, x.dtype))


def broadcast(draw: Draw, x: Any) -> Any:
    shape, where = [], []
    for n in x.shape:
        shape += [draw.of(2, 3)] * draw.of(0, 1) + [draw.of(1, 4) if n == 1 else n]
        where.append(len(shape) - 1)
    return lax.broadcast_in_dim(x, shape, where)


def slice_of(draw: Draw, x: Any) -> Any:
    first = draw.below(*(n + 1 for n in x.shape))
    last = [a + b for a, b in zip(first, draw.below(*(n + 1 for n in x.shape)), strict=True)]
    last = np.minimum(last, x.shape).tolist()
    return lax.slice(x, first, last, draw.of(None, [draw.of(1, 2, 3) for _ in x.shape]))


def moving(draw: Draw, x: Any, new: Any = None) -> Any:
    """A slice that starts anywhere, outside, too."""
    starts = [np.int32(n - 3) for n in draw.below(*(n + 6 for n in x.shape))]
    sizes = [n + 1 for n in draw.below(*x.shape)]
    if new is None:
        return lax.dynamic_slice(x, starts, sizes)
    return lax.dynamic_update_slice(x, new[tuple(map(slice, sizes))], starts)


def indexed(draw: Draw, x: Any, adds: bool = False) -> Any:
    """Rows, elements, or an index for each row. If an index may be outside, some are."""
    mode, kind = draw.of("clip", "promise_in_bounds", "fill"), draw.of("one", "two", "batched")
    over = 2 if mode == "clip" or (mode == "fill" and not adds) else 0
    n, x = len(x), jnp.stack([x, x], axis=-1)

    def at(*shape: int) -> np.ndarray:
        return draw.random.integers(-over, n + over, shape).astype(np.int32)

    def one(x: Any, *index: Any) -> Any:
        if not adds:
            return x.at[index].get(mode=mode)
        new = draw.array(jax.eval_shape(lambda x: x[index], x).shape, "float32", tame=True)
        return x.at[index].add(new, mode=mode)

    if kind == "batched":
        return jax.vmap(one)(jnp.stack([x, x]), at(2, 3))
    return one(x, at(4)) if kind == "one" else one(x[:, ..., 0], at(4), *[at(4) % 1] * (x.ndim > 2))


def sorted_by(draw: Draw, *x: Any) -> Any:
    given = [*x, draw.array(x[0].shape, draw.of(*ALL))][draw.of(0, 1, 2) :]
    (axis,) = draw.below(x[0].ndim)
    return lax.sort(given, dimension=axis, num_keys=draw.of(*range(1, len(given) + 1)))


def counted(draw: Draw, x: Any) -> Any:
    turns = draw.of(0, 1, 5)
    return lax.while_loop(lambda c: c[0] < turns, lambda c: (c[0] + 1, c[1] * 2 + x), (0, x))


def scanned(draw: Draw, x: Any) -> Any:
    """Carries and rows, from either end; without an iteration, nothing is stacked."""
    turns, stacks = draw.of(0, *[len(x)] * 3), draw.of(True, False)

    def turn(carry: Any, row: Any) -> tuple:
        return carry * 2 + row, (carry, row) if stacks and turns else None

    return lax.scan(turn, x[0] * 0, x[:turns], reverse=draw.of(True, False))


PROGRAMS: dict[str, Program] = {
    **{name: elementwise(name, *FLOATS) for name in (
        "exp", "exp2", "log", "log1p", "tanh", "sqrt", "rsqrt", "logistic", "is_finite",
        "floor", "ceil")},
    **{name: elementwise(name, *NUMBERS) for name in ("neg", "sign", "square")},
    **{name: elementwise(name, *NUMBERS, count=2) for name in (
        "add", "sub", "mul", "div", "rem", "max", "min")},
    **{name: elementwise(name, *ALL, count=2) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: elementwise(f"bitwise_{name}", *INTEGERS, "bool", count=2) for name in (
        "and", "or", "xor")},
    "not": elementwise("bitwise_not", *INTEGERS, "bool"),
    "abs": elementwise("abs", *FLOATS, "int8", "int32"),
    "pow": elementwise("pow", *FLOATS, count=2),
    "lt_to": Program(lambda _, *x: lax.lt_to_p.bind(*x), (*INTEGERS, "bool"), 2),
    "integer_pow": Program(
        lambda draw, x: lax.integer_pow(x, draw.of(2, 3, 5)), (*FLOATS, "int32")),
    "add_any": Program(lambda _, x: jax.grad(lambda x: (x * x).sum())(x), ("float32",)),
    "copy": Program(lambda _, x: jnp.copy(x), ALL), "select_n": Program(select, ALL, 3),
    "clamp": Program(clamp, NUMBERS, 2, tame=True),
    "device_put": Program(lambda _, x: jax.device_put(x), ALL),
    "convert_element_type": Program(
        lambda draw, x: lax.convert_element_type(x, draw.of(*ALL)), ALL),
    "dot_general": Program(dot, ALL, 0),
    "reduce_sum": reduced(lax.reduce_sum, *SUMMED, sums=True),
    "reduce_max": reduced(lax.reduce_max, *NUMBERS),
    "reduce_min": reduced(lax.reduce_min, *NUMBERS),
    "reduce_and": reduced(lax.reduce_and, "bool", *INTEGERS),
    "reduce_or": reduced(lax.reduce_or, "bool", *INTEGERS),
    "argmax": along(lambda x, axis: lax.argmax(x, axis, "int32"), *NUMBERS),
    "argmin": along(lambda x, axis: lax.argmin(x, axis, "int32"), *NUMBERS),
    "cumsum": along(lambda x, axis: [
        lax.cumsum(x, axis, reverse=back) for back in (False, True)], *SUMMED, tame=True),
    "reshape": Program(lambda _, x: lax.reshape(x, (1, *x.shape[::-1])), ALL, empty=True),
    "squeeze": along(lambda x, axis: lax.squeeze(jnp.expand_dims(x, axis), [axis]), *ALL),
    "broadcast_in_dim": Program(broadcast, ALL, empty=True),
    "iota": along(lambda x, axis: lax.broadcasted_iota(x.dtype, x.shape, axis), *NUMBERS),
    "transpose": Program(lambda draw, x: lax.transpose(x, draw.random.permutation(x.ndim)), ALL),
    "rev": along(lambda x, axis: lax.rev(x, [axis]), *ALL),
    "split": along(lambda x, axis: lax.split(x, [0, x.shape[axis]], axis), *ALL),
    "tile": along(lambda x, axis: jnp.tile(x, 2), *ALL),
    "stack": along(lambda x, axis: jnp.stack([x, x], axis), *ALL),
    "unstack": along(lambda x, axis: jnp.unstack(x, axis=axis), *ALL),
    "concatenate": along(lambda x, axis: lax.concatenate([x, x * 2, x], axis), *NUMBERS),
    "slice": Program(slice_of, ALL), "dynamic_slice": Program(moving, ALL),
    "dynamic_update_slice": Program(moving, ALL, 2), "gather": Program(indexed, ALL),
    "scatter-add": Program(lambda *given: indexed(*given, adds=True), ("float32",), tame=True),
    "sort": Program(sorted_by, ALL, 2),
    "top_k": Program(
        lambda draw, x: lax.top_k(x, *draw.below(x.shape[-1] + 1)), NUMBERS, tame=True),
    "cond": Program(lambda draw, x: lax.switch(
        draw.of(-1, 0, 1, 5), [lambda x: x, lambda x: x * 3, lambda x: -x], x), ("int32",)),
    "while": Program(counted, ("int32",)), "scan": Program(scanned, FLOATS, tame=True),
}  # fmt: skip


def evaluated(program: Any, args: list[Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return NumpyInterpreter().closed(program, args)


def compare(name: str, got: np.ndarray, want: np.ndarray) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if not jnp.issubdtype(got.dtype, jnp.floating):
        np.testing.assert_array_equal(got, want)
        return
    near = 1e-5 if got.dtype == np.float32 else 2**-7
    got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=near, atol=near)
    if not name.startswith(UNSIGNED):
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.graduate
@pytest.mark.parametrize("name", sample.share(list(PROGRAMS), 2))
def test_a_rule_gives_what_jax_gives(name: str) -> None:
    programs = [PROGRAMS[name].drawn(f"{name} {number}") for number in range(DRAWS)]
    both = jax.jit(lambda all: [f(*x) for (f, _), x in zip(programs, all, strict=True)])
    given = [args for _, args in programs]
    wanted = map(np.asarray, jax.tree.leaves(both(given)))  # compiled once
    met: set[str] = set()
    for function, args in programs:
        traced = jax.make_jaxpr(function)(*args)
        print(traced, args)  # which pytest shows if it fails
        met |= {e.primitive.name for one, path in visited(traced.jaxpr) for e in (*path, one)}
        for got in evaluated(traced, args):
            compare(name, np.asarray(got), next(wanted))
    assert name in met or name in ("stack", "tile", "unstack")  # JAX 0.7 has other names


def test_no_rule_is_left_out() -> None:
    assert {*BLOCKS, *RULES, *CONTROL} - PROGRAMS.keys() == ELSEWHERE


X, NARROW = np.arange(4.0, dtype=np.float32), np.ones((2, 2), jnp.bfloat16)
FAR = np.array([1, 9])
REFUSED: dict[str, Callable] = {
    "what no rule is for": lambda: jnp.sin(X),
    "a sum in bf16": lambda: lax.reduce_sum(NARROW, [0]),
    "a dot to bf16": lambda: lax.dot(NARROW, NARROW),
    "a running sum in bf16": lambda: lax.cumsum(NARROW),
    "the greatest of none": lambda: lax.reduce_max(X[:0], [0]),
    "what is dropped": lambda: jnp.asarray(X).at[FAR].add(1, mode="drop"),
    "a broken promise": lambda: jnp.asarray(X).at[FAR].add(1, mode="promise_in_bounds"),
    "the order of NaN": lambda: lax.top_k(X * np.nan, 1),
    "the order of zeros": lambda: lax.lt_to_p.bind(-X, X),
    "rows of no turn": lambda: lax.scan(lambda c, row: (c, row + 1), 0, X[:0])[1],
    "too many turns": lambda: lax.while_loop(lambda n: n < 1000, lambda n: n + 1, 0),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_known_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_numpy, "FUEL", 1000)
    with pytest.raises((UnsupportedError, NotImplementedError, ValueError)):
        evaluated(jax.make_jaxpr(REFUSED[what])(), [])
