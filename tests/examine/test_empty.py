"""Slices, copies and operands of no elements change nothing, and stop no check."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call

from puzzles import examine

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
