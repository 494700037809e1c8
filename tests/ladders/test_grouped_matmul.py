"""The grouped matmul ladder's last exam: JAX's own kernels, over group sizes nobody tuned for.

Numbers are compared at the tolerances of JAX's tests of Megablox (`tolerances` in
https://github.com/jax-ml/jax/blob/main/tests/pallas/tpu_gmm_test.py). Sizes are drawn as there,
and also such that add up to less. Every kernel is compiled once: sizes are data. JAX skips its own
tests of `gmm` without a TPU, though the kernels run under `interpret=True`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, make_group_metadata, tgmm
from launched import one as launched

from puzzles import Launch, find, trace
from puzzles._launch import faults
from puzzles.grouped_matmul import block_scaled_grouped_matmul, fused_gate_up
from puzzles.grouped_matmul.tile_metadata import tile_metadata

TILING = {  # of the reference solutions, as Megablox orders them: rows, summed axis, columns
    "grouped_matmul": (64, 128, 128),
    "launch_grouped_matmul": (128, 128, 256),
    "grouped_matmul_transposed": (64, 128, 128),
    "grouped_outer": (64, 128, 128),
    "local_experts": (64, 128, 128),
    "fused_gate_up": (64, 128, 128),
    "quantized_grouped_matmul": (64, 128, 128),
    "block_scaled_grouped_matmul": (64, 128, 128),
}
WIDTHS = {"launch_grouped_matmul": (200, 320), "grouped_outer": (128, 256)}
# Group sizes for each puzzle and dtype.
EXAMPLES = range(8 if sample.ALL else 3)
E, LOCAL = 6, 2


def tolerances(dtype) -> dict[str, float]:
    return dict(atol=1e-3, rtol=1e-2 if dtype == jnp.bfloat16 else 1e-5)


def close(got, want, dtype) -> None:
    got, want = (np.asarray(x, np.float32) for x in (got, want))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, **tolerances(dtype))


def sizes_of(number: int, E: int, M: int, bm: int, full: bool = False) -> np.ndarray:
    """Sizes of E groups, cut anywhere or between tiles, many empty; `full`: no rows are left."""
    r = np.random.default_rng((E, M, number))
    unit = int(r.choice([1, bm]))
    end = M if full else int(r.choice([M, bm, unit * r.integers(1, M // unit + 1)]))
    some = unit * r.integers(0, end // unit + 1, r.integers(1, E + 1))
    cuts = np.sort(r.choice(some, E - 1))  # if two are equal, a group is empty
    return np.diff(cuts, prepend=0, append=end)


def random(r, shape, dtype):
    """Uniform in (-1, 1), rounded to bf16, as in JAX's tests."""
    return jnp.asarray(jnp.asarray(r.uniform(-1, 1, shape), jnp.bfloat16), dtype)


