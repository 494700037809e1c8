"""Puzzle 6: write the launch yourself."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## launch_vector_add: write the call yourself, for any shape
#
# Now the launch is yours. Three questions get you there, every time:
#
# 1. Which block of the **output** does one step produce? That gives `out_specs`.
# 2. How many such blocks cover each axis? That gives `grid`.
# 3. Which blocks of the **inputs** does this output block need? That gives `in_specs`.
#
# Real arrays are seldom multiples of your blocks. `pl.cdiv(size, block)`, division rounded up,
# gives enough blocks, and the last block **hangs over the edge**. There, **reads** give garbage,
# and **writes** are dropped. An elementwise kernel can ignore that.
#
# ![The third step of a row of blocks hangs over the right edge of all three arrays.](diagrams/basics/launch_vector_add.svg)
#
# Use blocks of `bm` × `bn`: a single block for all of a large array would not fit into VMEM.


# %%
def launch_vector_add_spec(x: Float[Array, "M N"], y: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return x + y


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to vector_add)
def launch_vector_add_kernel(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


# %%
def launch_vector_add(x: Float[Array, "M N"], y: Float[Array, "M N"]) -> Float[Array, "M N"]:
    M, N = x.shape
    bm, bn = 64, 256
    return pl.pallas_call(
        launch_vector_add_kernel,
        ### BEGIN SOLUTION
        grid=(pl.cdiv(M, bm), pl.cdiv(N, bn)),
        in_specs=[
            pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
            pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        ### END SOLUTION
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        interpret=INTERPRET,
    )(x, y)


# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, M, N):
    r = rng(key)
    return tuple(array(r.normal(size=(M, N)), jnp.float32) for _ in range(2))


def scale(M=16300, N=16100):
    # So wide and so high that a strip of whole rows or whole columns does not fit into 16 MiB.
    return tuple(jax.ShapeDtypeStruct((M, N), jnp.float32) for _ in range(2))


def fresh(r):
    return dict(M=int(r.choice([40, 200, 300, 520])), N=int(r.choice([900, 1300])))


PUZZLE = Puzzle(
    spec=launch_vector_add_spec,
    solution=launch_vector_add,
    inputs=make_inputs,
    cases=[dict(M=150, N=768), dict(M=128, N=1000)],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # every block is needed once
    par=lambda launch: (
        f"{counted(launch.all_steps, 'step')}, {launch.hbm_bytes / 2**30:.2f} GiB moved"
    ),
    hints=[
        "Start from the output: one step makes one block of bm × bn. How many blocks cover each "
        "axis, including the ragged block at its end?",
        "`grid` is a tuple of step counts; a `pl.BlockSpec(block_shape, index_map)` goes with each "
        "array; the index map takes one argument for each grid axis.",
        "The grid has two axes; each is the array's length divided by the block's, rounded up. All "
        "three BlockSpecs are alike: the same block shape, and an index map that returns its two "
        "arguments.",
    ],
    explain="""One step, one output block, and the same block of both inputs. The grid counts blocks,
    so it is the array's shape divided by the block's, rounded up; what hangs over the edge is read
    as garbage, added to garbage, and dropped.""",
)
