"""Slices, copies and operands of no elements change nothing, and stop no check."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call, copy_kernel
from launches import mesh

from puzzles import examine
from puzzles._launch.timelines import timeline

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
ROWS, TILE = S((16, 1, 128), f32), S((8, 128), f32)
SCRATCH = (pltpu.VMEM((16, 1, 128), f32), pltpu.SemaphoreType.DMA)
pytestmark = pytest.mark.usefixtures("no_libtpu")


def ragged(counts: list[int], first: int = 0):
    """A launch that copies so many rows one after the other, and its arguments."""

    def kernel(count, x_hbm, o_ref, buf, sem):
        for part in range(len(counts)):
            to = pl.ds(count[len(counts)], count[part])
            copy = pltpu.make_async_copy(x_hbm.at[pl.ds(0, count[part])], buf.at[to], sem)
            copy.start()
            copy.wait()
        o_ref[...] = buf[...]

    return (
        call(kernel, ROWS, specs=[HBM], scratch=SCRATCH, scalars=1),
        jnp.array([*counts, first]),
        ROWS,
    )


@pytest.mark.parametrize(
    ("counts", "first", "kinds"),
    [
        ([8, 0], 0, ["uninitialised"]),  # rows 8 to 15 are not written
        ([16, 0], 0, []),
        ([0], 16, ["uninitialised"]),  # no rows, after the last row
    ],
)
def test_a_copy_of_no_rows_leaves_the_rest_to_be_run(counts, first, kinds) -> None:
    found = examine(*ragged(counts, first))
    assert [one.kind for one in found.findings] == kinds
    assert "memory" not in found.unseen


@pytest.mark.parametrize("steered", [False, True])
def test_a_copy_of_no_rows_needs_no_wait_and_forbids_nothing(steered) -> None:
    def kernel(count, x_hbm, o_ref, buf, sem):
        n = count[0] if steered else 0
        pltpu.sync_copy(x_hbm, buf)
        pltpu.make_async_copy(x_hbm.at[pl.ds(0, n)], buf.at[pl.ds(0, n)], sem).start()
        o_ref[...] = buf[...]

    fn = call(kernel, ROWS, specs=[HBM], scratch=SCRATCH, scalars=1)
    found = examine(fn, jnp.zeros(1, i32), ROWS)
    assert (found.findings, found.unseen) == ((), ())


def test_a_load_and_a_store_of_no_rows_touch_nothing() -> None:
    def kernel(x_ref, o_ref, acc):
        acc[0:0] = acc[0:0] + x_ref[0:0]
        o_ref[...] = x_ref[...]

    found = examine(call(kernel, TILE, scratch=[pltpu.VMEM((8, 128), f32)]), TILE)
    assert [one for one in found.findings if one.kind != "lowering"] == []
    assert found.launches[0].touched.early == ()
    assert found.unseen == ()


def test_a_store_of_no_rows_writes_into_no_input() -> None:
    def kernel(x_ref, o_ref):
        x_ref[0:0] = o_ref[0:0]
        o_ref[...] = x_ref[...]

    kinds = {one.kind for one in examine(call(kernel, TILE), TILE).findings}
    assert kinds <= {"lowering"}


def test_an_entry_of_an_empty_table_is_read_by_no_step() -> None:
    def kernel(table, x_ref, o_ref):
        o_ref[...] = x_ref[...]

        @pl.when(pl.program_id(0) >= 2)
        def _():
            o_ref[...] += table[0].astype(f32)

    spec = pl.BlockSpec((8, 128), lambda i, table: (i, 0))
    rows = S((16, 128), f32)
    found = examine(call(kernel, rows, (2,), [spec], spec, scalars=1), jnp.zeros((0,), i32), rows)
    assert (found.findings, found.unread, found.unseen) == ((), "", ())


def by_kernel(table, x_ref, o_ref):
    o_ref[...] = x_ref[...] + table[0].astype(f32)


@pytest.mark.parametrize("by_map", [False, True])
def test_an_entry_of_an_empty_table_is_out_of_bounds(by_map: bool) -> None:
    row = pl.BlockSpec((8, 128), lambda i, table: (i, 0))
    read = pl.BlockSpec((8, 128), lambda i, table: (table[i], 0)) if by_map else row
    kernel = (lambda table, *refs: copy_kernel(*refs)) if by_map else by_kernel
    rows = S((16, 128), f32)
    found = examine(call(kernel, rows, (2,), [read], row, scalars=1), jnp.zeros((0,), i32), rows)
    assert [(one.kind, one.operand) for one in found.findings] == [("out-of-bounds", "table")]


def test_a_copy_of_no_rows_is_in_no_picture() -> None:
    (launch,) = examine(*ragged([8, 0])).launches
    (span,) = timeline(launch).trips
    assert (span.start, span.end) == (0, 1)


def test_a_wait_for_no_bytes_ends_no_copy() -> None:
    def kernel(count, x_hbm, o_ref, buf, sem):
        copy, none = (
            pltpu.make_async_copy(x_hbm.at[pl.ds(0, n)], buf.at[pl.ds(0, n)], sem)
            for n in (16, count[0])
        )
        copy.start()
        none.wait()
        o_ref[...] = buf[...]
        copy.wait()

    fn = call(kernel, ROWS, specs=[HBM], scratch=SCRATCH, scalars=1)
    (one,) = examine(fn, jnp.zeros(1, i32), ROWS).findings
    assert (one.kind, one.operand) == ("hazard", "buf")
    assert "There was a wait on its semaphore, but for fewer bytes" in one.says


def in_pieces(lengths: list[int], last: int | None = None):
    """Rows of each sequence, copied in pieces of 8, 4, 2 and 1 and awaited at once.

    last: the rows of the last sequence that are waited for, if not all.
    """

    def kernel(lengths, x_hbm, o_ref, buf, sems):
        buf[...] = jnp.zeros_like(buf)
        for n in range(lengths.shape[0]):
            first = 0
            for piece in (8, 4, 2, 1):
                rows = pl.ds(first, jnp.where(lengths[n] & piece, piece, 0))
                pltpu.make_async_copy(x_hbm.at[n, rows], buf.at[n, rows], sems.at[n]).start()
                first += rows.size
        for n in range(lengths.shape[0]):
            short = last is not None and n == lengths.shape[0] - 1
            whole = buf.at[n, pl.ds(0, last if short else lengths[n])]
            pltpu.make_async_copy(whole, whole, sems.at[n]).wait()
        o_ref[...] = buf[...]

    x, count = S((len(lengths), 16, 1, 128), f32), len(lengths)
    scratch = [pltpu.VMEM(x.shape, f32), pltpu.SemaphoreType.DMA((count,))]
    fn = call(kernel, x, specs=[HBM], scratch=scratch, scalars=1)
    return fn, jnp.array(lengths), x


@pytest.mark.parametrize(
    ("lengths", "last", "kinds"),
    [([5, 0, 11], None, []), ([0], None, []), ([0, 4], 0, ["hazard"]), ([3, 6], 4, ["hazard"])],
)
def test_pieces_of_which_some_are_empty_are_counted_by_bytes(lengths, last, kinds) -> None:
    found = examine(*in_pieces(lengths, last))
    assert ([one.kind for one in found.findings], found.unseen) == (kinds, ())


def shared(count: int, waits: bool):
    """Each device sends so many rows to its right neighbour; the rest stays as it was."""

    def kernel(count, x_hbm, o_hbm, send, recv, local):
        me = jax.lax.axis_index("x")
        right, left = (me + 1) % 4, (me + 3) % 4
        barrier = pltpu.get_barrier_semaphore()
        pltpu.make_async_copy(x_hbm, o_hbm, local).start()
        pltpu.make_async_copy(x_hbm, o_hbm, local).wait()
        for device in (left, right):
            pl.semaphore_signal(barrier, 1, device_id=device)
        pl.semaphore_wait(barrier, 2)
        rows = pl.ds(0, count[0])
        copy = pltpu.make_async_remote_copy(
            x_hbm.at[rows], o_hbm.at[rows], send, recv, device_id=right
        )
        copy.start()
        if waits:
            copy.wait()

    def local(x):
        params = pltpu.CompilerParams(collective_id=3)
        like = dict(scratch=[pltpu.SemaphoreType.DMA] * 3, scalars=1, compiler_params=params)
        fn = call(kernel, x, specs=[HBM], out_specs=HBM, interpret=False, **like)
        return fn(jnp.array([count]), x)

    axis = jax.sharding.PartitionSpec("x")
    return jax.shard_map(local, mesh=mesh(), in_specs=axis, out_specs=axis, check_vma=False)


@pytest.mark.parametrize(("count", "waits"), [(0, True), (0, False), (3, True), (3, False)])
def test_a_device_may_send_no_rows(count: int, waits: bool) -> None:
    found = examine(shared(count, waits), S((32, 1, 128), f32))
    assert [one.kind for one in found.findings] == ["hazard"] * (count > 0 and not waits)
    assert found.unseen == ()


def test_a_pipeline_of_no_steps_and_an_empty_buffer_change_nothing() -> None:
    def kernel(steps, x_hbm, old, o_hbm, spare):
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        double = lambda x_ref, o_ref: o_ref.__setitem__(..., 2 * x_ref[...])  # noqa: E731
        pipeline = dict(grid=(steps[0],), in_specs=[spec], out_specs=[spec])
        pltpu.emit_pipeline(double, **pipeline)(x_hbm, o_hbm)

    rows = S((32, 128), f32)
    like = dict(specs=[HBM] * 2, out_specs=HBM, scratch=[pltpu.VMEM((0, 128), f32)], scalars=1)
    fn = call(kernel, rows, input_output_aliases={2: 0}, **like)
    for steps in (0, 4):
        found = examine(fn, jnp.array([steps]), rows, rows)
        assert (found.findings, found.unseen) == ((), ())


def over_no_steps(rows: int):
    """A launch whose grid has no steps, and whose output has so many rows."""
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    fn = call(copy_kernel, S((rows, 128), f32), (0,), [spec], spec)
    return fn, S((rows, 128), f32)


def test_a_grid_of_no_steps_writes_nothing() -> None:
    assert examine(*over_no_steps(0)).findings == ()
    found = examine(*over_no_steps(32))
    assert [one.kind for one in found.findings] == ["never-written"]
    assert "list index out of range" not in str(found)


@pytest.mark.usefixtures("compiler")
def test_a_launch_that_xla_drops_is_no_refusal(monkeypatch) -> None:
    monkeypatch.setattr("puzzles._compile.compiler.has_libtpu", lambda: True)
    assert examine(*over_no_steps(0)).findings == ()


@pytest.mark.parametrize("space", [pltpu.SMEM, pltpu.VMEM, pl.ANY])
def test_an_operand_of_no_elements_has_no_block_outside(space) -> None:
    def kernel(none, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    specs = [pl.BlockSpec(memory_space=one) for one in (space, pltpu.VMEM)]
    found = examine(call(kernel, TILE, specs=specs), jnp.zeros((0,), i32), TILE)
    assert [one.kind for one in found.findings if one.severity == "error"] == []
    assert "memory" not in found.unseen


def test_a_pipeline_over_blocks_of_an_empty_axis_reads_nothing_that_was_written() -> None:
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    fn = call(kernel, TILE, (1,), [spec], spec)
    assert examine(fn, S((0, 128), f32)).worst == "error"
