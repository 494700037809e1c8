"""Puzzle 21: scalar prefetch by hand."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## chosen_blocks: what scalar prefetch is made of
#
# `gather_pages` let a table choose its blocks: `PrefetchScalarGridSpec` brought the table to SMEM
# before the first step, and passed it to every index map. `pl.kernel` has no such setting, and
# needs none:
#
# ```text
# table_hbm  [ 3, 0, 2 ]  -- one copy, before the pipeline -->  table  [ 3, 0, 2 ]   in SMEM
#                                                                 ^
# lambda t: (…, 0)                    the index map reads it: a closure, as any Python function may be
# ```
#
# An index map can read SMEM and cannot read HBM, so the table needs a copy in SMEM. The pipeline
# calls the index map for the next step before it runs the body of the current step. So the copy has
# to be complete before the pipeline begins.
#
# Block t of the result is block `table[t]` of `x`. Blocks have 64 rows.


# %%
def chosen_blocks_spec(x: Float[Array, "M N"], table: Int[Array, " T"]) -> Float[Array, "64*T N"]:
    return x.reshape(-1, 64, x.shape[1])[table].reshape(-1, x.shape[1])


# %%
def copy_block(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def chosen_blocks_kernel(table_hbm, x_hbm, o_hbm, table):
    T, N = table_hbm.shape[0], x_hbm.shape[1]
    # Bring the table to SMEM, then let it choose the blocks of x.
    ### BEGIN SOLUTION
    pltpu.sync_copy(table_hbm, table)
    pltpu.emit_pipeline(
        copy_block,
        grid=(T,),
        in_specs=[pl.BlockSpec((64, N), lambda t: (table[t], 0))],
        out_specs=[pl.BlockSpec((64, N), lambda t: (t, 0))],
    )(x_hbm, o_hbm)
    ### END SOLUTION


def chosen_blocks(x: Float[Array, "M N"], table: Int[Array, " T"]) -> Float[Array, "64*T N"]:
    T, N = table.shape[0], x.shape[1]
    return pl.kernel(
        chosen_blocks_kernel,
        jax.ShapeDtypeStruct((64 * T, N), x.dtype),
        mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=1),
        scratch_types={"table": pltpu.SMEM((T,), jnp.int32)},
        interpret=INTERPRET,
    )(table, x)


# %% tags=["author"]
from puzzles import Puzzle, array, rng


def make_inputs(key, M, N, T):
    r = rng(key)
    x = array(r.normal(size=(M, N)), jnp.float32)
    return x, array(r.integers(0, M // 64, size=T), jnp.int32)


def scale(M=4096, N=512, T=32):
    table = jnp.array([(5 * t + 3) % (M // 64) for t in range(T)], jnp.int32)
    return jax.ShapeDtypeStruct((M, N), jnp.float32), table


PUZZLE = Puzzle(
    spec=chosen_blocks_spec,
    solution=chosen_blocks,
    inputs=make_inputs,
    cases=[dict(M=320, N=256, T=3), dict(M=17 * 64, N=128, T=19)],
    fresh=lambda r: dict(M=64 * int(r.choice([3, 6])), N=128, T=int(r.choice([2, 4, 5]))),
    hints=[
        "What must be in SMEM before the first index map runs?",
        "`pltpu.sync_copy` copies to SMEM as well. An index map may read any Ref in SMEM, like a "
        "variable of the function around it.",
        "One copy; then a pipeline with a grid of T steps, where only the input's index map reads "
        "the table.",
    ],
    explain="""A prefetched scalar is a copy to SMEM that comes before the grid, and an argument of
    each index map. Inside a kernel you write the copy, and a closure takes its place.""",
    scale=scale,
)
