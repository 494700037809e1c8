"""Launches in NumPy: the numbers are JAX's, no puzzle falls back to JAX, and strict is strict."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launch.test_fuzz import THEMES, arguments_of, drawn, function_of

import puzzles
from puzzles import Puzzle
from puzzles._judge import cases
from puzzles._judge.numbers import compare
from puzzles._launch import Traced, trace_call
from puzzles._program import as_tpu, by_jax, run
from puzzles._simulator import HazardError, Semantics, step_by_step
from puzzles._simulator.programs import run_as

EXAMPLES = 8 if sample.ALL else 2  # of each theme
PUZZLES = [p for name in puzzles.ladders() for p in puzzles.ladder(name) if p.kernel]
ALONE = [puzzle for puzzle in PUZZLES if not puzzle.axes]  # JAX interprets no others


def interpreted(traced: Traced) -> list[np.ndarray]:
    return by_jax(traced.jaxpr, traced.leaves)


@pytest.mark.graduate
@pytest.mark.parametrize("theme", sample.some(list(THEMES), 3))
def test_random_launches_give_what_jax_gives(theme: str) -> None:
    for seed in range(EXAMPLES):
        case = drawn(theme, Random(f"stepped {theme} {seed}"))
        print(case)  # which pytest shows if it fails
        traced = trace_call(function_of(case), *arguments_of(case))
        wanted = interpreted(traced)
        for strict in (False, True):
            flat = step_by_step(traced, strict)
            assert flat is not None, strict
            for got, want in zip(flat, wanted, strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got.astype(float), want.astype(float))


@pytest.mark.graduate
@pytest.mark.parametrize("puzzle", sample.share(PUZZLES, 2), ids=lambda puzzle: puzzle.name)
def test_no_puzzle_asks_jax(puzzle: Puzzle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, including the code between launches and the code that steers them."""
    traced = cases(puzzle)[0].reference
    monkeypatch.setattr(run, "_compiled", None)
    assert step_by_step(traced, strict=True) is not None


@pytest.mark.graduate
@pytest.mark.parametrize("puzzle", sample.share(ALONE, 12), ids=lambda puzzle: puzzle.name)
def test_a_puzzle_gives_what_jax_gives(puzzle: Puzzle) -> None:
    traced = cases(puzzle)[0].reference
    wanted = interpreted(traced)
    for strict in (False, True):
        flat = step_by_step(traced, strict)
        assert flat is not None, strict
        for got, want in zip(flat, wanted, strict=True):
            assert compare(want, got, puzzle.tolerance) is None, strict


