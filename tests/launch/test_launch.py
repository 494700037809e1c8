"""Launches read from traces: every expected number is computed by hand in a comment.

test_fuzz.py compares blocks, and how often they move, with plain Python.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, copy_kernel
from launched import one as only

from puzzles._launch import trace
from puzzles._launch.abstract_evaluation import AbstractInterpreter
from puzzles._program import AbstractValueError
from puzzles._receipt import receipt_text

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
S = jax.ShapeDtypeStruct
ROW = pl.BlockSpec((8, 128), lambda i: (i, 0))
X = S((32, 128), f32)


def over_rows(x, in_spec=ROW, out_spec=ROW):
    """The launch of a copy of x, in blocks of 8 rows."""
    grid = (x.shape[0] // 8,)
    return only(lambda x: call(copy_kernel, x, grid, [in_spec], out_spec)(x), x)


def test_buffers_are_two_unless_there_is_one_block_or_the_spec_says_so():
    one = over_rows(X, pl.BlockSpec((8, 128), lambda i: (0, 0)))
    assert [o.buffers for o in one.operands] == [1, 2]
    assert [o.transfers for o in one.operands] == [1, 4]
    once = pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(1))
    assert [o.buffers for o in over_rows(X, once).operands] == [1, 2]
    whole = only(lambda x: pl.pallas_call(copy_kernel, out_shape=x)(x), X)  # no grid, no specs
    assert (whole.grid, whole.steps, whole.program_ids.shape) == ((), 1, (1, 0))
    assert [(o.block, o.buffers, o.transfers) for o in whole.operands] == [(X.shape, 1, 1)] * 2


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        (f32, {1: 1, 2: 2, 3: 4, 5: 8, 8: 8, 12: 16}),
        (bf16, {1: 2, 2: 2, 3: 4, 5: 8, 8: 8, 12: 16}),
        (jnp.int8, {1: 4, 2: 4, 3: 4, 5: 8, 8: 8, 12: 16, 24: 24}),
    ],
)
def test_rows_are_padded_to_whole_words_and_then_to_tiles_of_8(dtype, held):
    for rows, padded in held.items():
        one = only(lambda x: pl.pallas_call(copy_kernel, out_shape=x)(x), S((3, rows, 100), dtype))
        assert one.vmem_bytes == 2 * 3 * padded * 128 * jnp.dtype(dtype).itemsize


def test_mosaic_holds_a_bool_as_int32():
    one = over_rows(S((16, 128), jnp.bool_))  # four bytes an element, on both ways
    assert (one.vmem_bytes, one.hbm_bytes) == (4 * 4096, 2 * 16 * 128 * 4)


def gather_kernel(rows_ref, x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0


def gather(rows, x):
    return call(
        gather_kernel,
        S((8 * rows.shape[0], 128), f32),
        (rows.shape[0],),
        [pl.BlockSpec((8, 128), lambda i, rows_ref: (rows_ref[i], 0))],
        pl.BlockSpec((8, 128), lambda i, rows_ref: (i, 0)),
        scalars=1,
    )(rows, x)


def test_what_depends_on_data_that_are_not_there_names_the_remedy():
    x = S((32, 128), f32)
    with pytest.raises(
        AbstractValueError, match=r"index map of x_ref in gather_kernel reads rows_ref"
    ) as e:
        trace(gather, S((5,), i32), x)
    assert "depends on data: pass arrays (such as group_sizes) instead of ShapeDtypeStructs" in str(
        e.value
    )
    assert "argument 1, int32[5]" in str(e.value)
    with pytest.raises(
        AbstractValueError, match=r"^the grid of copy_kernel depends on data: pass arrays"
    ):
        trace(lambda n, x: call(copy_kernel, x, (n,), [ROW], ROW)(x), S((), i32), x)


def test_a_single_scalar_may_be_read_whole_and_a_table_pads_its_lanes_in_smem():
    def kernel(n_ref, table_ref, x_ref, o_ref):
        i = pl.program_id(0)

        @pl.when((jnp.sum(n_ref[...]) > i) & (table_ref[i, 1] > 0))
        def _():
            o_ref[...] = x_ref[...] * 2.0

    def fn(n, table, x):
        spec = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
        return call(kernel, x, (3,), [spec], spec, scalars=2)(n, table, x)

    one = only(fn, jnp.array([2]), jnp.array([[0, 1], [1, 0], [0, 5]]), S((24, 128), f32))
    assert one.busy.tolist() == [True, False, False]
    assert one.smem_bytes == 4 + 3 * 128 * 4


def test_compiler_params_are_plain_words():
    words = ("parallel", pltpu.PARALLEL, pltpu.ARBITRARY)
    params = pltpu.CompilerParams(dimension_semantics=words, vmem_limit_bytes=2**25)
    spec = pl.BlockSpec((8, 128), lambda i, j, k: (i, 0))
    how = [{}, dict(compiler_params=params, name="mine")]
    plain, mine = (
        only(lambda x, kw=kw: call(copy_kernel, x, (4, 1, 1), [spec], spec, **kw)(x), X)
        for kw in how
    )
    assert (plain.dimension_semantics, plain.vmem_limit_bytes) == (None, None)
    assert mine.dimension_semantics == ("parallel", "parallel", "arbitrary")
    assert (mine.vmem_limit_bytes, mine.name, mine.settings.interpret) == (2**25, "mine", True)


def test_a_branch_inside_a_loop_knows_the_loop_variable():
    def kernel(a_ref, o_ref):
        i = pl.program_id(0)

        def body(j, c):
            return lax.cond(j <= i, lambda: c + a_ref[...], lambda: c)

        o_ref[...] = lax.fori_loop(0, 4, body, jnp.zeros((8, 128), f32))

    one = only(lambda a: call(kernel, a, (3,), [ROW], ROW)(a), S((24, 128), f32))
    assert one.flops == (1 + 2 + 3) * 1024
    assert one.unknown_branches == 0


def test_a_loop_too_long_to_follow_still_counts():
    def kernel(a_ref, o_ref):
        o_ref[...] = lax.fori_loop(0, 10**6, lambda _, c: c + a_ref[...], a_ref[...])

    one = only(lambda a: pl.pallas_call(kernel, out_shape=a)(a), S((8, 128), f32))
    assert one.flops == 10**6 * 1024


def test_effects_in_a_kernel_do_not_happen(capfd):
    def kernel(o_ref):
        pl.debug_print("step {}", pl.program_id(0))
        jax.debug.print("step {}", pl.program_id(0))
        o_ref[...] = jnp.ones_like(o_ref)

    only(lambda: call(kernel, S((32, 128), f32), (4,), [], ROW)())
    jax.effects_barrier()
    assert "step" not in "".join(capfd.readouterr())


def test_a_copy_that_is_never_started_is_not_logged_at_each_trace(caplog):
    """JAX itself writes a red line whenever the function is traced, here several times."""

    def kernel(x_ref, o_ref, sem):
        pltpu.make_async_copy(x_ref, o_ref, sem)
        o_ref[...] = x_ref[...]

    def copies(x):
        return call(kernel, X, scratch=[pltpu.SemaphoreType.DMA])(x)

    jax.make_jaxpr(copies)(jnp.ones(X.shape))
    assert "was not used" in caplog.text
    caplog.clear()
    trace(copies, X)
    assert caplog.text == ""


def test_a_launch_inside_a_loop_is_read_once_and_says_how_often_it_runs():
    def fn(x):
        step = lambda _, y: pl.pallas_call(copy_kernel, out_shape=y)(y)  # noqa: E731
        return lax.fori_loop(0, 5, step, x)

    one = only(fn, S((8, 128), f32))
    assert (one.hbm_bytes, one.times) == (2 * 4096, 5)
    assert "5 times" in receipt_text((one,))
    (nested,) = trace(lambda x: lax.map(lambda row: lax.map(fn, row), x), S((3, 2, 8, 128), f32))
    assert nested.times == 30
    open_ended = lambda n, x: lax.fori_loop(0, n, lambda _, y: fn(y), x)  # noqa: E731
    assert only(open_ended, jnp.int32(2), S((8, 128), f32)).times is None
    with pytest.raises(AbstractValueError, match="outside the loop"):
        trace(
            lambda rows, x: lax.map(lambda r: gather(r, x), rows),
            jnp.zeros((9, 5), i32),  # too many turns to read each
            S((32, 128), f32),
        )


EDGES = [-(2**31), -(2**31) + 1, -128, -7, -1, 0, 1, 2, 5, 31, 32, 33, 128, 2**31 - 1]
PAIRS = [lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.lt, lax.ne]
PAIRS += [lax.bitwise_and, lax.bitwise_xor, lax.shift_left, lax.shift_right_logical]
PAIRS += [lax.shift_right_arithmetic, jnp.floor_divide, jnp.remainder, jnp.where, jnp.clip]
ONES = [lax.neg, lax.abs, lax.sign, lax.bitwise_not, lax.population_count, lax.clz]


@pytest.mark.parametrize("function", PAIRS + ONES, ids=lambda f: f.__name__)
def test_integers_behave_as_in_xla(function):
    """The evaluator against XLA on every pair of edge values, wrap-around and x // 0 included."""
    x, y = (a.reshape(-1) for a in np.meshgrid(np.array(EDGES, np.int32), EDGES))
    args = (x,) if function in ONES else (x, y.astype(np.int32))
    if function in (jnp.where, jnp.clip):
        args = (*args, args[0])
    jaxpr = jax.make_jaxpr(function)(*(jnp.int32(0) for _ in args))
    (got,) = AbstractInterpreter((len(x),)).start(jaxpr, args)
    want = np.asarray(jax.jit(jax.vmap(function))(*args))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
