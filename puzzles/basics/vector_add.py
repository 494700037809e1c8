"""Puzzle 2: a grid, and one block at a time."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## vector_add: a grid of blocks
#
# A large array does not fit into VMEM. So we cut it into **blocks**, and run the kernel once for
# each:
#
# * `grid=(n,)`: run it `n` times, one after another. Each run is a **grid step** and has a number,
#   `pl.program_id(0)`, from `0` to `n - 1`.
# * `pl.BlockSpec(block_shape, index_map)`: cut an array into blocks of `block_shape`. `index_map`
#   says which block a step gets. It counts *blocks*, not elements: with `lambda i: (i,)`, step 2
#   gets block 2, `x[2048:3072]` in blocks of 1024.
#
# `in_specs` has a `BlockSpec` for each input, in the order of the Refs; `out_specs` has the
# output's.
#
# ![Four steps' worth of blocks: at step i, block i of x and of y is fetched and block i of the result is written.](diagrams/basics/vector_add.svg)
#
# Inside the kernel, `x_ref` **is** the block. So the kernel looks as if this were the whole array.
#
# Add two vectors, 1024 elements at a time.


# %%
def vector_add_spec(x: Float[Array, " N"], y: Float[Array, " N"]) -> Float[Array, " N"]:
    return x + y


# %%
def vector_add_kernel(x_ref, y_ref, o_ref):
    ### BEGIN SOLUTION
    o_ref[...] = x_ref[...] + y_ref[...]
    ### END SOLUTION


def vector_add(x: Float[Array, " N"], y: Float[Array, " N"]) -> Float[Array, " N"]:
    (N,) = x.shape
    bn = 1024
    return pl.pallas_call(
        vector_add_kernel,
        grid=(N // bn,),
        in_specs=[
            pl.BlockSpec((bn,), lambda i: (i,)),
            pl.BlockSpec((bn,), lambda i: (i,)),
        ],
        out_specs=pl.BlockSpec((bn,), lambda i: (i,)),
        out_shape=jax.ShapeDtypeStruct((N,), x.dtype),
        interpret=INTERPRET,
    )(x, y)


# %% [markdown]
# While one step computes, the next step's blocks are already on their way from HBM, and the
# previous step's results on their way back. `show` draws your launch, step by step: which block of
# each operand is fetched, reused and written. It helps most if a launch is wrong, because it marks
# blocks that are out of place. It does not check the numbers.
#
# <details>
# <summary>More: why 1024, and why the blank in " N"</summary>
#
# The TPU's vector registers hold 8 × 128 numbers of 32 bits, and every version of JAX accepts a
# one-dimensional block that fills whole registers. In a type with one axis, such as `Float[Array, "
# N"]`, the blank keeps linters from taking the letter for a variable.
#
# </details>

# %% active="ipynb"
# show(vector_add)

# %% [markdown]
# Why does the receipt say "bound by its steps"? Every grid step has a fixed cost, however little it
# moves, and blocks of 1,024 numbers need many steps. Later you choose larger blocks.

# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, N):
    r = rng(key)
    return tuple(array(r.normal(size=N), jnp.float32) for _ in range(2))


def scale(N=16 * 2**20):
    return tuple(jax.ShapeDtypeStruct((N,), jnp.float32) for _ in range(2))


def fresh(r):
    return dict(N=1024 * int(r.integers(8, 16)))


PUZZLE = Puzzle(
    spec=vector_add_spec,
    solution=vector_add,
    inputs=make_inputs,
    cases=[dict(N=4096), dict(N=7168)],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # every element is needed once
    par=lambda launch: (
        f"{counted(launch.all_steps, 'step')}, {launch.hbm_bytes / 2**20:.0f} MiB moved"
    ),
    hints=[
        "You do not need to know which block this is. The BlockSpecs have chosen it already.",
        "Read both input Refs with `[...]`; what you get has the shape of one block, (1024,).",
        "One line, as in add_ten: output Ref on the left, a sum of two values on the right.",
    ],
    explain="""The index maps choose the blocks, so the body needs no index at all. The pipeline runs
    it once for each block and moves the next block in while this one is computed.""",
)
