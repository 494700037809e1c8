"""Kinds of kernels that `examine` once blamed, died of, or passed: one small kernel each."""

from __future__ import annotations

import foreign
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launches import mesh

from puzzles import examine
from puzzles._launch import trace_call
from puzzles._tpu import simulate

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
pytestmark = pytest.mark.usefixtures("no_libtpu")
ANY = pl.BlockSpec(memory_space=pl.ANY)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def negate(x_ref, o_ref):
    o_ref[...] = -x_ref[...]


def test_a_grid_bound_that_stands_in_the_program_is_a_number() -> None:
    def fn(x):
        bound = jnp.int32(3)
        return pl.pallas_call(negate, grid=(bound,), in_specs=[ROWS], out_specs=ROWS, out_shape=x)(
            x
        )

    found = examine(fn, S((24, 128), f32))
    assert (found.findings, found.launches[0].grid) == ((), (3,))


def test_a_copy_of_no_rows_is_no_copy() -> None:
    def kernel(count, x_ref, _, o_ref, sem):
        rows = pl.ds(0, count[0])
        copy = pltpu.make_async_copy(x_ref.at[rows], o_ref.at[rows], sem)
        copy.start()
        copy.wait()

    def fn(count, x, old):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(1,), in_specs=[ANY, ANY], out_specs=ANY,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        )  # fmt: skip
        return pl.pallas_call(kernel, grid_spec=spec, out_shape=x, input_output_aliases={2: 0})(
            count, x, old
        )

    pages = S((4, 8, 128), f32)
    for rows in (0, 3):
        assert examine(fn, jnp.array([rows], i32), pages, pages).findings == ()


def test_elements_that_hang_over_the_end_are_told_in_elements() -> None:
    window = pl.BlockSpec((pl.Element(16), pl.Element(128)), lambda i: (8 * i, 0))

    def fn(x):
        out = pl.BlockSpec((16, 128), lambda i: (i, 0))
        return pl.pallas_call(
            negate, grid=(3,), in_specs=[window], out_specs=out, out_shape=S((48, 128), f32)
        )(x)

    assert examine(fn, S((32, 128), f32)).findings == ()
    (one,) = examine(fn, S((24, 128), f32)).findings
    assert (one.kind, one.operand, one.step) == ("out-of-bounds", "x_ref", (2,))
    assert "the elements 16 to 31 of axis 0, which has 24 elements" in one.says


def test_a_parallel_sum_is_wrong_where_two_cores_share_a_grid() -> None:
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    def fn(x):
        return pl.pallas_call(
            kernel, grid=(2,), in_specs=[ROWS], out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
            out_shape=S((8, 128), f32),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        )(x)  # fmt: skip

    x = S((16, 128), f32)
    (one,) = examine(fn, x, chips=("v5e", "v6e", "7x")).findings
    assert (one.kind, one.severity) == ("parallel", "warning")
    assert "v4 and v5p" in one.says
    (one,) = examine(fn, x, chips=("v5e", "v5p")).findings
    assert (one.severity, one.chips) == ("error", ("v5p",))


def test_an_input_that_is_sent_is_not_written_and_memory_was_not_looked_at() -> None:
    def kernel(x_ref, o_ref, send, recv):
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id=0)
        copy.start()
        copy.wait()

    def local(x):
        return pl.pallas_call(
            kernel, in_specs=[ANY], out_specs=ANY, out_shape=x,
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        )(x)  # fmt: skip

    P = jax.sharding.PartitionSpec
    fn = jax.shard_map(local, mesh=mesh(), in_specs=P("x"), out_specs=P("x"), check_vma=False)
    found = examine(fn, S((8, 128), f32))
    assert not any(one.kind == "alias" for one in found.findings)
    assert found.headline.endswith("not looked at: memory")
    assert not found.headline.startswith("✓")


