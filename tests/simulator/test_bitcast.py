"""A store through `ref.bitcast` changes the bits that it covers, and no others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import tpu as pltpu
from launched import call

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
