"""The pipelines ladder's last exam: paged attention, over lengths and tables nobody tuned for.

Numbers are compared with a dense reference in float64, and with JAX's own `paged_attention`, run as
its authors would without a TPU: in JAX's simulator, on pages without NaN and on sequences that have
keys. Its own test takes such sequences, with atol 1e-2 and rtol 2e-2, and is skipped: "This kernel
has data races that need to be fixed" (`test_paged_attention` in
https://github.com/jax-ml/jax/blob/main/tests/pallas/tpu_paged_attention_kernel_test.py). On one
core none shows here. Pages that are fetched are counted by the copies that both kernels start.

JAX's `ragged_paged_attention` masks values, too, and its tests pad pages with NaN. The simulator
cannot run it (it reshapes Refs), so numbers on such pages are compared with the plain function that
its own tests compare it with. So are those on the shapes of `paged_attention`'s own test.
"""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as production
from jax.experimental.pallas.ops.tpu.paged_attention import util
from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import (
    ref_ragged_paged_attention as ragged,
)
from launched import interpreted, simulated, traced

from puzzles import find, trace
from puzzles._launch import faults, trace_call
from puzzles._program import by_jax
from puzzles._puzzle import load
from puzzles._simulator import foreseen, simulate
from puzzles.pipelines._paged import drawn, pages_needed

PAGE = 16
# lengths, query heads, key heads, pages a text may have
SHAPES = {
    "0, 1, page - 1, page, many": ((0, 1, PAGE - 1, PAGE, 5 * PAGE + 3), 8, 2, 6),
    "only empty": ((0, 0, 0), 4, 2, 2),
    "full": ((3 * PAGE, 3 * PAGE), 6, 3, 3),
    "one head": ((PAGE + 1, 0, 2 * PAGE), 1, 1, 3),
    "no groups": ((PAGE + 1, 2), 4, 4, 2),
    "one group": ((4 * PAGE - 1, PAGE, 7), 8, 1, 4),
}


def made(r, lengths, N, K, each, garbage=np.nan, shared=False, dtype="float32"):
    """Arguments with `garbage` in pages of nobody, and behind the last key of each text."""
    pages = max(2, len(lengths) * each + 3)
    return drawn(r, lengths, PAGE, pages, each, garbage, shared, heads=(K,), queries=N, dtype=dtype)


