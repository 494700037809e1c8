"""The grouped matmul ladder's last exam: JAX's own kernels, over group sizes nobody tuned for.

Numbers are compared at the tolerances of JAX's tests of Megablox (`tolerances` in
https://github.com/jax-ml/jax/blob/main/tests/pallas/tpu_gmm_test.py). Sizes are drawn as there,
and also such that add up to less. Every kernel is compiled once: sizes are data. JAX skips its own
tests of `gmm` where there is no TPU; the kernels run under `interpret=True` all the same.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import tempfile

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from hypothesis.configuration import set_hypothesis_home_dir
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, make_group_metadata, tgmm

from puzzles import Launch, find, trace
from puzzles._launch import faults
from puzzles.grouped_matmul import fused_gate_up
from puzzles.grouped_matmul.tile_metadata import tile_metadata

set_hypothesis_home_dir(tempfile.gettempdir())  # its folder is no place to collect tests from

TILING = {  # of the reference solutions, as Megablox orders them: rows, summed axis, columns
    "grouped_matmul": (64, 128, 128),
    "launch_grouped_matmul": (128, 128, 256),
    "grouped_matmul_transposed": (64, 128, 128),
    "grouped_outer": (64, 128, 128),
}
EXAMPLES = sample.examples(3, of=8)  # of each rung and dtype
E = 6
_table: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def table(request):
    yield
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{'rung':28}{'dtype':10}{'group sizes':28} steps  gmm's  dots")
        print("\n".join(_table))


def tolerances(dtype) -> dict[str, float]:
    return dict(atol=1e-3, rtol=1e-2 if dtype == jnp.bfloat16 else 1e-5)


def close(got, want, dtype) -> None:
    got, want = (np.asarray(x, np.float32) for x in (got, want))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, **tolerances(dtype))


@st.composite
def group_sizes(draw, rows: int, full: bool) -> tuple[int, ...]:
    """Sizes of E groups, cut anywhere or between tiles, many empty; `full`: no rows are left."""
    cuts = st.integers(0, rows) | st.sampled_from(range(0, rows + 1, 64))
    ends = sorted(draw(st.lists(cuts, min_size=E, max_size=E)))
    ends[-1] = rows if full else max(ends[-1], 1)
    return tuple(int(n) for n in np.diff([0, *ends]))


def random(r, shape, dtype):
    """Uniform in (-1, 1), rounded to bf16, as in JAX's tests."""
    return jnp.asarray(jnp.asarray(r.uniform(-1, 1, shape), jnp.bfloat16), dtype)