def test_a_finding_is_told_of_each_launch_of_one_name() -> None:
    def fn(x, y):
        def half(z, beyond):
            spec = pl.BlockSpec((8, 128), lambda i: (0, i + beyond))
            return pl.pallas_call(
                negate, grid=(1,), in_specs=[spec], out_specs=ROWS, out_shape=S((8, 128), f32),
                name="one",
            )(z)  # fmt: skip

        return half(x, 1) + half(y, 2)

    found = examine(fn, S((8, 128), f32), S((8, 128), f32))
    assert len(found.launches) == 2
    blocks = [one.block for one in found.findings if one.kind == "out-of-bounds"]
    assert blocks == [(0, 1), (0, 2)]


def test_kernels_for_gpus_are_told_in_a_sentence() -> None:
    triton = pytest.importorskip("jax.experimental.pallas.triton")

    def fn(x):
        return pl.pallas_call(negate, out_shape=x, compiler_params=triton.CompilerParams())(x)

    found = examine(fn, S((8, 128), f32))
    assert (found.code, "for GPUs" in found.unread) == (2, True)


def test_no_chip_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="name at least one chip: v4"):
        examine(negate, chips=())


def test_a_chain_that_kills_the_compiler_is_not_simulated() -> None:
    def fn(x, turns):
        def kernel(x_ref, o_ref):
            value = x_ref[...]
            for _ in range(turns):
                value = value * 0.5 + 1.0
            o_ref[...] = value

        return pl.pallas_call(kernel, out_shape=x)(x)

    found = examine(fn, S((8, 128), f32), 2000)
    assert (found.findings, found.unseen) == ((), ("memory",))
    assert any(" operations, and XLA's CPU compiler" in one for one in found.not_looked)
    assert examine(fn, S((8, 128), f32), 20).unseen == ()


def test_a_kernel_that_takes_a_random_key_is_read_and_not_simulated() -> None:
    def kernel(key_ref, o_ref):
        o_ref[...] = jax.random.uniform(key_ref[...], shape=o_ref.shape)

    def fn(key):
        spec = pl.BlockSpec(memory_space=pltpu.SMEM)
        return pl.pallas_call(kernel, in_specs=[spec], out_shape=S((8, 128), f32))(key)

    key = pltpu.to_pallas_key(jax.random.key(0))
    for given in (key, jax.eval_shape(lambda: key)):
        found = examine(fn, given)
        assert (found.unread, found.findings, found.unseen) == ("", (), ("memory",))
        assert any("takes random keys" in one for one in found.not_looked)
        (launch,) = found.launches
        assert (launch.hbm_bytes_read, launch.hbm_bytes_written) == (8, 4096)


@pytest.mark.parametrize("masked", [False, True])
def test_an_edge_is_looked_at_though_the_grid_is_too_long(masked: bool) -> None:
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        x = x_ref[...]
        if masked:
            row = 8 * pl.program_id(0) + jax.lax.broadcasted_iota(i32, x.shape, 0)
            x = jnp.where(row < 5004, x, 0.0)
        o_ref[...] += jnp.sum(x, axis=0, keepdims=True)

    def fn(x):
        out = pl.BlockSpec((1, 128), lambda i: (0, 0))
        return pl.pallas_call(
            kernel, grid=(626,), in_specs=[ROWS], out_specs=out, out_shape=S((1, 128), f32)
        )(x)

    for rows in (5008, 5008, 5004):  # a launch that was cut off leaves nothing behind
        found = examine(fn, S((rows, 128), f32))
        assert found.unseen == ()
    assert any("the last of each axis" in one for one in found.looked)
    told = [(one.kind, one.operand, one.step) for one in found.findings]
    assert told == ([] if masked else [("uninitialised", "x_ref", (625,))])


