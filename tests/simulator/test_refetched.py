"""An early read is right if the copy in flight brings the bytes that are there."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call

from puzzles._launch import faults_of_copies, trace_call
from puzzles._simulator import SimulationError, simulate

BLOCK = pl.BlockSpec((8, 128), lambda j, k: (k, 0))
pytestmark = pytest.mark.newest


def sums(adds: Callable, dtype: type = jnp.float32):
    """A launch whose pipeline visits two blocks of sums in turn, thrice, and adds if it `adds`.

    Each visit fetches its block while the last visit's copy of this block to HBM is in flight.
    """
    rows = jax.ShapeDtypeStruct((16, 128), dtype)

    def body(x_ref, sum_ref):
        @pl.when(adds(x_ref))
        def _():
            sum_ref[...] += x_ref[...]

    def kernel(x_hbm, o_hbm, zeros):
        def run(*buffers):
            visit = pltpu.emit_pipeline(body, grid=(3, 2), in_specs=[BLOCK], out_specs=[BLOCK])
            visit(x_hbm, o_hbm, allocations=buffers)

        zeros[...] = jnp.zeros_like(zeros)
        pltpu.sync_copy(zeros, o_hbm)
        two_ways = pltpu.BufferedRef.input_output(BLOCK, dtype, buffer_count=(2, 2))
        pl.run_scoped(run, pltpu.BufferedRef.input(BLOCK, dtype), two_ways)

    return call(kernel, rows, specs=[HBM], out_specs=HBM, scratch=[pltpu.VMEM(rows.shape, dtype)])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
@pytest.mark.parametrize(("first", "count"), [(2, 0), (1, 1), (0, 1)])
def test_only_a_block_that_no_visit_changes_may_be_fetched_early(first, count, dtype) -> None:
    fn = sums(lambda _: pl.program_id(0) >= first, dtype)
    (launch,) = trace_call(fn, jax.ShapeDtypeStruct((16, 128), dtype)).launches
    assert [fault.finding.operand for fault in faults_of_copies(launch)] == ["o_hbm"] * count


def test_where_data_decide_a_run_tells_whether_a_block_is_changed() -> None:
    fn = sums(lambda x_ref: x_ref[0, 0] > 0)
    for x in (jnp.zeros((16, 128)), jnp.ones((16, 128))):
        traced = trace_call(fn, x)
        assert faults_of_copies(traced.launches[0]) == ()
        if not x.any():
            assert not simulate(traced)[0].any()
            continue
        with pytest.raises(SimulationError, match="before a wait for the copy into it"):
            simulate(traced)
