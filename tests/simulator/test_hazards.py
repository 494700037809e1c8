"""Copies in flight: the accesses that the simulator refuses meanwhile, and no others."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, from_hbm, refused, simulated, traced

from puzzles._launch import timeline

X = jnp.asarray(np.random.default_rng(1).normal(size=(112, 256)), jnp.float32)


def faults(fn, *args):
    """The findings of a timeline of all launches, without running any."""
    followed = [timeline(launch) for launch in traced(fn, *args).launches]
    return [one for copies in followed if copies for one in copies.faults]


def copied(body, *scratch):
    return from_hbm(body, *scratch, pltpu.SemaphoreType.DMA((2,)), out_specs=HBM)


@pytest.mark.parametrize(
    ("first", "rows", "says"),
    [
        (0, 8, "waits for 114,688 bytes, but the copies in flight on that semaphore carry 8,192"),
        (56, 112, "outside `x_ref`, which has shape (112, 256): `x_ref[56:168"),
    ],
)
def test_a_copy_and_its_wait_are_of_one_size_and_inside_their_arrays(first, rows, says):
    def kernel(x_ref, o_ref, buf, sems):
        @pl.loop(0, 1)
        def _(i):
            part = x_ref.at[pl.ds(first + i, rows)]
            pltpu.make_async_copy(part, buf.at[pl.ds(0, rows)], sems.at[0]).start()

        pltpu.make_async_copy(x_ref, buf, sems.at[0]).wait()
        pltpu.sync_copy(buf, o_ref)

    fn = copied(kernel, pltpu.VMEM(X.shape, X.dtype))
    assert says in refused(fn, X).says
    assert says in faults(fn, X)[0].says


def test_a_buffer_on_its_way_out_may_be_read():
    def kernel(x_ref, o_ref, buf, sems):
        pltpu.sync_copy(x_ref, buf)
        out = pltpu.make_async_copy(buf, o_ref, sems.at[0])
        out.start()
        kept = buf[...]
        out.wait()
        buf[...] = kept

    np.testing.assert_array_equal(simulated(copied(kernel, pltpu.VMEM(X.shape, X.dtype)), X), X)


def test_a_copy_into_a_scope_is_waited_for():
    def kernel(x_ref, o_ref, sems):
        def body(tmp):
            pltpu.make_async_copy(x_ref, tmp, sems.at[0]).start()

        pl.run_scoped(body, pltpu.VMEM(X.shape, X.dtype))
        pltpu.sync_copy(x_ref, o_ref)

    says = refused(copied(kernel), X).says
    assert "started in `pltpu.make_async_copy(x_ref, tmp, sems.at[0]).start()`" in says