@pytest.mark.parametrize("reads", [False, True])
def test_a_block_that_comes_back_and_is_written_whole_is_no_error(reads: bool) -> None:
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.where(pl.program_id(1) < 2, x_ref[...], 0.0) + (o_ref[...] if reads else 0)

    def fn(x):
        return pl.pallas_call(
            kernel,
            grid=(2, 4),
            in_specs=[pl.BlockSpec((8, 128), lambda n, t: (jnp.minimum(2 * n + t, 3), 0))],
            out_specs=pl.BlockSpec((8, 128), lambda n, t: (2 * n + t, 0)),
            out_shape=S((48, 128), f32),
        )(x)

    (one,) = (f for f in examine(fn, S((32, 128), f32)).findings if f.kind == "revisited")
    assert (one.severity, one.step) == ("error" if reads else "warning", (1, 0))
    assert ("the last one counts" in one.says) is not reads
    if not reads:
        assert any("all steps" in line for line in examine(fn, S((32, 128), f32)).looked)


def test_a_loop_of_many_turns_in_one_step_is_cut_off() -> None:
    def fn(x, turns):
        def kernel(x_ref, o_ref):
            o_ref[...] = x_ref[...]

            def body(_, nothing):
                o_ref[...] += x_ref[...]
                return nothing

            jax.lax.fori_loop(0, turns, body, 0)

        return pl.pallas_call(kernel, out_shape=x)(x)

    found = examine(fn, S((8, 128), f32), 10**7)
    assert (found.findings, found.unseen) == ((), ("memory",))
    assert any("the first 20,000 times, up to grid step ()" in one for one in found.not_looked)
    assert examine(fn, S((8, 128), f32), 10).unseen == ()


