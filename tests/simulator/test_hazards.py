"""Copies in flight: the accesses that the simulator refuses meanwhile, and no others."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, from_hbm, refused, simulated

X = jnp.asarray(np.random.default_rng(1).normal(size=(112, 256)), jnp.float32)


def copied(body, *scratch):
    return from_hbm(body, *scratch, pltpu.SemaphoreType.DMA((2,)), out_specs=HBM)


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
