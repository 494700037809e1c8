"""Programs around their launches: loops that do not end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from puzzles._launch import trace_call
from puzzles._program import LoopLimitError
from puzzles._simulator import step_by_step


def test_a_loop_that_does_not_end_is_told_and_never_handed_to_jax() -> None:
    traced = trace_call(lambda n: jax.lax.while_loop(lambda m: m >= n, lambda m: m + 1, n), 0)
    with pytest.raises(LoopLimitError, match="stopped after 10,000 iterations"):
        step_by_step(traced)


@pytest.mark.parametrize("columns", [256, 200])
def test_an_aliased_array_may_stay_in_hbm_where_the_last_block_hangs_over(columns: int) -> None:
    """JAX's own interpreter raises from 0.11.2 on."""
    form = jax.ShapeDtypeStruct((8, columns), jnp.float32)

    def kernel(x_ref, _, o_ref):
        o_ref[...] = x_ref[...] + 1

    block = pl.BlockSpec((8, 128), lambda j: (0, j))
    fn = pl.pallas_call(
        kernel, grid=(pl.cdiv(columns, 128),), in_specs=[block, pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=block, out_shape=form, input_output_aliases={1: 0}, interpret=True,
    )  # fmt: skip
    assert (fn(jnp.zeros(form.shape), jnp.zeros(form.shape)) == 1).all()