def test_who_asks_for_the_device_is_answered_as_on_the_first_chip() -> None:
    def fn(x):
        rows = {"TPU v5 lite": 8, "TPU v6 lite": 16}[jax.devices()[0].device_kind]
        spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
        return pl.pallas_call(
            negate, grid=(32 // rows,), in_specs=[spec], out_specs=spec, out_shape=x
        )(x)

    before = jax.devices()
    for chip, grid in (("v5e", (4,)), ("v6e", (2,))):
        found = examine(fn, S((32, 128), f32), chips=(chip,))
        assert (found.findings, found.launches[0].grid) == ((), grid)
        assert any(f"all as on a {chip}" in one for one in found.looked)
    assert "KeyError" in examine(fn, S((32, 128), f32), chips=("v4",)).unread
    assert jax.devices() == before


@pytest.mark.parametrize("writes", [False, True])
def test_a_table_that_the_kernel_writes_makes_its_index_maps_doubtful(writes: bool) -> None:
    def kernel(ids, x_ref, o_ref):
        if writes:
            ids[2] = 1
        o_ref[...] = x_ref[...]

    def fn(ids, x):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(3,),
            in_specs=[pl.BlockSpec((8, 128), lambda i, ids: (ids[i], 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, ids: (i, 0)),
        )  # fmt: skip
        return pl.pallas_call(kernel, grid_spec=spec, out_shape=x)(ids, x)

    found = examine(fn, jnp.arange(3), S((24, 128), f32))
    assert [(f.kind, f.severity, f.operand) for f in found.findings] == (
        [("hazard", "warning", "x_ref")] if writes else []
    )
    assert (found.launches[0].exact, found.launches[0].bound) == (not writes, "about" * writes)


@pytest.mark.skipif(not hasattr(pl, "kernel"), reason="this JAX has no `pl.kernel`")
@pytest.mark.parametrize("waits", [False, True])
def test_what_pl_kernel_makes_is_read_as_a_launch(waits: bool) -> None:
    def fn(x):
        mesh = pltpu.create_tensorcore_mesh("core", num_cores=1)

        def copies(x_ref, o_ref):
            def run(sem):
                copy = pltpu.make_async_copy(x_ref, o_ref, sem)
                copy.start()
                if waits:
                    copy.wait()

            pl.run_scoped(run, pltpu.SemaphoreType.DMA)

        return pl.kernel(copies, out_type=x, mesh=mesh)(x)

    for whole in (fn, lambda x: pl.pallas_call(negate, out_shape=x)(fn(x))):
        found = examine(whole, S((8, 128), f32))
        assert (found.unread, found.unseen) == ("", ())
        assert found.launches[0].hbm_bytes == 2 * 4096
        assert [one.kind for one in found.findings] == ([] if waits else ["hazard"])


@pytest.mark.parametrize("first", [False, True])
def test_a_kernel_that_reads_through_a_reshape_is_simulated(first: bool) -> None:
    def kernel(x_ref, o_ref, acc_ref):
        if first:
            acc_ref[...] = jnp.zeros_like(acc_ref)
        acc_ref[...] += x_ref.reshape(16, 128)[...] + x_ref.reshape(16, 128)[pl.ds(1, 1)]
        o_ref[...] = acc_ref[...]

    def fn(x):
        return pl.pallas_call(
            kernel, grid=(2,),
            in_specs=[pl.BlockSpec((2, 8, 128), lambda i: (i, 0, 0))],
            out_specs=pl.BlockSpec((16, 128), lambda i: (i, 0)),
            out_shape=S((32, 128), f32),
            scratch_shapes=[pltpu.VMEM((16, 128), f32)],
        )(x)  # fmt: skip

    found = examine(fn, S((4, 8, 128), f32))
    told = [(one.kind, one.operand, one.step) for one in found.findings]
    assert told == ([] if first else [("uninitialised", "acc_ref", (0,))])
    assert found.unseen == ()
    x = jnp.arange(4096.0).reshape(4, 8, 128)
    rows = x.reshape(2, 16, 128)
    if first:
        (out,) = simulate(trace_call(fn, x))
        assert (out == (rows + rows[:, 1:2]).reshape(32, 128)).all()


@pytest.mark.parametrize("body", ["sums", "writes", "sums within"])
def test_a_block_of_an_inner_pipeline_that_comes_back_is_told(body: str) -> None:
    def pipelined(x_ref, o_ref):
        if body == "writes":
            o_ref[...] = -x_ref[...]
            return

        @pl.when(pl.program_id(1 if body == "sums within" else 0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    def kernel(x_hbm, o_hbm):
        pltpu.emit_pipeline(
            pipelined, grid=(2, 3),
            in_specs=[pl.BlockSpec((8, 128), lambda i, j: (3 * i + j, 0))],
            out_specs=[pl.BlockSpec((8, 128), lambda i, j: (i if body == "sums within" else j, 0))],
        )(x_hbm, o_hbm)  # fmt: skip

    def fn(x):
        rows = 16 if body == "sums within" else 24
        return pl.pallas_call(kernel, in_specs=[ANY], out_specs=ANY, out_shape=S((rows, 128), f32))(
            x
        )

    found = examine(fn, S((48, 128), f32))
    told = [(one.kind, one.severity, one.operand) for one in found.findings]
    severity = {"sums": "error", "writes": "warning"}.get(body)
    assert told == ([("revisited", severity, "o_hbm")] if severity else [])
    assert not severity or "`o_hbm[0:8]` is a block" in found.findings[0].says


def test_scalars_that_the_kernel_writes_are_followed_from_step_to_step() -> None:
    def kernel(cursor, x_hbm, o_ref, buffer, sem):
        n = cursor[0]
        copy = pltpu.make_async_copy(x_hbm.at[n], buffer, sem)
        copy.start()
        copy.wait()

        @pl.when(n == 0)
        def _():
            o_ref[...] = jnp.dot(buffer[...], jnp.ones((128, 128), f32))

        @pl.when(n > 0)
        def _():
            o_ref[...] = buffer[...]

        cursor[0] = n + 1

    def fn(cursor, x):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(4,), in_specs=[ANY],
            out_specs=pl.BlockSpec((None, 8, 128), lambda i, cursor: (i, 0, 0)),
            scratch_shapes=[pltpu.VMEM((8, 128), f32), pltpu.SemaphoreType.DMA],
        )  # fmt: skip
        return pl.pallas_call(kernel, grid_spec=spec, out_shape=x)(cursor, x)

    pages = S((4, 8, 128), f32)
    found = examine(fn, jnp.zeros(1, i32), pages)
    (launch,) = found.launches
    assert (found.findings, found.unseen, launch.exact) == ((), (), True)
    assert launch.dot_flops == 2 * 8 * 128 * 128
    (copied,) = {one.executed.tobytes(): one for one in launch.copies}.values()
    assert copied.executed.tolist() == [1, 1, 1, 1]
    (one,) = examine(fn, jnp.ones(1, i32), pages).findings  # the last step takes what is not there
    assert (one.kind, one.operand, one.step) == ("out-of-bounds", "x_hbm", (3,))


def test_counts_of_ragged_paged_attention_follow_its_place_in_smem() -> None:
    fn, *args = foreign.ragged_paged()
    (launch,) = trace_call(fn, *args).launches
    assert launch.exact
    # 15 blocks of keys for each of two groups of heads: 8 pages of 64 KiB, and 2 dots a head.
    assert sum(one.times for one in launch.copies) == 240
    assert sum(one.bytes for one in launch.copies) == 240 * 2**16
    assert sum(int(one.executed.sum()) for one in launch.dots) == 480


@pytest.mark.parametrize("first", [False, True])
def test_a_kernel_that_reads_through_a_bitcast_is_simulated(first: bool) -> None:
    def kernel(x_ref, o_ref, acc_ref):
        if first:
            acc_ref[...] = x_ref[...]
        o_ref[...] = acc_ref.bitcast(jnp.uint32)[pl.ds(0, 8)]

    def fn(x):
        scratch = [pltpu.VMEM(x.shape, x.dtype)]
        return pl.pallas_call(kernel, out_shape=S((8, 128), jnp.uint32), scratch_shapes=scratch)(x)

    x = jax.random.normal(jax.random.key(0), (16, 128), jnp.bfloat16)
    found = examine(fn, x)
    told = [(one.kind, one.operand) for one in found.findings]
    assert (told, found.unseen) == ([] if first else [("uninitialised", "acc_ref")], ())
    if first:
        (out,) = simulate(trace_call(fn, x))
        low, high = (np.asarray(x)[n::2].view(np.uint16).astype(np.uint32) for n in (0, 1))
        assert (out == low + (high << 16)).all()


@pytest.mark.skipif(not hasattr(pltpu, "store"), reason="this JAX has no `pltpu.store`")
@pytest.mark.parametrize("first", [False, True])
def test_a_store_with_a_mask_of_several_axes_is_simulated(first: bool) -> None:
    def kernel(x_ref, o_ref):
        if first:
            o_ref[...] = jnp.zeros_like(o_ref)
        part = o_ref.at[:, pl.ds(2, 2)]
        row = jax.lax.broadcasted_iota(i32, part.shape, 0)
        pltpu.store(part, x_ref[...], mask=row >= 3)

    def fn(x):
        return pl.pallas_call(kernel, out_shape=S((8, 4, 128), f32))(x)

    x = jax.random.normal(jax.random.key(0), (8, 2, 128))
    found = examine(fn, x)
    told = [(one.kind, one.operand) for one in found.findings]
    assert (told, found.unseen) == ([] if first else [("uninitialised", "o_ref")], ())
    if first:
        (out,) = simulate(trace_call(fn, x))
        right = np.zeros((8, 4, 128), np.float32)
        right[3:, 2:] = x[3:]
        assert (out == right).all()


def test_no_words_for_no_axes_are_right() -> None:
    def fn(x):
        params = pltpu.CompilerParams(dimension_semantics=())
        return pl.pallas_call(negate, out_shape=x, compiler_params=params)(x)

    assert examine(fn, S((8, 128), f32)).findings == ()
