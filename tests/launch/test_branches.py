"""Branches and loops that depend on data: known values decide, the rest is bounded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call
from launched import one as launched

f32 = jnp.float32
S = jax.ShapeDtypeStruct


CONDITIONS = {
    # a condition that is known or depends on data: the steps of 4 in which it may run, and must
    "data alone": (lambda _, data: data, [1, 1, 1, 1], [0, 0, 0, 0]),
    "known alone": (lambda i, _: i < 2, [1, 1, 0, 0], [1, 1, 0, 0]),
    # the results of a branch on data are not known either
    "yielded": (lambda _, d: lax.cond(d, lambda: 1, lambda: 0) == 1, [1] * 4, [0] * 4),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_on_data_may_hold_and_none_is_certain(name):
    condition, most, least = CONDITIONS[name]

    def kernel(x_ref, o_ref):
        @pl.when(condition(pl.program_id(0), jnp.any(x_ref[...] > 0)))
        def _():
            def body(buffer):
                pltpu.sync_copy(x_ref, buffer)
                o_ref[...] = jnp.dot(buffer[...], jnp.ones((128, 128), f32))

            pl.run_scoped(body, pltpu.VMEM((8, 128), f32))

    x, row = S((32, 128), f32), pl.BlockSpec((8, 128), lambda i: (i, 0))
    one = launched(call(kernel, x, (4,), [row], row), x)
    assert one.dots[0].executed.tolist() == most
    assert one.least.dots[0].executed.tolist() == least
    assert one.log.scoped_vmem_bytes == 8 * 128 * 4
    assert one.vmem_bytes == one.log.scoped_vmem_bytes + 2 * 2 * 8 * 128 * 4
    assert one.copies[0].executed.tolist() == most
    assert one.least.copies[0].executed.tolist() == least
    assert one.flops == sum(most) * 2 * 8 * 128 * 128
    assert one.least.flops == sum(least) * 2 * 8 * 128 * 128
    assert one.exact == (most == least)
    assert bool(one.unknown_branches) == (most != least)