def dense(q, k_pages, v_pages, lengths, table, window=None, sinks=None):
    """Each text's keys laid side by side, one query head after another, in float64."""
    q, k_pages, v_pages = (np.asarray(x, np.float64) for x in (q, k_pages, v_pages))
    out = np.zeros_like(q)
    for b, length in enumerate(np.asarray(lengths)):
        own = np.asarray(table)[b, : -(-length // PAGE)]
        for h in range(q.shape[1] if length else 0):
            head = h // (q.shape[1] // k_pages.shape[0])
            k, v = (x[head, own].reshape(-1, q.shape[2])[:length] for x in (k_pages, v_pages))
            s = (k @ q[b, h] / np.sqrt(q.shape[2]))[-(window or length) :]
            sink = -np.inf if sinks is None else np.float64(sinks[h])
            p, rest = (np.exp(x - max(s.max(), sink)) for x in (s, sink))
            out[b, h] = p @ v[-len(s) :] / (p.sum() + rest)
    return out


def pages_of(fn, *args) -> int:
    """How many pages of (PAGE, H) its copies bring from HBM."""
    (launch,) = trace(fn, *args)
    assert launch.exact
    return sum(copy.bytes for copy in launch.copies) // (PAGE * args[0].shape[2] * args[1].itemsize)


SUMMIT = find("gapless_attention").solution
GROUPED = ("paged_grouped_attention", "gapless_attention")
PAGED = ("paged_attention", "paged_attention_dma", *GROUPED)


@pytest.mark.graduate
@pytest.mark.parametrize(
    ("shape", "name", "shared", "garbage"),
    sample.share(list(itertools.product(SHAPES, GROUPED, (False, True), (np.nan, 1.0))), 24),
)
def test_numbers_are_those_of_a_dense_reference(shape, garbage, shared, name):
    args = made(np.random.default_rng(7), *SHAPES[shape], garbage=garbage, shared=shared)
    got = interpreted(find(name).solution, *args)
    np.testing.assert_allclose(got, dense(*args), rtol=2e-5, atol=2e-5)


@pytest.mark.graduate
@pytest.mark.parametrize("name", sample.share(PAGED, 2))
def test_bf16_is_summed_in_f32_and_rounded_once(name):
    args = made(np.random.default_rng(8), (1, 0, PAGE + 5, 3 * PAGE), 1, 1, 3, dtype="bfloat16")
    q, k, v, *rest = args
    pages = (k, v) if name in GROUPED else (k[0], v[0])
    got = interpreted(find(name).solution, q, *pages, *rest)
    assert got.dtype == jnp.bfloat16
    rounding = 2.0**-8 * np.abs(dense(*args)) + 1e-5  # half a unit in the last place
    assert (np.abs(got.astype(np.float64) - dense(*args)) <= rounding).all()


# dtype, page, key heads, query heads a key head, head dim: the parameters of JAX's own
# test_paged_attention that these puzzles have.
JAXS = list(itertools.product(("float32", "bfloat16"), (16, 32, 64), (1, 8), (1, 4, 8), (128, 256)))


@sample.in_turn
@pytest.mark.parametrize(("dtype", "page", "K", "group", "H"), sample.some(JAXS))
def test_numbers_on_the_shapes_of_jaxs_own_test(dtype, page, K, group, H):
    r = np.random.default_rng(page * K + group)
    lengths, each = np.array([0, 3, 256, 513, 1023, 2048], np.int32), 2048 // page
    k, v = (jnp.asarray(x, dtype) for x in r.normal(size=(2, K, 6 * each, page, H)))
    q = jnp.asarray(r.normal(size=(6, K * group, H)), dtype)
    table = r.permutation(6 * each).reshape(6, each).astype(np.int32)
    got = interpreted(SUMMIT, q, k, v, lengths, table)
    k, v = (x[:, table].swapaxes(0, 1).reshape(6, K, 2048, H) for x in (k, v))
    want = util.grouped_query_attention_reference(q / np.sqrt(H).astype(dtype), k, v, lengths)
    # theirs is NaN for a sequence without keys
    assert (got[0] == 0).all()
    got, want = (np.asarray(x[1:], np.float32) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-2)


@sample.in_turn
@pytest.mark.parametrize("dtype", sample.some(["float32", "bfloat16"]))
def test_pages_padded_with_nan_beside_the_reference_of_jaxs_ragged_kernel(dtype):
    lengths = (1, PAGE - 1, PAGE, 5 * PAGE + 3, 37)
    args = q, k, v, *where = made(np.random.default_rng(3), lengths, 8, 2, 6, dtype=dtype)
    assert np.isnan(np.asarray(v, np.float32)).any()
    K, P, page, H = k.shape
    both = jnp.stack([k, v], axis=1).transpose(2, 3, 0, 1, 4).reshape(P, page, 2 * K, H)
    starts, count = jnp.arange(len(lengths) + 1), jnp.array([len(lengths)])
    want = ragged(q, both, *where, starts.astype(jnp.int32), count, sm_scale=H**-0.5)
    got = interpreted(SUMMIT, *args)
    limit = {"float32": 2e-5, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (got, want)), limit, limit)


WINDOWED = list(itertools.product(SHAPES, (1, PAGE, 2 * PAGE + 3, 10 * PAGE), (True, False)))


@pytest.mark.graduate
@pytest.mark.parametrize(("shape", "window", "sinks"), sample.some(WINDOWED))
def test_windows_and_sinks_beside_a_dense_reference_and_that_of_jaxs_ragged_kernel(
    shape, window, sinks
):
    """JAX's kernel has no sinks, so it is compared with sinks of -inf."""
    args = q, k, v, *where = made(np.random.default_rng(2), *SHAPES[shape], garbage=1.0)
    N, lengths = q.shape[1], np.asarray(where[0])
    logits = np.linspace(-3, 100, N) if sinks else np.full(N, -np.inf)
    solution, logits = find("paged_window_attention").solution, jnp.asarray(logits, jnp.float32)
    got = np.asarray(interpreted(solution, q, k, v, logits, *where, window))
    want = dense(*args, window, logits)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    some = lengths > 0
    if some.any() and not sinks:
        both = jnp.stack([k, v], axis=1).transpose(2, 3, 0, 1, 4)
        both = both.reshape(*both.shape[:2], -1, both.shape[4])
        starts, count = jnp.arange(some.sum() + 1), jnp.array([some.sum()])
        of_some = (x[some] for x in where)
        other = ragged(
            q[some], both, *of_some, starts.astype(jnp.int32), count,
            sm_scale=q.shape[2] ** -0.5, sliding_window=window,
        )  # fmt: skip
        np.testing.assert_allclose(got[some], other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("window", [1, PAGE, 2 * PAGE + 3, 10 * PAGE])
def test_pages_before_the_window_are_neither_fetched_nor_computed(window):
    q, k, v, *where = made(np.random.default_rng(1), (0, 3, 2 * PAGE, 5 * PAGE + 3), 8, 2, 6)
    args = q, k, v, jnp.zeros(8), *where, window
    (launch,) = trace(find("paged_window_attention").solution, *args)
    needed = 2 * pages_needed(where[0], PAGE, window)
    assert needed <= 2 * len(where[0]) * (-(-(window - 1) // PAGE) + 1)
    assert sum(copy.times for copy in launch.copies) == 2 * needed
    assert launch.dot_flops == needed * 2 * 2 * 4 * PAGE * q.shape[2]
    assert launch.exact


LATENT = [(s, d, n) for s in SHAPES for d in ("float32", "bfloat16") for n in (np.nan, 1.0)]


@sample.in_turn
@pytest.mark.parametrize(("shape", "dtype", "garbage"), sample.some(LATENT))
def test_latents_beside_a_dense_reference_and_that_of_jaxs_ragged_kernel(shape, dtype, garbage):
    """Both get each row as key and as value; of their output, the latent part is compared."""
    lengths, N, _, each = SHAPES[shape]
    args = made(np.random.default_rng(4), lengths, N, 1, each, garbage=garbage, dtype=dtype)
    q, (rows,), _, *where = args
    V, scale = rows.shape[2] // 2, q.shape[2] ** -0.5
    # a power of two times values that are exact in bf16, so it stays exact
    got = np.asarray(interpreted(find("latent_attention").solution, q / 16, rows, *where, V))
    limit = {"float32": 2e-5, "bfloat16": 1e-2}[dtype]
    want = dense(q * jnp.asarray(0.0625 / scale, jnp.float32), rows[None], rows[None], *where)
    np.testing.assert_allclose(got.astype(np.float32), want[..., :V], limit, limit)
    some = np.asarray(where[0]) > 0  # JAX's has no sequence without keys
    if some.any():
        both = jnp.stack([rows, rows], axis=2)
        starts, count = jnp.arange(some.sum() + 1), jnp.array([some.sum()])
        of_some = (x[some] for x in where)
        other = ragged(q[some] / 16, both, *of_some, starts.astype(jnp.int32), count, sm_scale=1.0)
        got, other = (np.asarray(x, np.float32) for x in (got[some], other[..., :V]))
        np.testing.assert_allclose(got, other, limit, limit)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_page_of_latents_is_fetched_once_for_keys_and_values(shape):
    lengths, N, _, each = SHAPES[shape]
    q, (rows,), _, *where = made(np.random.default_rng(1), lengths, N, 1, each)
    (launch,) = trace(find("latent_attention").solution, q, rows, *where, 128)
    assert sum(copy.times for copy in launch.copies) == pages_needed(where[0], PAGE)
    assert launch.exact
    assert not faults(launch)


def appended(pages, new, lengths, table):
    """One row after another, in float64; the sums are of each sequence's rows, old and new."""
    pages, new = (np.asarray(x, np.float64).copy() for x in (pages, new))
    sums = np.zeros(new[:, 0].shape)
    for b, length in enumerate(np.asarray(lengths)):
        for at in range(length + new.shape[1]):
            row = pages[table[b, at // PAGE], at % PAGE]
            if at >= length:
                row[...] = new[b, at - length]
            sums[b] += row
    return pages, sums


APPENDED = list(itertools.product((1, PAGE, 2 * PAGE + 3), ("float32", "bfloat16"), (np.nan, 1.0)))


@pytest.mark.graduate
@pytest.mark.parametrize(("T", "dtype", "garbage"), sample.some(APPENDED))
def test_new_rows_are_in_their_pages_and_in_the_sums(T, dtype, garbage):
    """Under `interpret=True` and in the TPU simulator; each page is fetched once."""
    puzzle, lengths = find("append_to_pages"), (0, PAGE - 1, PAGE, 3 * PAGE + 5)
    shapes = dict(T=T, page=PAGE, P=40, pages=7, R=16, H=128, dtype=dtype, garbage=garbage)
    args = puzzle.drawn(dict(lengths=lengths, **shapes), 0, 0)
    limit = {"float32": 2e-5, "bfloat16": 1e-2}[dtype]
    made = traced(puzzle.solution, *args)
    for results in (by_jax(made.jaxpr, made.leaves), simulate(made)):
        for got, want in zip(results, appended(*args), strict=True):
            np.testing.assert_allclose(np.asarray(got, np.float64), want, limit, limit)
    (launch,) = trace(puzzle.solution, *args)
    times = {"slots": T * len(lengths), "pages_ref": pages_needed(args[2] + T, PAGE)}
    for source, count in times.items():
        assert sum(copy.times for copy in launch.copies if copy.source == source) == count


@sample.in_turn
@pytest.mark.parametrize("seed", sample.some(range(24)))
def test_numbers_on_texts_that_are_drawn(seed):
    r = np.random.default_rng(seed)
    each, K = int(r.integers(1, 6)), int(r.choice([1, 2, 3]))
    lengths = tuple(int(n) for n in r.integers(0, each * PAGE + 1, r.integers(1, 5)))
    N = K * int(r.choice([1, 2, 4]))
    args = made(r, lengths, N, K, each, garbage=float(r.choice([np.nan, 1])), shared=seed % 2 == 0)
    np.testing.assert_allclose(interpreted(SUMMIT, *args), dense(*args), rtol=2e-5, atol=2e-5)


def clean(args):
    """The arguments without NaN, and without texts that have no keys: JAX's kernel takes these."""
    q, k, v, lengths, table = args
    some = np.asarray(lengths) > 0
    return q[some], jnp.nan_to_num(k), jnp.nan_to_num(v), lengths[some], table[some]


def theirs(q, k, v, lengths, table):
    """JAX's kernel, which scales nothing itself, with the compute blocks that fetch least."""
    scaled = q / np.float32(np.sqrt(q.shape[2]))
    return production(scaled, k, v, lengths, table, pages_per_compute_block=1)


WITH_KEYS = [(s, d) for s in SHAPES if s != "only empty" for d in ("float32", "bfloat16")]


@sample.in_turn
@pytest.mark.parametrize(("shape", "dtype"), sample.some(WITH_KEYS))
def test_numbers_and_fetches_beside_jax(shape, dtype):
    args = clean(made(np.random.default_rng(5), *SHAPES[shape], garbage=1.0, dtype=dtype))
    mine, other = (simulated(fn, *args) for fn in (SUMMIT, theirs))
    assert mine.dtype == dtype
    np.testing.assert_allclose(np.asarray(mine, np.float32), other, rtol=1e-2, atol=1e-2)
    needed = 2 * args[1].shape[0] * pages_needed(args[3], PAGE)
    assert pages_of(SUMMIT, *args) == needed <= pages_of(theirs, *args)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_slot_that_jax_keeps_in_a_prefetched_ref_is_not_taken_for_what_was_passed_in(shape):
    """A later step may read the values that an earlier step has written there."""
    args = made(np.random.default_rng(5), *SHAPES[shape], garbage=1.0)
    assert foreseen(trace_call(theirs, *args), None) is None


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_more_pages_are_fetched_than_the_lengths_need(shape, name):
    args = made(np.random.default_rng(1), *SHAPES[shape])
    (launch,) = trace(find(name).solution, *args)
    heads = args[1].shape[0]
    at_once, steps = (1, heads) if name == "paged_grouped_attention" else (heads, 1)
    copies = sum(copy.times for copy in launch.copies)
    assert copies * at_once == 2 * heads * pages_needed(args[3], PAGE)
    assert launch.steps == len(args[3]) * steps
    assert launch.exact
    assert not faults(launch)


def test_copies_overlap_from_the_second_page_on():
    args = made(np.random.default_rng(1), (4 * PAGE,), 2, 1, 4)
    (launch,) = trace(find("paged_grouped_attention").solution, *args)
    assert list(launch.in_flight) == [4, 3, 4, 3, 4, 3, 2, 1]


def test_one_wait_takes_the_bytes_of_four_copies():
    puzzle = find("sum_pages")
    (launch,) = trace(puzzle.solution, *puzzle.arguments(0))
    assert list(launch.in_flight) == [8, 8, 4]
    (its,) = (launch.waits or {}).values()
    assert (its.count, its.most, its.pauses) == (3, 8, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_only_the_first_wait_of_all_texts_is_bare(shape):
    args = made(np.random.default_rng(1), *SHAPES[shape])
    (launch,) = trace(SUMMIT, *args)
    assert launch.waits is not None
    assert all(its.pauses <= 1 for its in launch.waits.values())
    (launch,) = trace(find("paged_grouped_attention").solution, *args)
    some = np.count_nonzero(args[3]) * args[1].shape[0]
    assert all(its.pauses == some for its in launch.waits.values())


@pytest.mark.parametrize("name", ["pipelined_add", "pipelined_matmul", "launch_pipeline"])
def test_arrays_that_come_to_vmem_as_a_whole_are_refused(name):
    puzzle = find(name)
    stays = "in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],"
    assert puzzle.text.count(stays) == 1
    whole = load(puzzle, puzzle.text.replace(stays, ""), "whole")[name]
    (launch,) = trace(whole, *puzzle.arguments(0))
    with pytest.raises(AssertionError, match="comes to VMEM as a whole before the pipeline"):
        puzzle.audit(launch)