def test_around_a_launch_jax_does_what_no_rule_does() -> None:
    """It tells the rank of NaN among the greatest."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    def greatest(x: Any) -> Any:
        best, _ = jax.lax.top_k(x, 2)
        return pl.pallas_call(kernel, out_shape=best, interpret=True)(best)

    traced = trace_call(greatest, np.array([[1, np.nan, 2]], np.float32))
    flat = step_by_step(traced, strict=True)
    assert flat is not None
    np.testing.assert_array_equal(flat[0], [[np.nan, 2]])


# Programs that a TPU must not run, beside programs that it may.

ROWS = {"both": pl.ds(0, 16), "first": pl.ds(0, 8), "second": pl.ds(8, 8)}
RIGHT = (
    "start both 0, wait both 0, use both",
    "start both 0, wait first 0, wait second 0, use both",
    "start first 0, start second 1, wait first 0, use first, wait second 1, use second",
    "start first 0, start second 0, wait both 0, use both",
    "start first 0, store second, wait first 0, use both",
    "start both 0, wait both 0, use both, start first 0, wait first 0",
    "start both 0, start first 1, wait both 0, wait first 1, use both",  # the same bytes
)
WRONG = (
    "start both 0, use both, wait both 0",
    "start both 0, wait first 0, use first, wait second 0, use second",  # which half has come?
    "start first 0, start second 1, wait first 0, use second, wait second 1, use first",
    "start first 0, start second 0, wait first 0, use first, wait second 0, use second",
    "start first 0, wait both 0, use both",
    "store both, wait both 0, use both",
    "start first 0, start second 1, wait both 0, use both, wait second 1",
    "start first 0, store first, wait first 0, use both",
    "start both 0, wait both 0, use both, start first 0",
    "start both 0, start first 0, wait both 0, wait first 0, use both",  # on one semaphore
)


def following(orders: str) -> Traced:
    """A kernel that does as it is told, with an array in HBM, a slot and two semaphores."""

    def kernel(x_ref: Any, o_ref: Any, slot: Any, semaphores: Any) -> None:
        for order in orders.split(", "):
            what, part, *semaphore = order.split()
            rows = ROWS[part]
            if what == "use":
                o_ref[rows, :] = slot[rows, :]
            elif what == "store":
                slot[rows, :] = jnp.zeros((rows.size, 128))
            else:
                at = semaphores.at[int(semaphore[0])]
                getattr(pltpu.make_async_copy(x_ref.at[rows], slot.at[rows], at), what)()

    shape = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    slots = [pltpu.VMEM(shape.shape, jnp.float32), pltpu.SemaphoreType.DMA((2,))]
    specs = [pl.BlockSpec(memory_space=pl.ANY)]
    launch = pl.pallas_call(kernel, out_shape=shape, in_specs=specs, scratch_shapes=slots)
    with as_tpu():
        return trace_call(launch, np.arange(2048, dtype=np.float32).reshape(16, 128))


@pytest.mark.parametrize("orders", RIGHT)
def test_a_copy_that_is_waited_for_gives_what_jax_gives(orders: str) -> None:
    traced = following(orders)
    flat = step_by_step(traced, strict=True)
    assert flat is not None
    np.testing.assert_array_equal(flat[0], interpreted(traced)[0])


@pytest.mark.parametrize("orders", WRONG)
def test_a_copy_that_is_not_is_refused_where_it_is_strict(orders: str) -> None:
    traced = following(orders)
    assert step_by_step(traced, strict=False) is not None
    with pytest.raises(HazardError) as caught:
        run_as(traced, Semantics())
    assert caught.value.finding.kind == "hazard"


def adds(x_ref: Any, o_ref: Any, _: Any) -> None:
    o_ref[...] += x_ref[...]


def adds_to_zero(x_ref: Any, o_ref: Any, sum_ref: Any) -> None:
    o_ref[...] = jnp.zeros_like(o_ref)
    adds(x_ref, o_ref, sum_ref)


def adds_up(x_ref: Any, o_ref: Any, sum_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)

    sum_ref[...] += x_ref[...]
    o_ref[...] = sum_ref[...]


def reads(first: int, rows: int) -> Callable[..., None]:
    """The second of two steps reads a slice that begins one row further."""

    def kernel(x_ref: Any, o_ref: Any, _: Any) -> None:
        at = first + pl.program_id(0)
        part = x_ref[at] if rows == 1 else x_ref[pl.ds(at, rows), :].max()
        o_ref[...] = jnp.zeros_like(o_ref) + part

    return kernel


def stepping(kernel: Callable, order: str = "arbitrary", in_place: bool = False) -> Traced:
    """A launch of two steps, with a buffer that is theirs together."""
    block, x = pl.BlockSpec((8, 128), lambda i: (i, 0)), np.ones((16, 128), np.float32)
    launch = pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(2,),
        in_specs=[block],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        input_output_aliases={0: 0} if in_place else {},
        compiler_params=pltpu.CompilerParams(dimension_semantics=(order,)),
    )
    with as_tpu():
        return trace_call(launch, x)


NAN, COUNTED = np.nan, [1, 2]


@pytest.mark.parametrize(
    ("traced", "plain", "strict"),
    [
        (lambda: stepping(adds_to_zero), 1, 1),
        (lambda: stepping(adds), NAN, NAN),  # an output holds nothing before it is written
        (lambda: stepping(adds_to_zero, in_place=True), 1, 1),
        (lambda: stepping(adds, in_place=True), 2, NAN),  # nor is its block fetched
        (lambda: stepping(adds_up), COUNTED, COUNTED),
        (lambda: stepping(adds_to_zero, "parallel"), 1, 1),
        (lambda: stepping(adds_up, "parallel"), COUNTED, "other"),
        (lambda: stepping(reads(0, rows=1)), 1, 1),
        (lambda: stepping(reads(-1, rows=1)), None, None),  # outside
        (lambda: stepping(reads(5, rows=2)), 1, 1),
        (lambda: stepping(reads(6, rows=2)), None, None),
    ],
)
def test_what_each_step_leaves(traced: Callable, plain: Any, strict: Any) -> None:
    found = [step_by_step(traced()), step_by_step(traced(), strict=True)]
    if plain is None:
        assert found == [None, None]
        return
    one, other = (flat[0][::8, 0].tolist() for flat in found)
    np.testing.assert_array_equal(one, np.broadcast_to(plain, 2))
    if strict == "other":
        assert other != one
    else:
        np.testing.assert_array_equal(other, np.broadcast_to(strict, 2))
