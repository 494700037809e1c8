"""A store through `ref.bitcast` changes the bits that it covers, and no others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call

from puzzles import examine

ROWS = jax.ShapeDtypeStruct((16, 128), jnp.bfloat16)


@pytest.mark.newest
@pytest.mark.parametrize("slots", [1, 2])
def test_a_store_through_a_bitcast_is_simulated(no_libtpu, slots: int) -> None:
    def kernel(x_ref, o_ref, pair_ref):
        for slot in range(slots):
            pair_ref.at[slot].bitcast(jnp.uint32)[...] = pltpu.bitcast(x_ref[...], jnp.uint32)
        o_ref[...] = pair_ref[0] + pair_ref[1]

    found = examine(call(kernel, ROWS, scratch=[pltpu.VMEM((2, 16, 128), jnp.bfloat16)]), ROWS)
    kinds = [finding.kind for finding in found.findings if finding.severity == "error"]
    assert kinds == ["uninitialised"] * (slots == 1)
    assert any("in NumPy" in line for line in found.looked)


@pytest.mark.parametrize("waits", [False, True])
def test_a_load_through_a_bitcast_during_a_copy_is_a_hazard(no_libtpu, waits: bool) -> None:
    def kernel(x_hbm, o_ref, buf, sem):
        copy = pltpu.make_async_copy(x_hbm, buf, sem)
        copy.start()
        if waits:
            copy.wait()
        o_ref[...] = buf.bitcast(jnp.uint32)[...]
        if not waits:
            copy.wait()

    scratch = [pltpu.VMEM(ROWS.shape, ROWS.dtype), pltpu.SemaphoreType.DMA]
    out = jax.ShapeDtypeStruct((8, 128), jnp.uint32)
    found = examine(call(kernel, out, specs=[HBM], scratch=scratch), ROWS)
    assert [one.kind for one in found.findings] == ["hazard"] * (not waits)


def test_a_store_through_a_reshape_of_rows_with_gaps_is_not_simulated(no_libtpu) -> None:
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref.at[:, pl.ds(0, 8)].reshape(16, 128)[...] = x_ref[...]

    rows = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    found = examine(call(kernel, jax.ShapeDtypeStruct((2, 16, 128), jnp.float32)), rows)
    gap = "a store through a part of a bitcast or of a reshape"
    assert any(gap in line for line in found.not_looked)