def visits(sizes, bm: int, first: int = 0, count: int | None = None) -> int:
    """Of all groups, or of `count` from the first on."""
    ends = np.cumsum(sizes)
    pairs = list(zip(ends - sizes, ends, strict=True))
    own = pairs[first:] if count is None else pairs[first : first + count]
    return sum(len(range(a // bm, -(-b // bm))) for a, b in own if b > a)


def launched(fn, *args) -> Launch:
    (launch,) = trace(fn, *args)
    return launch


def note(name, dtype, sizes, mine: Launch, theirs: Launch) -> None:
    dots = sum(int(dot.executed.sum()) for dot in mine.dots)
    _table.append(
        f"{name:28}{jnp.dtype(dtype).name:10}{sizes!s:28}{mine.steps:6}{theirs.steps:7}{dots:6}"
    )


def same_work(mine: Launch, theirs: Launch, extra: int = 0) -> None:
    """As many steps and dots; Megablox may have `extra` steps. Its kernels hold two dots under
    conditions, so the dots are summed."""
    assert mine.steps + extra == theirs.steps
    executed = [sum(int(dot.executed.sum()) for dot in one.dots) for one in (mine, theirs)]
    assert executed[0] == executed[1] == mine.steps
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


def exam(test, name: str, rows: int) -> None:
    """Runs `test` on sizes that hypothesis draws, the same ones every time."""
    cases = group_sizes(rows, full=name == "launch_grouped_matmul")
    every_time = hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],  # to shrink a failure would take minutes
    )
    every_time(hypothesis.given(cases)(test))()


ROWS = ["grouped_matmul", "launch_grouped_matmul", "grouped_matmul_transposed"]


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize(
    ("name", "dtype"), sample.some(list(itertools.product(ROWS, ("float32", "bfloat16"))))
)
def test_rows_equal_ragged_dot_and_gmm(name, dtype):
    dtype = getattr(jnp, dtype)
    puzzle, (bm, bk, bn) = find(name), TILING[name]
    K, N = (200, 320) if name == "launch_grouped_matmul" else (256, 256)
    r, M, transposed = np.random.default_rng(0), 3 * bm, name == "grouped_matmul_transposed"
    lhs, rhs = random(r, (M, K), dtype), random(r, (E, K, N), dtype)
    stored = rhs.swapaxes(1, 2) if transposed else rhs
    production = functools.partial(
        gmm,
        preferred_element_type=dtype,
        tiling=(bm, bk, bn),
        transpose_rhs=transposed,
        interpret=True,
    )
    run_mine, run_theirs = jax.jit(puzzle.solution), jax.jit(production)
    run_ragged = jax.jit(functools.partial(jax.lax.ragged_dot, preferred_element_type=jnp.float32))

    def test(sizes):
        groups, total = jnp.asarray(sizes, jnp.int32), sum(sizes)
        got = np.asarray(run_mine(lhs, stored, groups))
        assert got.dtype == dtype
        close(got[:total], run_ragged(lhs, rhs, groups)[:total], dtype)
        close(got[:total], run_theirs(lhs, stored, groups)[:total], dtype)
        assert (got[total:] == 0).all()  # where gmm leaves what it finds

        mine = launched(puzzle.solution, lhs, stored, groups)
        theirs = launched(production, lhs, stored, groups)
        note(name, dtype, sizes, mine, theirs)
        same_work(mine, theirs)
        assert mine.steps == visits(sizes, bm) * -(-K // bk) * -(-N // bn)
        written_or_aliased(mine, set(range(-(-total // bm))))

    exam(test, name, M)


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("dtype", sample.some(["float32", "bfloat16"]))
def test_outer_products_equal_ragged_dots_gradient_and_tgmm(dtype):
    name, dtype = "grouped_outer", getattr(jnp, dtype)
    puzzle, tiling, K, N = find(name), TILING[name], 128, 256
    bm, bk, bn = tiling
    r, M = np.random.default_rng(0), 3 * bm
    lhs, dy = random(r, (M, K), dtype), random(r, (M, N), dtype)

    def production(lhs, dy, groups):
        return tgmm(lhs.swapaxes(0, 1), dy, groups, dtype, tiling, interpret=True)

    def gradient(lhs, dy, groups):
        meant = jnp.arange(M)[:, None] < groups.sum()
        x, dy = (jnp.where(meant, a, 0).astype(jnp.float32) for a in (lhs, dy))
        weights = jnp.zeros((E, K, N))
        return jax.vjp(lambda w: jax.lax.ragged_dot(x, w, groups), weights)[1](dy)[0]

    run_mine, run_theirs, run_ragged = map(jax.jit, (puzzle.solution, production, gradient))

    def test(sizes):
        groups, empty = jnp.asarray(sizes, jnp.int32), np.asarray(sizes) == 0
        got = np.asarray(run_mine(lhs, dy, groups))
        close(got, run_ragged(lhs, dy, groups), dtype)
        close(got, run_theirs(lhs, dy, groups), dtype)
        assert (got[empty] == 0).all()

        mine = launched(puzzle.solution, lhs, dy, groups)
        theirs = launched(production, lhs, dy, groups)
        note(name, dtype, sizes, mine, theirs)
        # tgmm visits an empty group once, to store zeros; here the output is zeros to begin with.
        same_work(mine, theirs, extra=int(empty.sum()) * (K // bk) * (N // bn))
        assert mine.steps == visits(sizes, bm) * (K // bk) * (N // bn)
        written_or_aliased(mine, set(np.flatnonzero(~empty).tolist()))

    exam(test, name, M)


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("dtype", sample.some(["float32", "bfloat16"]))
def test_local_experts_equal_gmm_with_a_group_offset(dtype):
    """On each of three chips: the same numbers in all rows, the same steps and dots."""
    name, dtype = "local_experts", getattr(jnp, dtype)
    puzzle, (bm, bk, bn), L = find(name), TILING["grouped_matmul"], 2
    r, M, K, N = np.random.default_rng(0), 3 * bm, 256, 256
    lhs, rhs = random(r, (M, K), dtype), random(r, (E, K, N), dtype)

    def production(lhs, rhs, groups, first):
        options = dict(preferred_element_type=dtype, tiling=(bm, bk, bn), interpret=True)
        return gmm(lhs, rhs, groups, group_offset=first, **options)

    run_mine, run_theirs, run_whole = map(
        jax.jit, (puzzle.solution, production, find("grouped_matmul").solution)
    )

    def test(sizes):
        groups, parts = jnp.asarray(sizes, jnp.int32), []
        for first in range(0, E, L):
            args = lhs, rhs[first : first + L], groups, jnp.int32(first)
            parts.append(np.asarray(run_mine(*args), np.float32))
            close(parts[-1], run_theirs(*args), dtype)
            mine, theirs = launched(puzzle.solution, *args), launched(production, *args)
            note(name, dtype, sizes, mine, theirs)
            same_work(mine, theirs)
            assert mine.steps == visits(sizes, bm, first, L) * (K // bk) * (N // bn)
        np.testing.assert_array_equal(sum(parts), np.asarray(run_whole(lhs, rhs, groups)))

    exam(test, name, M)


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("dtype", sample.some(["float32", "bfloat16"]))
def test_a_fused_visit_equals_two_ragged_dots_and_their_swiglu(dtype):
    name, dtype = "fused_gate_up", getattr(jnp, dtype)
    puzzle, (bm, bk, bn) = find(name), TILING["grouped_matmul"]
    r, M, K, N = np.random.default_rng(0), 3 * bm, 256, 256
    lhs, gate, up = (random(r, s, dtype) for s in ((M, K), (E, K, N), (E, K, N)))

    def ragged(lhs, gate, up, groups):
        one, other = (
            jax.lax.ragged_dot(lhs, w, groups, preferred_element_type=jnp.float32)
            for w in (gate, up)
        )
        return jax.nn.silu(one) * other

    production = functools.partial(gmm, tiling=(bm, bk, bn), interpret=True)
    run_mine, run_ragged = map(jax.jit, (puzzle.solution, ragged))

    def test(sizes):
        groups, total = jnp.asarray(sizes, jnp.int32), sum(sizes)
        got = np.asarray(run_mine(lhs, gate, up, groups))
        assert got.dtype == dtype
        close(got[:total], run_ragged(lhs, gate, up, groups)[:total], dtype)
        assert (got[total:] == 0).all()
        mine = launched(puzzle.solution, lhs, gate, up, groups)
        theirs = launched(production, lhs, gate, groups)
        note(name, dtype, sizes, mine, theirs)
        assert mine.steps == theirs.steps  # of one of its two launches
        assert not faults(mine)
        written_or_aliased(mine, set(range(-(-total // bm))))

    exam(test, name, M)


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("dtype", sample.some(["float32", "bfloat16"]))
def test_quantised_weights_give_what_ragged_dot_gives_for_what_they_mean(dtype):
    name, dtype = "quantized_grouped_matmul", getattr(jnp, dtype)
    puzzle, (bm, bk, bn) = find(name), TILING["grouped_matmul"]
    r, M, K, N = np.random.default_rng(0), 3 * bm, 256, 256
    lhs = random(r, (M, K), dtype)
    integers = jnp.asarray(r.integers(-127, 128, (E, K, N)), jnp.int8)
    scales = jnp.asarray(r.uniform(0.001, 0.02, (E, 1, N)), jnp.float32)
    meant = integers.astype(jnp.float32) * scales
    production = functools.partial(
        gmm, preferred_element_type=dtype, tiling=(bm, bk, bn), interpret=True
    )
    run_mine, run_ragged = map(jax.jit, (puzzle.solution, jax.lax.ragged_dot))

    def test(sizes):
        groups, total = jnp.asarray(sizes, jnp.int32), sum(sizes)
        got = np.asarray(run_mine(lhs, integers, scales, groups))
        assert got.dtype == dtype
        close(got[:total], run_ragged(lhs.astype(jnp.float32), meant, groups)[:total], dtype)
        assert (got[total:] == 0).all()
        mine = launched(puzzle.solution, lhs, integers, scales, groups)
        theirs = launched(production, lhs, meant.astype(dtype), groups)
        note(name, dtype, sizes, mine, theirs)
        same_work(mine, theirs)
        assert mine.inputs[1].hbm_bytes * dtype(0).itemsize == theirs.inputs[1].hbm_bytes

    exam(test, name, M)


@pytest.mark.slow
def test_gradients_of_ragged_dot_are_two_of_the_rungs():
    sizes, r = (70, 0, 1, 100), np.random.default_rng(0)
    x, w, dy = (random(r, s, jnp.float32) for s in ((192, 256), (4, 256, 256), (192, 256)))
    dy, groups = dy.at[sum(sizes) :].set(0), jnp.asarray(sizes, jnp.int32)

    def pulled_back(x, w, dy):
        return jax.vjp(lambda x, w: jax.lax.ragged_dot(x, w, groups), x, w)[1](dy)

    dx, dw = jax.jit(pulled_back)(x, w, dy)
    close(find("grouped_matmul_transposed").solution(dy, w, groups), dx, jnp.float32)
    close(find("grouped_outer").solution(x, dy, groups), dw, jnp.float32)


@pytest.mark.slow
def test_three_hundred_random_sizes_take_the_visits_of_gmm():
    M, bm, r = 8192, 512, np.random.default_rng(0)
    for E in (8, 16, 64):
        mine = jax.jit(lambda sizes: find("tile_metadata").solution(sizes, M, bm))
        theirs = jax.jit(
            functools.partial(
                make_group_metadata,
                m=M,
                tm=bm,
                start_group=jnp.int32(0),
                num_nonzero_groups=E,
                visit_empty_groups=False,
            )
        )
        for _ in range(100):
            share = r.dirichlet(np.full(E, 0.3))
            sizes = r.multinomial(r.integers(1, M + 1), share).astype(np.int32)
            (_, *lists), steps = theirs(group_sizes=sizes)
            *listed, counted = mine(sizes)
            assert int(counted) == int(steps) == visits(sizes, bm)
            for a, b in zip(listed, lists, strict=True):
                assert np.array_equal(a[:steps], b[:steps])


@pytest.mark.slow
def test_production_shapes_take_the_steps_of_gmm():
    """Nothing is run: one layer of a mixture with 64 experts, by its launches alone."""
    M, K, N, experts, r = 16384, 2048, 4096, 64, np.random.default_rng(0)
    production = functools.partial(gmm, tiling=(512, 1024, 1024), interpret=True)
    bf16 = jnp.bfloat16
    shapes = jax.ShapeDtypeStruct((M, K), bf16), jax.ShapeDtypeStruct((experts, K, N), bf16)
    for _ in range(3):
        sizes = r.multinomial(r.integers(1, M + 1), r.dirichlet(np.full(experts, 0.3)))
        groups = jnp.asarray(sizes, jnp.int32)
        mine = launched(find("grouped_matmul").solution, *shapes, groups)
        same_work(mine, launched(production, *shapes, groups))


# The list of visits that Megablox goes through

EACH = 50  # group sizes for each of six shapes: 300


def megablox(group_sizes, M, bm):
    """(group_ids, tile_ids, num_steps) as `gmm` computes them."""
    # By its full name: the package calls its function `gmm`, too.
    gmm = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    (_, group_ids, tile_ids), num_steps = gmm.make_group_metadata(
        group_sizes=group_sizes,
        m=M,
        tm=bm,
        start_group=jnp.int32(0),
        num_nonzero_groups=len(group_sizes),
        visit_empty_groups=False,
    )
    return group_ids, tile_ids, num_steps


def parts(r, total, E):
    """Sizes of E groups that add up to `total`."""
    cuts = np.sort(r.integers(0, total + 1, E - 1))
    return np.diff(cuts, prepend=0, append=total)


def with_empty_groups(r, M, E, bm):
    sizes, some = np.zeros(E, int), r.random(E) < 0.4
    sizes[some] = parts(r, M, some.sum()) if some.any() else 0
    return sizes


def one_has_everything(r, M, E, bm):
    return M * (np.arange(E) == r.integers(E))


def below_the_sum(r, M, E, bm):
    return parts(r, r.integers(M), E)


def whole_tiles(r, M, E, bm):
    return bm * parts(r, M // bm, E)


def many_in_one_tile(r, M, E, bm):
    return parts(r, min(M, bm), E)


DRAWS = (
    lambda r, M, E, bm: parts(r, M, E),
    with_empty_groups,
    one_has_everything,
    below_the_sum,
    whole_tiles,
    many_in_one_tile,
)


@pytest.mark.parametrize(
    ("E", "M", "bm"),
    [(5, 512, 128), (8, 1024, 64), (1, 384, 128), (16, 512, 32), (64, 1024, 128), (3, 128, 128)],
)
def test_the_visits_are_those_of_megablox(E, M, bm):
    mine, theirs = (jax.jit(functools.partial(fn, M=M, bm=bm)) for fn in (tile_metadata, megablox))
    for n in range(EACH):
        r = np.random.default_rng((E, M, n))
        sizes = DRAWS[n % len(DRAWS)](r, M, E, bm)
        got, want = (
            [np.asarray(x) for x in fn(jnp.asarray(sizes, jnp.int32))] for fn in (mine, theirs)
        )
        steps = int(want[2])
        assert got[2] == steps, sizes
        for a, b in zip(got[:2], want[:2], strict=True):
            assert a.shape == b.shape == (M // bm + E - 1,)
            assert a.dtype == np.int32
            np.testing.assert_array_equal(a[:steps], b[:steps], err_msg=str(sizes))
        # What nobody visits is legal, and repeats the last visit.
        assert ((got[0] >= 0) & (got[0] < E) & (got[1] >= 0) & (got[1] < M // bm)).all(), sizes
        assert all(len(set(x[max(steps, 1) - 1 :].tolist())) == 1 for x in got[:2]), sizes


def test_nothing_to_do_is_no_step():
    group_ids, tile_ids, steps = tile_metadata(jnp.zeros(4, jnp.int32), 256, 64)
    assert steps == 0
    assert not group_ids.any()
    assert not tile_ids.any()


@pytest.mark.graduate
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

    got = gradients(fused_gate_up.gated)(lhs, w_gate, w_up)
    want = gradients(fused_gate_up.fused_gate_up_spec)(lhs, w_gate, w_up)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.sqrt(np.mean(b**2)))
    assert not np.any(got[0][int(sizes.sum()) :])
    assert len(trace(gradients(fused_gate_up.gated), lhs, w_gate, w_up)) == 7
