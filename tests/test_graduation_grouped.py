"""The grouped matmul ladder's last exam: JAX's own kernels, over group sizes nobody tuned for.

Numbers are compared at the tolerances of JAX's tests of Megablox (`tolerances` in
https://github.com/jax-ml/jax/blob/main/tests/pallas/tpu_gmm_test.py), with sizes drawn as there,
and with sizes that add up to less. JAX skips its own `gmm` tests off a TPU; the kernels run
under `interpret=True` all the same.
"""

from __future__ import annotations

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

from puzzles import Launch, find, trace
from puzzles._faults import faults
from puzzles._simulate import quickly

pytestmark = pytest.mark.slow

TILING = {  # of the reference solutions, as Megablox orders them: rows, summed axis, columns
    "grouped_matmul": (64, 128, 128),
    "launch_grouped_matmul": (128, 128, 256),
    "grouped_matmul_transposed": (64, 128, 256),
    "grouped_outer": (64, 128, 128),
}
EXAMPLES = 6  # of each rung and dtype
_table: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def table(request):
    yield
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\nrung                        dtype     sizes            rows  steps  gmm's  dots")
        print("\n".join(_table))


def tolerances(dtype) -> dict[str, float]:
    return dict(atol=1e-3, rtol=1e-2 if dtype == jnp.bfloat16 else 1e-5)


def close(got, want, dtype) -> None:
    got, want = (np.asarray(x, np.float32) for x in (got, want))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, **tolerances(dtype))


@st.composite
def group_sizes(draw, rows: int, full: bool) -> tuple[int, ...]:
    """Sizes of a few groups, cut at random, empty ones included; `full`: they reach the end."""
    groups = draw(st.integers(1, 8))
    ends = sorted(draw(st.lists(st.integers(0, rows), min_size=groups, max_size=groups)))
    ends[-1] = rows if full else max(ends[-1], 1)
    return tuple(int(n) for n in np.diff([0, *ends]))


def example(name: str):
    """One case: sizes, dims in blocks, a seed. No more than a few steps, for these run for real."""
    full = name == "launch_grouped_matmul"
    rows = TILING[name][0] * (2 if full else 3)
    return st.tuples(group_sizes(rows, full), st.just(rows), st.integers(0, 99))


def random(r, shape, dtype):
    """Uniform in (-1, 1), rounded to bf16, as in JAX's tests."""
    return jnp.asarray(jnp.asarray(r.uniform(-1, 1, shape), jnp.bfloat16), dtype)


