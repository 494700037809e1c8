"""Launches read from traces: every expected number is computed by hand in a comment."""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles._launch import Abstract, Launch, trace
from puzzles._launch.evaluate import Walk
from puzzles._receipt import receipt_text

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
S = jax.ShapeDtypeStruct


def only(fn, *args) -> Launch:
    (launch,) = trace(fn, *args)
    return launch


def call(kernel, out, grid=(), specs=None, out_specs=None, scratch=(), scalars=0, **kw):
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=scalars,
        grid=grid,
        in_specs=pl.no_block_spec if specs is None else specs,
        out_specs=pl.no_block_spec if out_specs is None else out_specs,
        scratch_shapes=list(scratch),
    )
    return pl.pallas_call(kernel, grid_spec=spec, out_shape=out, interpret=True, **kw)


def copy_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=f32)

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def matmul(a, b, bm=128, bk=128, bn=128, **kw):
    (M, K), (_, N) = a.shape, b.shape
    return call(
        matmul_kernel,
        S((M, N), a.dtype),
        (M // bm, N // bn, K // bk),
        [
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        [pltpu.VMEM((bm, bn), f32)],
        **kw,
    )(a, b)


def test_matmul_fetches_a_block_only_when_its_index_changes():
    one = only(matmul, S((256, 384), bf16), S((384, 128), bf16))
    assert (one.name, one.grid, one.steps) == ("matmul_kernel", (2, 1, 3), 6)
    a, b = one.inputs
    (o,) = one.outputs
    assert [x.name for x in one.operands] == ["a_ref", "b_ref", "o_ref", "acc_ref"]
    assert a.blocks.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert (a.transfers, b.transfers, o.transfers) == (6, 6, 2)
    # 6 + 6 blocks of 128 * 128 bf16 read, 2 written: 32,768 bytes each.
    assert (one.hbm_bytes_read, one.hbm_bytes_written) == (12 * 32768, 2 * 32768)
    assert o.fetched.tolist() == [True, False, False, True, False, False]
    # Two buffers of 32 KiB for a, b and o, and 64 KiB of f32 scratch.
    assert [x.buffers for x in one.operands] == [2, 2, 2, 1]
    assert one.vmem_bytes == 3 * 2 * 32768 + 65536
    # A dot of 2 * 128**3 and an addition of 128 * 128 on each of 6 steps.
    assert one.dots[0].executed.tolist() == [1] * 6
    assert one.dots[0].dtypes == ("bfloat16", "bfloat16", "float32")
    assert one.dot_flops == one.dots[0].flops == 6 * 2 * 128**3
    assert one.flops == 6 * (2 * 128**3 + 128 * 128)
    assert one.intensity == one.flops / one.hbm_bytes == one.flops / (14 * 32768)
    assert one.program_ids.tolist() == [[i, 0, k] for i in range(2) for k in range(3)]
    assert one.busy.all()
    assert one.interpret is True
    assert one.unknown_branches == 0


def test_a_block_that_stays_is_fetched_once():
    # 4 columns of 128 over one row of blocks: b changes at every step, a never does.
    one = only(matmul, S((128, 128), f32), S((128, 512), f32))
    assert [x.transfers for x in one.inputs] == [1, 4]


def test_ragged_edges_move_only_what_is_there():
    spec = pl.BlockSpec((128, 128), lambda i, j: (i, j))
    one = only(lambda x: call(copy_kernel, x, (2, 2), [spec], spec)(x), S((200, 130), f32))
    # Every element once: 200 * 130 * 4 bytes, though the blocks cover 256 * 256.
    assert one.hbm_bytes_read == one.hbm_bytes_written == 200 * 130 * 4
    assert one.vmem_bytes == 2 * 2 * 128 * 128 * 4


def test_a_constant_index_map_has_one_buffer_and_one_transfer():
    def kernel(x_ref, bias_ref, o_ref):
        o_ref[...] = x_ref[...] + bias_ref[...]

    row = pl.BlockSpec((8, 128), lambda i: (i, 0))
    bias = pl.BlockSpec((1, 128), lambda i: (0, 0))
    launch = only(
        lambda x, b: call(kernel, x, (4,), [row, bias], row)(x, b),
        S((32, 128), f32),
        S((1, 128), f32),
    )
    assert [x.buffers for x in launch.operands] == [2, 1, 2]
    assert [x.transfers for x in launch.operands] == [4, 1, 4]
    # A row of (1, 128) takes no more than its 512 bytes, each of the four (8, 128) buffers 4096.
    assert launch.vmem_bytes == 4 * 4096 + 512
    assert launch.flops == 32 * 128


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
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    # Four bytes an element, on both ways.
    one = only(lambda x: call(copy_kernel, x, (2,), [spec], spec)(x), S((16, 128), jnp.bool_))
    assert (one.vmem_bytes, one.hbm_bytes) == (4 * 4096, 2 * 16 * 128 * 4)


def test_no_grid_and_no_specs_is_one_step_over_whole_arrays():
    one = only(lambda x: pl.pallas_call(copy_kernel, out_shape=x)(x), S((24, 256), f32))
    assert (one.grid, one.steps) == ((), 1)
    assert one.program_ids.shape == (1, 0)
    assert one.inputs[0].block == (24, 256)
    assert one.inputs[0].blocks.tolist() == [[0, 0]]
    assert one.hbm_bytes == 2 * 24 * 256 * 4
    assert one.vmem_bytes == 2 * 24 * 256 * 4  # one buffer each


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


def test_scalar_prefetch_drives_an_index_map():
    rows = jnp.array([3, 3, 0, 3, 1], i32)
    one = only(gather, rows, S((32, 128), f32))
    (x,) = one.inputs
    assert one.num_scalar_prefetch == 1
    assert x.blocks[:, 0].tolist() == [3, 3, 0, 3, 1]
    assert x.transfers == 4  # the second 3 is already there
    assert [s.name for s in one.scalars] == ["rows_ref"]
    assert one.smem_bytes == 5 * 4
    # 4 blocks of 8 * 128 * 4 bytes, and the five indices once.
    assert one.hbm_bytes_read == 4 * 4096 + 20


def test_static_numpy_metadata_needs_no_data_from_the_caller():
    rows = np.array([1, 0], np.int32)
    one = only(lambda x: gather(rows, x), S((32, 128), f32))
    assert one.inputs[0].blocks[:, 0].tolist() == [1, 0]


def test_an_abstract_index_map_names_the_remedy():
    with pytest.raises(Abstract, match=r"index map of x_ref in gather_kernel reads rows_ref") as e:
        trace(gather, S((5,), i32), S((32, 128), f32))
    assert "depends on data: pass arrays instead of ShapeDtypeStructs" in str(e.value)
    assert "argument 1, int32[5]" in str(e.value)


def test_an_abstract_scalar_that_only_the_kernel_reads_is_fine():
    def kernel(n_ref, x_ref, o_ref):
        @pl.when(pl.program_id(0) < n_ref[0])
        def _():
            o_ref[...] = x_ref[...] * 2.0

    def fn(n, x):
        spec = pl.BlockSpec((8, 128), lambda i, n_ref: (i, 0))
        return call(kernel, x, (4,), [spec], spec, scalars=1)(n, x)

    x = S((32, 128), f32)
    blind = only(fn, S((1,), i32), x)
    assert (blind.unknown_branches, blind.flops) == (1, 4 * 1024)  # an upper bound
    known = only(fn, jnp.array([3], i32), x)
    assert (known.unknown_branches, known.flops) == (0, 3 * 1024)
    assert known.busy.tolist() == [True, True, True, False]


def test_a_dynamic_grid_follows_the_data():
    def kernel(ids_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    def fn(sizes, x):
        ids = jnp.repeat(jnp.arange(4, dtype=i32), sizes, total_repeat_length=8)
        at = pl.BlockSpec((8, 128), lambda i, ids_ref: (ids_ref[i], 0))
        to = pl.BlockSpec((8, 128), lambda i, ids_ref: (i, 0))
        return call(kernel, S((64, 128), f32), (sizes.sum(),), [at], to, scalars=1)(ids, x)

    one = only(fn, jnp.array([2, 0, 3, 1], i32), S((32, 128), f32))
    assert one.grid == (6,)
    assert one.inputs[0].blocks[:, 0].tolist() == [0, 0, 2, 2, 2, 3]
    assert one.inputs[0].transfers == 3
    with pytest.raises(Abstract, match=r"^the grid of kernel depends on data: pass arrays"):
        trace(fn, S((4,), i32), S((32, 128), f32))


def test_vmap_prepends_an_axis_and_squeezes_it():
    one = only(jax.vmap(partial(matmul, bm=64)), S((3, 128, 256), f32), S((3, 256, 128), f32))
    assert one.grid == (3, 2, 1, 2)
    a = one.inputs[0]
    assert (a.name, a.block) == ("a_ref", (None, 64, 128))
    assert a.blocks[5].tolist() == [1, 0, 1]  # step 5 of (3, 2, 1, 2) is (1, 0, 0, 1)
    # program_id(2) still means the third axis of the kernel, the fourth here: it has two steps,
    # so the sum is stored once for each of 3 * 2 blocks of 64 * 128 f32.
    assert one.outputs[0].transfers == 6
    assert one.hbm_bytes_written == 6 * 64 * 128 * 4
    assert one.dot_flops == 12 * 2 * 64 * 128 * 128


def test_squeezed_axes_are_none_and_count_as_one():
    head = pl.BlockSpec((None, 128, 64), lambda h, i: (h, i, 0))
    one = only(lambda x: call(copy_kernel, x, (4, 2), [head], head)(x), S((4, 256, 64), f32))
    assert one.inputs[0].block == (None, 128, 64)
    assert one.inputs[0].sizes == (1, 128, 64)
    assert one.inputs[0].hbm_bytes == 4 * 256 * 64 * 4
    assert one.inputs[0].vmem_bytes == 2 * 128 * 128 * 4  # 64 lanes are padded to 128


def test_a_reduction_counts_one_flop_an_element_and_only_where_it_runs():
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += jnp.sum(jnp.exp(x_ref[...]), axis=1, keepdims=True)

    one = only(
        lambda x: call(
            kernel,
            S((16, 1), f32),
            (2, 3),
            [pl.BlockSpec((8, 128), lambda i, j: (i, j))],
            pl.BlockSpec((8, 1), lambda i, j: (i, 0)),
        )(x),
        S((16, 384), f32),
    )
    # On each of 6 steps 1024 exps, 1024 for the sum, 8 to accumulate; zeros cost nothing.
    assert one.transcendentals == 6 * 1024
    assert one.flops == 6 * (1024 + 1024 + 8)
    assert one.outputs[0].transfers == 2


def attention_kernel(q_ref, k_ref, o_ref, *, bq, bk):
    i, j = pl.program_id(0), pl.program_id(1)

    @pl.when((i + 1) * bq - 1 >= j * bk)
    def _():
        o_ref[...] = lax.dot_general(q_ref[...], k_ref[...], (((1,), (1,)), ((), ())))


@pytest.mark.parametrize(("bq", "bk", "active"), [(128, 128, 10), (128, 256, 6), (256, 128, 6)])
def test_a_causal_skip_counts_executed_dots(bq, bk, active):
    # T = 512. Square blocks: 1 + 2 + 3 + 4. (128, 256): rows of 1, 1, 2, 2. (256, 128): 2, 4.
    one = only(
        lambda q, k: call(
            partial(attention_kernel, bq=bq, bk=bk),
            S((512, 512), f32),
            (512 // bq, 512 // bk),
            [
                pl.BlockSpec((bq, 64), lambda i, j: (i, 0)),
                pl.BlockSpec((bk, 64), lambda i, j: (j, 0)),
            ],
            pl.BlockSpec((bq, bk), lambda i, j: (i, j)),
        )(q, k),
        S((512, 64), f32),
        S((512, 64), f32),
    )
    (dot,) = one.dots
    assert (dot.lhs, dot.rhs, dot.out) == ((bq, 64), (bk, 64), (bq, bk))
    assert int(dot.executed.sum()) == active == int(one.busy.sum())
    assert one.flops == active * 2 * bq * bk * 64
    # Skipping work skips no traffic: k is fetched at every step, whatever `pl.when` says.
    assert one.inputs[1].transfers == one.steps


def test_a_flat_list_of_tiles_in_smem_decides_branches():
    def kernel(rows_ref, cols_ref, flags_ref, x_ref, o_ref, acc_ref):
        t = pl.program_id(0)

        @pl.when(flags_ref[t] & 1 == 1)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]

        @pl.when(flags_ref[t] // 2 % 2 == 1)
        def _():
            o_ref[...] = acc_ref[...] * 2.0

    rows, cols = np.tril_indices(3)  # 6 tiles: (0,0) (1,0) (1,1) (2,0) (2,1) (2,2)
    flags = (cols == 0) * 1 + (cols == rows) * 2
    lists = [jnp.asarray(x, i32) for x in (rows, cols, flags)]
    one = only(
        lambda x: call(
            kernel,
            S((24, 128), f32),
            (6,),
            [pl.BlockSpec((8, 128), lambda t, rows, cols, flags: (rows[t], cols[t]))],
            pl.BlockSpec((8, 128), lambda t, rows, cols, flags: (rows[t], 0)),
            [pltpu.VMEM((8, 128), f32)],
            scalars=3,
        )(*lists, x),
        S((24, 384), f32),
    )
    assert one.inputs[0].blocks.tolist() == np.stack([rows, cols], 1).tolist()
    assert one.outputs[0].transfers == 3
    assert one.flops == 6 * 1024 + 3 * 1024  # six sums and three scalings
    assert one.smem_bytes == 3 * 6 * 4
    assert one.unknown_branches == 0


def test_two_dimensional_scalars_pad_their_lanes_in_smem():
    def kernel(table_ref, x_ref, o_ref):
        @pl.when(table_ref[pl.program_id(0), 1] > 0)
        def _():
            o_ref[...] = x_ref[...] + 1.0

    table = jnp.array([[0, 1], [1, 0], [0, 5]], i32)
    spec = pl.BlockSpec((8, 128), lambda i, table_ref: (i, 0))
    one = only(
        lambda x: call(kernel, x, (3,), [spec], spec, scalars=1)(table, x), S((24, 128), f32)
    )
    assert one.smem_bytes == 3 * 128 * 4
    assert one.busy.tolist() == [True, False, True]


def test_smem_blocks_are_known_where_their_data_are():
    def kernel(flag_ref, x_ref, o_ref):
        @pl.when(flag_ref[0, 0] == 1)
        def _():
            o_ref[...] = x_ref[...] * 2.0

    flag = pl.BlockSpec((1, 1), lambda i: (i, 0), memory_space=pltpu.SMEM)
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    flags = jnp.array([[1], [0], [1]], i32)
    one = only(
        lambda n, x: call(kernel, x, (3,), [flag, spec], spec)(n, x), flags, S((24, 128), f32)
    )
    assert one.inputs[0].space == "smem"
    assert one.inputs[0].transfers == 3
    assert one.smem_bytes == 2 * 128 * 4
    assert one.busy.tolist() == [True, False, True]


def test_an_aliased_array_in_hbm_moves_nothing_by_itself():
    def kernel(x_ref, pool_ref, o_ref):
        del x_ref, pool_ref, o_ref

    any_space = pl.BlockSpec(memory_space=pl.ANY)
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    one = only(
        lambda x, pool: call(
            kernel, pool, (2,), [spec, any_space], any_space, input_output_aliases={1: 0}
        )(x, pool),
        S((16, 128), f32),
        S((1024, 128), f32),
    )
    assert one.aliases == ((1, 0),)
    assert [x.space for x in one.operands] == ["vmem", "any", "any"]
    assert [x.transfers for x in one.operands] == [2, 0, 0]
    assert one.hbm_bytes == 16 * 128 * 4


def test_aliases_point_past_scalar_prefetch():
    def fn(rows, x):
        spec = pl.BlockSpec((8, 128), lambda i, rows: (rows[i], 0))
        aliases = {1: 0}
        return call(gather_kernel, x, (2,), [spec], spec, scalars=1, input_output_aliases=aliases)(
            rows, x
        )

    assert only(fn, jnp.array([1, 0], i32), S((16, 128), f32)).aliases == ((0, 0),)


def test_loops_multiply_what_they_repeat():
    def kernel(n_ref, a_ref, o_ref):
        def twice(_, c):
            return c + jnp.dot(a_ref[...], a_ref[...])

        zero = jnp.zeros((128, 128), f32)
        fixed = lax.fori_loop(0, 3, twice, zero)
        o_ref[...] = lax.fori_loop(0, n_ref[pl.program_id(0)], twice, fixed)

    spec = pl.BlockSpec((128, 128), lambda i, n_ref: (0, 0))
    one = only(
        lambda n, a: call(kernel, a, (3,), [spec], spec, scalars=1)(n, a),
        jnp.array([0, 2, 5], i32),
        S((128, 128), f32),
    )
    assert [d.executed.tolist() for d in one.dots] == [[3, 3, 3], [0, 2, 5]]
    assert one.flops == (9 + 7) * (2 * 128**3 + 128 * 128)
    assert one.unknown_branches == 0


def test_a_branch_inside_a_loop_knows_the_loop_variable():
    def kernel(a_ref, o_ref):
        i = pl.program_id(0)

        def body(j, c):
            return lax.cond(j <= i, lambda: c + a_ref[...], lambda: c)

        o_ref[...] = lax.fori_loop(0, 4, body, jnp.zeros((8, 128), f32))

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    one = only(lambda a: call(kernel, a, (3,), [spec], spec)(a), S((24, 128), f32))
    assert one.flops == (1 + 2 + 3) * 1024
    assert one.unknown_branches == 0


def test_a_loop_too_long_to_follow_still_counts():
    def kernel(a_ref, o_ref):
        o_ref[...] = lax.fori_loop(0, 10**6, lambda _, c: c + a_ref[...], a_ref[...])

    one = only(lambda a: pl.pallas_call(kernel, out_shape=a)(a), S((8, 128), f32))
    assert one.flops == 10**6 * 1024


def test_a_loop_over_data_is_unknown_and_no_crash():
    def kernel(a_ref, o_ref):
        total = jnp.sum(a_ref[...])
        o_ref[...] = a_ref[...]

        @pl.when(total > 0)
        def _():
            o_ref[...] = a_ref[...] * 2.0

        o_ref[0, 0] = lax.while_loop(lambda c: c < total, lambda c: c * 2.0, total)

    one = only(lambda a: pl.pallas_call(kernel, out_shape=a)(a), S((8, 128), f32))
    assert (one.unknown_branches, one.unknown_loops) == (1, 1)


def test_primitives_of_the_tpu_alone_do_not_stop_the_walk():
    def kernel(x_ref, o_ref, sem):
        copy = pltpu.make_async_copy(x_ref, o_ref, sem)
        copy.start()
        copy.wait()
        o_ref[...] = pltpu.roll(o_ref[...], 1, 0) + 1.0

    one = only(
        lambda x: call(kernel, x, scratch=[pltpu.SemaphoreType.DMA])(x),
        S((8, 128), f32),
    )
    assert one.flops == 1024
    assert one.vmem_bytes == 2 * 4096  # a semaphore takes none


def test_effects_in_a_kernel_do_not_happen(capfd):
    def kernel(o_ref):
        pl.debug_print("step {}", pl.program_id(0))
        jax.debug.print("step {}", pl.program_id(0))
        o_ref[...] = jnp.ones_like(o_ref)

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    only(lambda: call(kernel, S((32, 128), f32), (4,), [], spec)())
    jax.effects_barrier()
    assert "step" not in "".join(capfd.readouterr())


def test_a_single_scalar_may_be_read_whole():
    def kernel(n_ref, x_ref, o_ref):
        @pl.when(jnp.sum(n_ref[...]) > pl.program_id(0))
        def _():
            o_ref[...] = x_ref[...] * 2.0

    spec = pl.BlockSpec((8, 128), lambda i, n_ref: (i, 0))
    one = only(
        lambda n, x: call(kernel, x, (4,), [spec], spec, scalars=1)(n, x),
        jnp.array([3], i32),
        S((32, 128), f32),
    )
    assert one.busy.tolist() == [True, True, True, False]


def test_scoped_scratch_counts_as_vmem():
    def kernel(x_ref, o_ref):
        def inner(tmp_ref):
            tmp_ref[...] = x_ref[...] * 2.0
            o_ref[...] = tmp_ref[...]

        pl.run_scoped(inner, pltpu.VMEM((8, 128), f32))

    one = only(lambda x: pl.pallas_call(kernel, out_shape=x)(x), S((8, 128), f32))
    assert (one.flops, one.vmem_bytes) == (1024, 3 * 4096)


def test_launches_are_found_in_nested_calls():
    @jax.custom_vjp
    def double(x):
        return jax.jit(lambda y: pl.pallas_call(gather_free, out_shape=y)(y))(x)

    def gather_free(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2.0

    double.defvjp(lambda x: (double(x), None), lambda _, g: (2 * g,))
    one = only(jax.jit(jax.checkpoint(double)), S((8, 128), f32))
    assert (one.name, one.flops) == ("gather_free", 1024)


def test_metadata_may_come_from_a_jitted_helper():
    @jax.jit
    def order(sizes):
        return jnp.argsort(sizes).astype(i32)

    one = only(
        lambda sizes, x: gather(order(sizes), x), jnp.array([5, 1, 3], i32), S((32, 128), f32)
    )
    assert one.inputs[0].blocks[:, 0].tolist() == [1, 2, 0]


def test_a_second_launch_may_depend_on_the_first():
    def flip_kernel(x_ref, o_ref):
        o_ref[...] = 3 - x_ref[...]

    def fn(rows, x):
        return gather(pl.pallas_call(flip_kernel, out_shape=rows)(rows), x)

    rows = jnp.array([0, 1, 3, 3, 0], i32)
    first, second = trace(fn, rows, S((32, 128), f32))
    assert (first.name, second.name) == ("flip_kernel", "gather_kernel")
    assert second.inputs[0].blocks[:, 0].tolist() == [3, 2, 0, 0, 3]
    with pytest.raises(Abstract, match="gather_kernel"):
        trace(fn, S((5,), i32), S((32, 128), f32))


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
    with pytest.raises(Abstract, match="outside of the loop"):
        trace(
            lambda rows, x: lax.map(lambda r: gather(r, x), rows),
            jnp.zeros((2, 5), i32),
            S((32, 128), f32),
        )


def test_the_receipt_of_several_launches_is_a_table():
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    large = pl.BlockSpec((4096, 1024), lambda i: (i, 0))

    def fn(x, y):
        call(copy_kernel, x, (4,), [spec], spec)(x)
        return call(copy_kernel, y, (2,), [large], large)(y)

    two = trace(fn, S((32, 128), f32), S((8192, 1024), f32))
    head, columns, first, second, chip = receipt_text(two, title="both").splitlines()
    assert head == "receipt for both"
    assert columns.split() == ["grid", "steps", "read", "written", "VMEM", "FLOPs", "per", "byte"]
    assert first.split("  ")[0] == "1 copy_kernel"
    assert "(4,)      4" in first
    assert first.count("16 KiB") == 3  # read, written, and two buffers each of two operands
    assert "64 MiB, does not fit" in second
    assert chip.startswith("v5e gives a kernel 16 MiB")
    assert "time" in receipt_text(two[:1])  # there is no dot, so there is no roof


def test_element_indexed_axes_count_elements():
    halo = pl.BlockSpec((pl.Element(16), pl.Element(128)), lambda i: (i * 8, 0))
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[:8] + x_ref[8:]

    one = only(lambda x: call(kernel, S((24, 128), f32), (3,), [halo], spec)(x), S((32, 128), f32))
    x = one.inputs[0]
    assert (x.block, x.blocks[:, 0].tolist()) == ((16, 128), [0, 8, 16])
    assert x.starts[:, 0].tolist() == [0, 8, 16]
    assert x.hbm_bytes == 3 * 16 * 128 * 4  # the overlap is read twice


def test_pipeline_mode_sets_the_number_of_buffers():
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(1))
    out = pl.BlockSpec((8, 128), lambda i: (i, 0))
    one = only(lambda x: call(copy_kernel, x, (4,), [spec], out)(x), S((32, 128), f32))
    assert [x.buffers for x in one.operands] == [1, 2]


def test_compiler_params_are_plain_words():
    params = pltpu.CompilerParams(
        dimension_semantics=("parallel", pltpu.PARALLEL, pltpu.ARBITRARY), vmem_limit_bytes=2**25
    )
    a = S((256, 256), f32)
    one = only(partial(matmul, compiler_params=params, name="mine"), a, a)
    assert one.dimension_semantics == ("parallel", "parallel", "arbitrary")
    assert one.vmem_limit_bytes == 2**25
    assert one.name == "mine"
    plain = only(matmul, a, a)
    assert (plain.dimension_semantics, plain.vmem_limit_bytes) == (None, None)


def test_vmapped_axes_are_parallel_as_in_mosaic():
    params = pltpu.CompilerParams(dimension_semantics=("arbitrary",) * 3)
    x = S((2, 128, 128), f32)
    one = only(jax.vmap(partial(matmul, compiler_params=params)), x, x)
    assert one.dimension_semantics == ("parallel", "arbitrary", "arbitrary", "arbitrary")


def test_an_empty_grid_does_nothing():
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    one = only(
        lambda n, x: call(copy_kernel, x, (n,), [spec], spec)(x), jnp.int32(0), S((32, 128), f32)
    )
    assert (one.grid, one.steps, one.flops, one.hbm_bytes) == ((0,), 0, 0, 0)
    assert "(0,) = 0 steps" in receipt_text((one,))


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
    (got,) = Walk((len(x),)).start(jaxpr, args)
    want = np.asarray(jax.jit(jax.vmap(function))(*args))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_a_value_has_only_the_axes_it_depends_on():
    walk = Walk((100, 200, 300))
    jaxpr = jax.make_jaxpr(lambda i, j, k: (i * 2, i + k, jnp.int32(7)))(*(jnp.int32(0),) * 3)
    assert [v.shape for v in walk.start(jaxpr, walk.ids)] == [(100, 1, 1), (100, 1, 300), (1, 1, 1)]


def test_a_million_steps_are_counted_without_data():
    started = time.perf_counter()
    one = only(matmul, S((12800, 12800), bf16), S((12800, 12800), bf16))
    print(f"1,000,000 steps in {time.perf_counter() - started:.2f} s")
    assert one.steps == 1_000_000
    assert [x.transfers for x in one.operands] == [1_000_000, 1_000_000, 10_000, 0]
    assert one.flops == 1_000_000 * (2 * 128**3 + 128 * 128)
    assert one.hbm_bytes_written == 12800 * 12800 * 2


def test_a_million_steps_in_a_flat_list():
    t = np.arange(1_000_000, dtype=np.int32)
    started = time.perf_counter()
    one = only(lambda x: gather(t // 1000 % 4, x), S((32, 128), f32))
    print(f"1,000,000 steps in {time.perf_counter() - started:.2f} s")
    assert one.inputs[0].transfers == 1000
    assert one.flops == 1_000_000 * 1024