def visits(sizes, bm: int, first: int = 0, count: int | None = None) -> int:
    """Of all groups, or of `count` from the first on."""
    ends = np.cumsum(sizes)
    pairs = list(zip(ends - sizes, ends, strict=True))
    own = pairs[first:] if count is None else pairs[first : first + count]
    return sum(len(range(a // bm, -(-b // bm))) for a, b in own if b > a)


def same_work(mine: Launch, theirs: Launch, extra: int = 0, dots: int = 1) -> None:
    """As many steps, with one dot each or `dots` of ours; Megablox may have `extra` steps. Its
    kernels hold two dots under conditions, so the dots are summed."""
    assert mine.steps + extra == theirs.steps
    executed = [sum(int(dot.executed.sum()) for dot in one.dots) for one in (mine, theirs)]
    assert executed == [dots * mine.steps, mine.steps]
    assert mine.unknown_branches == theirs.unknown_branches == 0
    assert not faults(mine)


def written_or_aliased(launch: Launch, visited: set[int]) -> None:
    """Along axis 0 the blocks written are exactly `visited`; all others are aliased zeros."""
    (out,) = launch.outputs
    assert set(out.blocks[:, 0].tolist()) == visited
    every = -(-out.shape[0] // out.sizes[0])
    if len(visited) < every:
        ((source, _),) = launch.aliases
        zeros = launch.inputs[source]
        assert (zeros.space, zeros.shape, zeros.transfers) == ("any", out.shape, 0)


@dataclass
class Exam:
    """Operands before the group sizes, of a puzzle and of JAX's kernel; numbers by ragged dots."""

    mine: list
    theirs: list
    wanted: Callable  # of the group sizes
    tiles: int  # steps of a visit
    dots: int = 1  # a step
    others: bool = False  # JAX's numbers are of something else
    first: int | None = None  # of the experts on a chip

    @property
    def chip(self) -> list:
        return [] if self.first is None else [jnp.int32(self.first)]


def ragged(lhs, rhs, groups):
    return jax.lax.ragged_dot(lhs, rhs, groups, preferred_element_type=jnp.float32)


def outer(lhs, dy, groups):
    """The gradient of a ragged dot."""
    meant = jnp.arange(len(lhs))[:, None] < groups.sum()
    x, dy = (jnp.where(meant, a, 0).astype(jnp.float32) for a in (lhs, dy))
    weights = jnp.zeros((E, x.shape[1], dy.shape[1]))
    return jax.vjp(lambda w: jax.lax.ragged_dot(x, w, groups), weights)[1](dy)[0]


def exam_of(name: str, dtype, first: int | None) -> Exam:
    r, (bm, bk, bn) = np.random.default_rng(0), TILING[name]
    M, (K, N) = 3 * bm, WIDTHS.get(name, (256, 256))
    tiles = -(-K // bk) * -(-N // bn)
    lhs, rhs = random(r, (M, K), dtype), random(r, (E, K, N), dtype)
    if name == "grouped_matmul_transposed":
        stored = rhs.swapaxes(1, 2)
        return Exam([lhs, stored], [lhs, stored], functools.partial(ragged, lhs, rhs), tiles)
    if name == "grouped_outer":
        dy = random(r, (M, N), dtype)
        return Exam([lhs, dy], [lhs.swapaxes(0, 1), dy], functools.partial(outer, lhs, dy), tiles)
    if name == "local_experts":
        args = [lhs, rhs[first : first + LOCAL]]
        return Exam(args, args, functools.partial(ragged, lhs, rhs), tiles, first=first)
    if name == "fused_gate_up":
        up = random(r, (E, K, N), dtype)

        def gated(groups):
            return jax.nn.silu(ragged(lhs, rhs, groups)) * ragged(lhs, up, groups)

        return Exam([lhs, rhs, up], [lhs, rhs], gated, tiles, dots=2, others=True)
    if name in ("quantized_grouped_matmul", "block_scaled_grouped_matmul"):
        integers = jnp.asarray(r.integers(-127, 128, (E, K, N)), jnp.int8)
        blocks = () if name == "quantized_grouped_matmul" else (K // 128,)
        scales = jnp.asarray(r.uniform(0.001, 0.02, (E, *blocks, 1, N)), jnp.float32)
        each = jnp.repeat(scales[:, :, 0], 128, axis=1) if blocks else scales
        meant = integers.astype(jnp.float32) * each
        wanted = functools.partial(ragged, lhs.astype(jnp.float32), meant)
        return Exam([lhs, integers, scales], [lhs, meant.astype(dtype)], wanted, tiles, others=True)
    return Exam([lhs, rhs], [lhs, rhs], functools.partial(ragged, lhs, rhs), tiles)


PUZZLES = [(name, None) for name in TILING if name != "local_experts"]
PUZZLES += [("local_experts", first) for first in range(0, E, LOCAL)]


@sample.in_turn
@pytest.mark.parametrize(
    ("puzzle", "dtype"), sample.some(list(itertools.product(PUZZLES, ("float32", "bfloat16"))), 2)
)
def test_numbers_and_work_are_those_of_ragged_dot_and_megablox(puzzle, dtype):
    """Also on one chip of three. Rows without an owner are zeros; gmm leaves them unwritten."""
    (name, first), dtype = puzzle, getattr(jnp, dtype)
    exam, solution, (bm, bk, bn) = exam_of(name, dtype, first), find(name).solution, TILING[name]
    options = dict(preferred_element_type=dtype, tiling=(bm, bk, bn), interpret=True)
    if name == "grouped_matmul_transposed":
        options["transpose_rhs"] = True
    if first is not None:
        options["group_offset"] = exam.chip[0]
    production = functools.partial(tgmm if name == "grouped_outer" else gmm, **options)
    run_mine, run_theirs, run_ragged = map(jax.jit, (solution, production, exam.wanted))

    for number in EXAMPLES:
        sizes = sizes_of(number, E, 3 * bm, bm, full=name == "launch_grouped_matmul")
        groups, ends = jnp.asarray(sizes, jnp.int32), np.cumsum(sizes)
        got = np.asarray(run_mine(*exam.mine, groups, *exam.chip))
        assert got.dtype == dtype
        low, high = (0, E) if first is None else (first, first + LOCAL)
        if name == "grouped_outer":
            own, extra = sizes > 0, int((sizes == 0).sum())  # tgmm visits empty groups, too
        else:
            rows = np.arange(len(got))
            own, extra = (rows >= ends[low] - sizes[low]) & (rows < ends[high - 1]), 0
        close(got[own], run_ragged(groups)[own], dtype)
        if not exam.others:
            close(got[own], run_theirs(*exam.theirs, groups)[own], dtype)
        assert (got[~own] == 0).all()

        mine = launched(solution, *exam.mine, groups, *exam.chip)
        theirs = launched(production, *exam.theirs, groups)
        same_work(mine, theirs, extra * exam.tiles, exam.dots)
        assert mine.steps == visits(sizes, bm, low, high - low) * exam.tiles
        size = 1 if name == "grouped_outer" else bm
        written_or_aliased(mine, set((np.flatnonzero(own) // size).tolist()))


# The list of visits that Megablox goes through

EACH = 50  # group sizes for each of seven shapes: 350
OF_SIZES = [(5, 512, 128), (8, 1024, 64), (1, 384, 128), (16, 512, 32), (64, 1024, 128)]
OF_SIZES += [(3, 128, 128), (64, 8192, 512)]


def megablox(group_sizes, M, bm):
    """(group_ids, tile_ids, num_steps) as `gmm` computes them."""
    (_, group_ids, tile_ids), num_steps = make_group_metadata(
        group_sizes=group_sizes,
        m=M,
        tm=bm,
        start_group=jnp.int32(0),
        num_nonzero_groups=len(group_sizes),
        visit_empty_groups=False,
    )
    return group_ids, tile_ids, num_steps


@sample.in_turn
@pytest.mark.parametrize(("E", "M", "bm"), OF_SIZES)
def test_the_visits_are_those_of_megablox(E, M, bm):
    mine, theirs = (jax.jit(functools.partial(fn, M=M, bm=bm)) for fn in (tile_metadata, megablox))
    for n in range(EACH):
        sizes = sizes_of(n, E, M, bm) * (n > 0)  # at first there is nothing to do
        got, want = (
            [np.asarray(x) for x in fn(jnp.asarray(sizes, jnp.int32))] for fn in (mine, theirs)
        )
        steps = int(want[2])
        assert got[2] == steps, sizes
        for a, b in zip(got[:2], want[:2], strict=True):
            assert a.shape == b.shape == (M // bm + E - 1,)
            assert a.dtype == np.int32
            np.testing.assert_array_equal(a[:steps], b[:steps], err_msg=str(sizes))
            assert (np.diff(a[:steps]) >= 0).all()  # one right after another
        # A tile that no visit needs is legal, and repeats the last visit.
        assert ((got[0] >= 0) & (got[0] < E) & (got[1] >= 0) & (got[1] < M // bm)).all(), sizes
        assert all(len(set(x[max(steps, 1) - 1 :].tolist())) == 1 for x in got[:2]), sizes


@sample.in_turn
@pytest.mark.parametrize("dims", sample.some([dict(sizes=(50, 0, 40, 3)), dict(E=144)]), ids=str)
def test_gate_and_up_in_one_launch_train(dims):
    """Seven launches, and the gradients of the dense form; rows of nobody have none."""
    lhs, w_gate, w_up, sizes = fused_gate_up.make_inputs(
        jax.random.key(0), M=128, K=72, N=136, **dims
    )
    lhs, w_gate = jnp.nan_to_num(lhs), w_gate.at[0].divide(40)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(128, 136)), jnp.float32)

    def gradients(fn):
        def loss(*operands):
            return jnp.sum(weights * fn(*operands, sizes))

        return jax.grad(loss, argnums=(0, 1, 2))

    got = jax.jit(gradients(fused_gate_up.gated))(lhs, w_gate, w_up)
    want = jax.jit(gradients(fused_gate_up.fused_gate_up_spec))(lhs, w_gate, w_up)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.sqrt(np.mean(b**2)))
    assert not np.any(got[0][int(sizes.sum()) :])
    assert len(trace(gradients(fused_gate_up.gated), lhs, w_gate, w_up)) == 7


@sample.in_turn
@pytest.mark.parametrize(
    ("K", "N", "dtype"),
    sample.some([(128, 256, "float32"), (2048, 512, "bfloat16"), (3072, 640, "bfloat16")], 2),
)
def test_blocks_with_scales_agree_with_jax_and_with_float64(K, N, dtype):
    """`jax.nn.scaled_matmul` gets the rows of a single group, with scales of 1."""
    lhs, integers, scales, sizes = block_scaled_grouped_matmul.make_inputs(
        jax.random.key(0), M=128, K=K, N=N, sizes=(50, 0, 61, 3), dtype=dtype
    )
    got = np.float32(find("block_scaled_grouped_matmul").solution(lhs, integers, scales, sizes))
    ends = np.cumsum(sizes)
    for e, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
        if start == end:
            continue
        rows, weights = np.float64(lhs[start:end]), np.float64(integers[e])
        exact = rows @ (weights * np.repeat(np.float64(scales[e, :, 0]), 128, axis=0))
        ones = np.ones((end - start, K // 128))
        operands = (jnp.float32(x)[None] for x in (rows, weights.T, ones, scales[e, :, 0].T))
        theirs = jax.nn.scaled_matmul(*operands)[0]
        size = np.sqrt(np.mean(exact**2))
        np.testing.assert_allclose(theirs, exact, rtol=1e-6, atol=4e-6 * size)
        rounding = 2.0**-8 if dtype == "bfloat16" else 1e-6  # of 8 bits
        np.testing.assert_allclose(got[start:end], exact, rtol=rounding, atol=4e-6 * size)
    assert not got[ends[-1] :].any()
