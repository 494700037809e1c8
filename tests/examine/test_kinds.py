"""Kinds of kernels that `examine` once blamed, died of, or passed: one small kernel each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import production
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, cores
from launches import ANY, mesh

from puzzles import Examination, examine
from puzzles._launch import trace_call
from puzzles._simulator import sanitizer, simulate

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
TILE = S((8, 128), f32)
ROWS, FIRST = (pl.BlockSpec((8, 128), lambda i, at=at: (at * i, 0)) for at in (1, 0))
BY_ROW = dict(in_specs=[ROWS], out_specs=ROWS)
pytestmark = pytest.mark.usefixtures("no_libtpu")


def negate(x_ref, o_ref):
    o_ref[...] = -x_ref[...]


def told(found: Examination) -> list[tuple]:
    """The findings and their places."""
    return [(one.kind, one.operand, one.step) for one in found.findings]


def test_a_grid_bound_that_stands_in_the_program_is_a_number() -> None:
    def fn(x):
        return pl.pallas_call(negate, grid=(jnp.int32(3),), **BY_ROW, out_shape=x)(x)

    found = examine(fn, S((24, 128), f32))
    assert (found.findings, found.launches[0].grid) == ((), (3,))


def test_a_parallel_sum_is_wrong_where_two_cores_share_a_grid() -> None:
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    params = pltpu.CompilerParams(dimension_semantics=("parallel",))
    fn = call(kernel, TILE, (2,), [ROWS], FIRST, compiler_params=params)
    x = S((16, 128), f32)
    (one,) = examine(fn, x, chips=("v5e", "v6e", "7x")).findings
    assert (one.kind, one.severity) == ("parallel", "warning")
    assert "v4 and v5p" in one.says
    (one,) = examine(fn, x, chips=("v5e", "v5p")).findings
    assert (one.severity, one.chips) == ("error", ("v5p",))


def test_an_input_that_is_sent_is_not_written_and_two_senders_share_no_place() -> None:
    def kernel(x_ref, o_ref, send, recv):
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id=0)
        copy.start()
        copy.wait()

    local = pl.pallas_call(
        kernel, in_specs=[ANY], out_specs=ANY, out_shape=S((2, 128), f32),
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )  # fmt: skip
    P = jax.sharding.PartitionSpec
    fn = jax.shard_map(local, mesh=mesh(), in_specs=P("x"), out_specs=P("x"), check_vma=False)
    found = examine(fn, TILE)
    assert not any(one.kind == "alias" for one in found.findings)
    (one,) = (one for one in found.findings if one.kind == "hazard")
    assert "`x_ref` of device 0 (`copy.start()`), and `x_ref` of device 1" in one.says


def test_a_finding_is_told_of_each_launch_of_one_name() -> None:
    def half(beyond):
        spec = pl.BlockSpec((8, 128), lambda i: (0, i + beyond))
        return call(negate, TILE, (1,), [spec], ROWS, name="one")

    found = examine(lambda x, y: half(1)(x) + half(2)(y), TILE, TILE)
    assert len(found.launches) == 2
    blocks = [one.block for one in found.findings if one.kind == "out-of-bounds"]
    assert blocks == [(0, 1), (0, 2)]


def test_kernels_for_gpus_are_told_in_a_sentence() -> None:
    triton = pytest.importorskip("jax.experimental.pallas.triton")
    fn = pl.pallas_call(negate, out_shape=TILE, compiler_params=triton.CompilerParams())
    found = examine(fn, TILE)
    assert (found.code, "for GPUs" in found.unread) == (2, True)


def test_a_kernel_that_takes_a_random_key_is_read_and_not_simulated() -> None:
    def kernel(key_ref, o_ref):
        o_ref[...] = jax.random.uniform(key_ref[...], shape=o_ref.shape)

    spec = pl.BlockSpec(memory_space=pltpu.SMEM)
    fn = pl.pallas_call(kernel, in_specs=[spec], out_shape=TILE)
    key = pltpu.to_pallas_key(jax.random.key(0))
    for given in (key, jax.eval_shape(lambda: key)):
        found = examine(fn, given)
        assert (found.unread, found.findings, found.unseen) == ("", (), ("memory",))
        assert any("random keys" in one for one in found.not_looked)
        (launch,) = found.launches
        assert (launch.hbm_bytes_read, launch.hbm_bytes_written) == (8, 4096)


@pytest.mark.parametrize("what", ["rolls", "draws bits", "prints", "loads"])
def test_what_numpy_has_no_rule_for_is_run(what: str, capsys: pytest.CaptureFixture) -> None:
    def kernel(x_ref, o_ref):
        x = pltpu.load(x_ref) if what == "loads" else x_ref[...]
        if what == "rolls":
            x = pltpu.roll(x, 1, 1)
        elif what == "draws bits":
            pltpu.prng_seed(0)
            x += pltpu.prng_random_bits(x.shape).astype(f32)
        elif what == "prints":
            pl.debug_print("{}", x[0, 0])
        o_ref[...] = x

    found = examine(pl.pallas_call(kernel, out_shape=TILE), TILE)
    assert "uninitialised, hazard: in NumPy, all steps" in found.looked
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("dtype", [bool, np.uint8, i32])
def test_what_hangs_over_an_edge_of_a_mask_is_no_zero(dtype: type) -> None:
    def kernel(mask_ref, o_ref):
        o_ref[...] = jnp.zeros(o_ref.shape) + jnp.sum(jnp.where(mask_ref[...] == 0, 0.0, 1.0))

    fn = call(kernel, TILE, (1,), [pl.BlockSpec((16, 128), lambda i: (i, 0))], FIRST)
    assert told(examine(fn, jnp.zeros((12, 128), dtype))) == [("uninitialised", "mask_ref", (0,))]


@sample.in_turn
@pytest.mark.parametrize("masked", [False, True])
def test_an_edge_is_looked_at_though_the_grid_is_too_long(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitizer, "WHOLE_STEPS", 100)
    monkeypatch.setattr(sanitizer, "FIRST_STEPS", 50)

    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        x = x_ref[...]
        if masked:
            row = 8 * pl.program_id(0) + jax.lax.broadcasted_iota(i32, x.shape, 0)
            x = jnp.where(row < 1004, x, 0.0)
        o_ref[...] += jnp.sum(x, axis=0, keepdims=True)

    out = pl.BlockSpec((1, 128), lambda i: (0, 0))
    fn = call(kernel, S((1, 128), f32), (126,), [ROWS], out)
    for rows in (1008, 1008, 1004):  # a launch that was cut off leaves nothing behind
        found = examine(fn, S((rows, 128), f32))
        assert found.unseen == ()
    assert any("the last of each axis" in one for one in found.looked)
    assert told(found) == [("uninitialised", "x_ref", (125,)), ("steps", None, None)][masked:]


@pytest.mark.parametrize("reads", [False, True])
def test_a_block_that_comes_back_and_is_written_whole_is_no_error(reads: bool) -> None:
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.where(pl.program_id(1) < 2, x_ref[...], 0.0) + (o_ref[...] if reads else 0)

    read = pl.BlockSpec((8, 128), lambda n, t: (jnp.minimum(2 * n + t, 3), 0))
    written = pl.BlockSpec((8, 128), lambda n, t: (2 * n + t, 0))
    fn = call(kernel, S((48, 128), f32), (2, 4), [read], written)
    found = examine(fn, S((32, 128), f32))
    (one,) = (f for f in found.findings if f.kind == "revisited")
    assert (one.severity, one.step) == ("error" if reads else "warning", (1, 0))
    assert ("only the last visit counts" in one.says) is not reads
    assert reads or any("all steps" in line for line in found.looked)


@sample.in_turn
def test_a_loop_of_many_turns_in_one_step_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "FUEL", 1000)  # a thousand times as many in earnest

    def fn(x, turns):
        def kernel(x_ref, o_ref):
            o_ref[...] = x_ref[...]

            def body(_, nothing):
                o_ref[...] += x_ref[...]
                return nothing

            jax.lax.fori_loop(0, turns, body, 0)

        return pl.pallas_call(kernel, out_shape=x)(x)

    found = examine(fn, TILE, 10**5)
    assert (found.findings, found.unseen) == ((), ("memory",))
    assert any("the first 1,000, up to grid step ()" in one for one in found.not_looked)
    assert examine(fn, TILE, 10).unseen == ()


def test_who_asks_for_the_device_is_answered_as_on_the_first_chip() -> None:
    def fn(x):
        rows = {"TPU v5 lite": 8, "TPU v6 lite": 16}[jax.devices()[0].device_kind]
        spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
        return call(negate, x, (32 // rows,), [spec], spec)(x)

    before = jax.devices()
    for chip, grid in (("v5e", (4,)), ("v6e", (2,))):
        found = examine(fn, S((32, 128), f32), chips=(chip,))
        assert (found.findings, found.launches[0].grid) == ((), grid)
        assert any(f"traced for one {chip}:" in one for one in found.looked)
    assert "KeyError" in examine(fn, S((32, 128), f32), chips=("v4",)).unread
    assert jax.devices() == before


def test_a_table_that_the_kernel_writes_makes_counts_doubtful() -> None:
    def kernel(ids, x_ref, o_ref):
        ids[2] = 1
        o_ref[...] = x_ref[...]

    x = S((24, 128), f32)
    by_table = pl.BlockSpec((8, 128), lambda i, ids: (ids[i], 0))
    out = pl.BlockSpec((8, 128), lambda i, ids: (i, 0))
    fn = call(kernel, x, (3,), [by_table], out, scalars=1)
    (launch,) = examine(fn, jnp.arange(3), x).launches
    assert (launch.exact, launch.bound) == (False, "about")


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="there `pl.kernel` makes no launch")
@pytest.mark.parametrize("waits", [False, True])
def test_what_pl_kernel_makes_is_read_as_a_launch(waits: bool) -> None:
    def fn(x):
        mesh = cores(1)

        def copies(x_ref, o_ref):
            def run(sem):
                copy = pltpu.make_async_copy(x_ref, o_ref, sem)
                copy.start()
                if waits:
                    copy.wait()

            pl.run_scoped(run, pltpu.SemaphoreType.DMA)

        return pl.kernel(copies, x, mesh=mesh)(x)

    for whole in (fn, lambda x: pl.pallas_call(negate, out_shape=x)(fn(x))):
        found = examine(whole, TILE)
        assert (found.unread, found.unseen) == ("", ())
        assert found.launches[0].hbm_bytes == 2 * 4096
        assert [one.kind for one in found.findings] == ([] if waits else ["hazard"])


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

    out = S((16 if body == "sums within" else 24, 128), f32)
    fn = pl.pallas_call(kernel, in_specs=[ANY], out_specs=ANY, out_shape=out)
    found = examine(fn, S((48, 128), f32))
    severity = {"sums": "error", "writes": "warning"}.get(body)
    seen = [(one.kind, one.severity, one.operand) for one in found.findings]
    assert seen == ([("revisited", severity, "o_hbm")] if severity else [])
    assert not severity or "block `o_hbm[0:8]`" in found.findings[0].says


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

    pages, out = S((4, 8, 128), f32), pl.BlockSpec((None, 8, 128), lambda i, cursor: (i, 0, 0))
    scratch = [pltpu.VMEM((8, 128), f32), pltpu.SemaphoreType.DMA]
    fn = call(kernel, pages, (4,), [ANY], out, scratch, scalars=1)
    found = examine(fn, jnp.zeros(1, i32), pages)
    (launch,) = found.launches
    assert (found.findings, found.unseen, launch.exact) == ((), (), True)
    assert launch.dot_flops == 2 * 8 * 128 * 128
    (copied,) = {one.executed.tobytes(): one for one in launch.copies}.values()
    assert copied.executed.tolist() == [1, 1, 1, 1]
    # The last step reads outside of the array.
    found = examine(fn, jnp.ones(1, i32), pages)
    assert told(found) == [("out-of-bounds", "x_hbm", (3,))]


def test_counts_of_ragged_paged_attention_follow_its_place_in_smem() -> None:
    fn, *args = production.ragged_paged_of_three()
    (launch,) = trace_call(fn, *args).launches
    assert launch.exact
    # 15 blocks of keys for each of two groups of heads: 8 pages of 64 KiB, and 2 dots a head.
    assert sum(one.times for one in launch.copies) == 240
    assert sum(one.bytes for one in launch.copies) == 240 * 2**16
    assert sum(int(one.executed.sum()) for one in launch.dots) == 480


def reshaped(first):
    def kernel(x_ref, o_ref, acc_ref):
        if first:
            acc_ref[...] = jnp.zeros_like(acc_ref)
        acc_ref[...] += x_ref.reshape(16, 128)[...] + x_ref.reshape(16, 128)[pl.ds(1, 1)]
        o_ref[...] = acc_ref[...]

    read = pl.BlockSpec((2, 8, 128), lambda i: (i, 0, 0))
    written = pl.BlockSpec((16, 128), lambda i: (i, 0))
    fn = call(kernel, S((32, 128), f32), (2,), [read], written, [pltpu.VMEM((16, 128), f32)])
    x = jnp.arange(4096.0).reshape(4, 8, 128)
    rows = x.reshape(2, 16, 128)
    return fn, x, (rows + rows[:, 1:2]).reshape(32, 128)


def bitcast(first):
    def kernel(x_ref, o_ref, acc_ref):
        if first:
            acc_ref[...] = x_ref[...]
        o_ref[...] = acc_ref.bitcast(jnp.uint32)[pl.ds(0, 8)]

    x = jax.random.normal(jax.random.key(0), (16, 128), jnp.bfloat16)
    scratch = [pltpu.VMEM(x.shape, x.dtype)]
    fn = pl.pallas_call(kernel, out_shape=S((8, 128), jnp.uint32), scratch_shapes=scratch)
    low, high = (np.asarray(x)[n::2].view(np.uint16).astype(np.uint32) for n in (0, 1))
    return fn, x, low + (high << 16)


def stored_under_a_mask(first):
    def kernel(x_ref, o_ref):
        if first:
            o_ref[...] = jnp.zeros_like(o_ref)
        part = o_ref.at[:, pl.ds(2, 2)]
        row = jax.lax.broadcasted_iota(i32, part.shape, 0)
        pltpu.store(part, x_ref[...], mask=row >= 3)

    x = jax.random.normal(jax.random.key(0), (8, 2, 128))
    right = np.zeros((8, 4, 128), np.float32)
    right[3:, 2:] = x[3:]
    return pl.pallas_call(kernel, out_shape=S((8, 4, 128), f32)), x, right


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("make", "unset"),
    [(reshaped, ("acc_ref", (0,))), (bitcast, ("acc_ref", ()))]
    + [(stored_under_a_mask, ("o_ref", ()))] * hasattr(pltpu, "store"),  # not on every JAX
)
def test_what_a_kernel_does_through_a_view_is_simulated(make, unset, first: bool) -> None:
    """A read of memory that was never written is reported `first`."""
    fn, x, right = make(first)
    found = examine(fn, x)
    assert (told(found), found.unseen) == ([] if first else [("uninitialised", *unset)], ())
    if first:
        (out,) = simulate(trace_call(fn, x))
        assert (out == right).all()


def test_no_words_for_no_axes_are_right() -> None:
    params = pltpu.CompilerParams(dimension_semantics=())
    found = examine(pl.pallas_call(negate, out_shape=TILE, compiler_params=params), TILE)
    assert found.code == 0
    assert found.launches[0].line.endswith("def negate(x_ref, o_ref):")  # no line launches it


def sums_in_a_pipeline(x_ref, o_ref):
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    pltpu.emit_pipeline(negate, grid=(4,), in_specs=[spec], out_specs=[spec])(x_ref, o_ref)


def divides(x_ref, o_ref):
    o_ref[...] = x_ref[...] // 3


@pytest.mark.parametrize(
    ("kernel", "spec"),
    [(pltpu.sync_copy, ANY), (sums_in_a_pipeline, ANY), (divides, pl.BlockSpec())],
    ids=["sync_copy", "emit_pipeline", "//"],
)
def test_a_right_kernel_in_shard_map_is_blamed_for_nothing(kernel, spec) -> None:
    """The mesh of `shard_map` knows no chip, and JAX asks it for that."""
    x = S((32, 128), f32)
    local = pl.pallas_call(
        lambda x_ref, o_ref: kernel(x_ref, o_ref), in_specs=[spec], out_specs=spec, out_shape=x
    )
    P = jax.sharding.PartitionSpec("x")
    fn = jax.shard_map(local, mesh=mesh(), in_specs=P, out_specs=P, check_vma=False)
    found = examine(fn, S((128, 128), f32))
    assert (found.unread, found.findings) == ("", ())