def visits(sizes, bm: int) -> int:
    ends = np.cumsum(sizes)
    starts = ends - sizes
    return sum(len(range(a // bm, -(-b // bm))) for a, b in zip(starts, ends, strict=True) if b > a)


def launched(fn, *args) -> Launch:
    (launch,) = trace(fn, *args)
    return launch


def run(fn, *args) -> np.ndarray:
    (result,) = quickly(fn, *args)
    return result


def note(name, dtype, sizes, mine: Launch, theirs: Launch) -> None:
    dots = sum(int(dot.executed.sum()) for dot in mine.dots)
    shown = f"{len(sizes)} ({sizes.count(0)} empty)"
    _table.append(
        f"{name:28}{jnp.dtype(dtype).name:10}{shown:14}{sum(sizes):7}{mine.steps:7}"
        f"{theirs.steps:7}{dots:6}"
    )


def same_work(mine: Launch, theirs: Launch, extra: int = 0) -> None:
    """As many steps and dots; Megablox may have `extra` steps. Its kernels hold two dots under
    conditions, so the dots are summed."""
    assert mine.steps + extra == theirs.steps
    executed = [sum(int(dot.executed.sum()) for dot in one.dots) for one in (mine, theirs)]
    assert executed[0] == executed[1] == mine.steps
    assert mine.unknown_branches == theirs.unknown_branches == 0
    assert not faults(mine)


def written_or_aliased(launch: Launch, visited: set[int], axis: int) -> None:
    """Along `axis`, the output's blocks are exactly `visited`; the rest come with an alias."""
    (out,) = launch.outputs
    assert set(out.blocks[:, axis].tolist()) == visited
    every = -(-out.shape[axis] // out.sizes[axis])
    if len(visited) < every:
        ((source, _),) = launch.aliases
        zeros = launch.inputs[source]
        assert (zeros.space, zeros.shape, zeros.transfers) == ("any", out.shape, 0)


def exam(name: str, dtype):
    """Draws cases for a rung, the same on every run."""

    def decorate(test):
        @hypothesis.settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
        @hypothesis.given(example(name))
        def all_of_them(case):
            test(*case)

        all_of_them()

    del dtype
    return decorate


DTYPES = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
ROWS = ["grouped_matmul", "launch_grouped_matmul", "grouped_matmul_transposed"]


@DTYPES
@pytest.mark.parametrize("name", ROWS)
def test_rows_equal_ragged_dot_and_gmm(name, dtype):
    puzzle, (bm, bk, bn) = find(name), TILING[name]
    transposed = name == "grouped_matmul_transposed"
    K, N = (200, 320) if name == "launch_grouped_matmul" else (256, 256)

    @exam(name, dtype)
    def _(sizes, rows, seed):
        r = np.random.default_rng(seed)
        lhs = random(r, (rows, K), dtype)
        rhs = random(r, (len(sizes), N, K) if transposed else (len(sizes), K, N), dtype)
        groups, total = jnp.asarray(sizes, jnp.int32), sum(sizes)
        production = functools.partial(
            gmm,
            preferred_element_type=dtype,
            tiling=(bm, bk, bn),
            transpose_rhs=transposed,
            interpret=True,
        )

        got = run(puzzle.solution, lhs, rhs, groups)
        upright = rhs.swapaxes(1, 2) if transposed else rhs
        ragged = functools.partial(jax.lax.ragged_dot, preferred_element_type=jnp.float32)
        close(got[:total], run(ragged, lhs, upright, groups)[:total], dtype)
        close(got[:total], run(production, lhs, rhs, groups)[:total], dtype)
        assert got.dtype == dtype
        assert (got[total:] == 0).all()  # where gmm leaves what it finds

        mine = launched(puzzle.solution, lhs, rhs, groups)
        theirs = launched(production, lhs, rhs, groups)
        note(name, dtype, sizes, mine, theirs)
        same_work(mine, theirs)
        assert mine.steps == visits(sizes, bm) * -(-K // bk) * -(-N // bn)
        written_or_aliased(mine, set(range(-(-total // bm))), axis=0)


@DTYPES
def test_outer_products_equal_ragged_dots_gradient_and_tgmm(dtype):
    name = "grouped_outer"
    puzzle, (bm, bk, bn), K, N = find(name), TILING[name], 128, 256

    @exam(name, dtype)
    def _(sizes, rows, seed):
        r = np.random.default_rng(seed)
        lhs, dy = random(r, (rows, K), dtype), random(r, (rows, N), dtype)
        groups, total = jnp.asarray(sizes, jnp.int32), sum(sizes)

        def production(lhs, dy, groups):
            args = (dtype, (bm, bk, bn))
            return tgmm(lhs.swapaxes(0, 1), dy, groups, *args, interpret=True)

        def gradient(lhs, dy, groups):  # in f32: only the kernel's own rounding is left
            meant = jnp.arange(rows)[:, None] < total
            weights = jnp.zeros((len(sizes), K, N))
            ragged = functools.partial(jax.lax.ragged_dot, lhs.astype(jnp.float32))
            _, pullback = jax.vjp(lambda w: ragged(w, groups), weights)
            return pullback(jnp.where(meant, dy, 0).astype(jnp.float32))[0]

        got = run(puzzle.solution, lhs, dy, groups)
        close(got, run(gradient, lhs, dy, groups), dtype)
        close(got, run(production, lhs, dy, groups), dtype)
        empty = np.asarray(sizes) == 0
        assert (got[empty] == 0).all()

        mine = launched(puzzle.solution, lhs, dy, groups)
        theirs = launched(production, lhs, dy, groups)
        note(name, dtype, sizes, mine, theirs)
        # tgmm visits an empty group once, to store zeros; here the output is zeros to begin with.
        extra = int(empty.sum()) * (K // bk) * (N // bn)
        same_work(mine, theirs, extra)
        assert mine.steps == visits(sizes, bm) * (K // bk) * (N // bn)
        written_or_aliased(mine, set(np.flatnonzero(~empty).tolist()), axis=0)


def test_gradients_of_ragged_dot_are_the_last_two_rungs():
    sizes, r = (70, 0, 1, 100), np.random.default_rng(0)
    x, w, dy = (random(r, s, jnp.float32) for s in ((192, 256), (4, 256, 256), (192, 256)))
    dy, groups = dy.at[sum(sizes) :].set(0), jnp.asarray(sizes, jnp.int32)

    def pulled_back(x, w, dy):
        return jax.vjp(lambda x, w: jax.lax.ragged_dot(x, w, groups), x, w)[1](dy)

    dx, dw = quickly(pulled_back, x, w, dy)
    close(run(find("grouped_matmul_transposed").solution, dy, w, groups), dx, jnp.float32)
    close(run(find("grouped_outer").solution, x, dy, groups), dw, jnp.float32)


def test_three_hundred_random_sizes_take_the_steps_of_gmm():
    """Steps and dots alone, without running anything: production shapes, 8 to 64 experts."""
    name, r = "grouped_matmul", np.random.default_rng(0)
    production = functools.partial(gmm, tiling=(512, 1024, 1024), interpret=True)
    M, K, N = 8192, 1024, 2048
    for E in (8, 16, 64):
        shapes = (
            jax.ShapeDtypeStruct((M, K), jnp.float32),
            jax.ShapeDtypeStruct((E, K, N), jnp.float32),
        )
        for _ in range(5):
            sizes = r.multinomial(r.integers(1, M + 1), r.dirichlet(np.full(E, 0.3)))
            groups = jnp.asarray(sizes, jnp.int32)
            mine = launched(find(name).solution, *shapes, groups)
            same_work(mine, launched(production, *shapes, groups))
            assert mine.steps == visits(sizes, 512) * (K // 1024) * (N // 1024)
