"""Puzzle 4: a grid of two axes, and the shape of a legal block."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## scale_blocks: a two-dimensional grid
#
# A matrix is cut along both axes, so the grid has two axes, and index maps receive both program
# ids: `lambda i, j: (i, j)`. The steps run in order with the **last axis fastest**: (0, 0), (0, 1),
# (0, 2), (1, 0), ...
#
# ![The steps go along a row of blocks, then along the next: the last grid axis runs fastest.](diagrams/basics/scale_blocks.svg)
#
# Not every block shape is legal: VMEM holds data in tiles of 8 rows by 128 columns. So a block's
# last dimension must be a multiple of 128, and the one before it a multiple of 8. A dimension that
# spans its whole axis is also legal. (Int8 has a stricter rule: see `matmul_bf16`, later.)
#
# Number the blocks from 1, and multiply each block of `x` by its number:
#
# ```text
#          j = 0   j = 1   j = 2
# i = 0      1       2       3
# i = 1      4       5       6
# ```
#
# In the kernel, `pl.program_id(axis)` is your position on a grid axis, `pl.num_programs(axis)` its
# length.


# %%
def scale_blocks_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    M, N = x.shape
    row = jnp.arange(M)[:, None] // 16
    column = jnp.arange(N)[None, :] // 128
    return x * (row * (N // 128) + column + 1)


# %%
def scale_blocks_kernel(x_ref, o_ref):
    ### BEGIN SOLUTION
    number = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1
    o_ref[...] = x_ref[...] * number
    ### END SOLUTION


def scale_blocks(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    M, N = x.shape
    bm, bn = 16, 128
    return pl.pallas_call(
        scale_blocks_kernel,
        grid=(M // bm, N // bn),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# Does a kernel surprise you? `print(x_ref[...])` in its body shows no numbers, because JAX traces
# the body before any step runs. `pl.debug_print("i = {}", i)` prints at every step. To print a
# float on JAX before 0.11, leave the braces out: `pl.debug_print("x", x_ref[0, 0])`. `check` runs
# your kernel several times, at several shapes, so expect many lines. On a TPU they go to the log,
# and only if `xla_tpu_enable_log_recorder` is set:
# `jax.jit(scale_blocks).lower(x).compile({"xla_tpu_enable_log_recorder": "true"})(x)`.

# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, M, N):
    return (array(rng(key).normal(size=(M, N)), jnp.float32),)


def scale(M=16384, N=4096):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def fresh(r):
    return dict(M=16 * int(r.choice([7, 9, 11, 13])), N=128 * int(r.choice([5, 6])))


PUZZLE = Puzzle(
    spec=scale_blocks_spec,
    solution=scale_blocks,
    inputs=make_inputs,
    cases=[
        dict(M=80, N=512),
        dict(M=352, N=768),
        dict(M=32, N=17 * 128),
    ],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # every element is needed once
    par=lambda launch: (
        f"{counted(launch.inputs[0].transfers, 'block of x')} in "
        f"{counted(launch.all_steps, 'step')}"
    ),
    hints=[
        "How many rows of blocks are above your block, and how many blocks has each of them? How "
        "many blocks are to its left, in its own row?",
        "`pl.program_id(0)` is the row of blocks, `pl.num_programs(1)` the number of blocks in "
        "a row.",
        "One line for the number, (row × blocks in a row) + column + 1, and one to multiply "
        "and store.",
    ],
    explain="""Program ids are scalars that the kernel can compute with, so a block can compute
    its own position. Row-major numbering is also the order in which the grid runs.""",
)
