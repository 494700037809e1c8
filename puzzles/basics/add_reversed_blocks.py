"""Puzzle 3: an index map is arithmetic on program ids."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## add_reversed_blocks: route data with an index map
#
# An index map may be any arithmetic on the program ids. So it moves data without a single
# instruction in the kernel's body. From matmul to mixture-of-experts routing, you will meet this
# trick again: *the body stays, the index map changes*.
#
# Step `i` gets block `i` of `x`. It should get block `i` of `y`, counted from the **end**. Elements
# keep their order inside a block:
#
# ```text
# x      [ x0 | x1 | x2 ]
# y      [ y0 | y1 | y2 ]
# result [ x0 + y2 | x1 + y1 | x2 + y0 ]
# ```
#
# ![The blocks of x are fetched from first to last, those of y from last to first.](diagrams/basics/add_reversed_blocks.svg)
#
# Write only `y`'s index map. It may use `n`, the number of blocks: an ordinary Python int.


# %%
def add_reversed_blocks_spec(x: Float[Array, " N"], y: Float[Array, " N"]) -> Float[Array, " N"]:
    return x + y.reshape(-1, 1024)[::-1].reshape(-1)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to vector_add)
def add_reversed_blocks_kernel(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


# %%
def add_reversed_blocks(x: Float[Array, " N"], y: Float[Array, " N"]) -> Float[Array, " N"]:
    bn = 1024
    n = x.shape[0] // bn

    def y_index_map(i):
        ### BEGIN SOLUTION
        return (n - 1 - i,)
        ### END SOLUTION

    return pl.pallas_call(
        add_reversed_blocks_kernel,
        grid=(n,),
        in_specs=[
            pl.BlockSpec((bn,), lambda i: (i,)),
            pl.BlockSpec((bn,), y_index_map),
        ],
        out_specs=pl.BlockSpec((bn,), lambda i: (i,)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=INTERPRET,
    )(x, y)


# %% [markdown]
# Wrong numbers? See which blocks your index map chooses. `show` marks a block outside the array.

# %% active="ipynb"
# show(add_reversed_blocks)

# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, N):
    r = rng(key)
    return tuple(array(r.normal(size=N), jnp.float32) for _ in range(2))


def scale(N=16 * 2**20):
    return tuple(jax.ShapeDtypeStruct((N,), jnp.float32) for _ in range(2))


def fresh(r):
    return dict(N=1024 * int(r.choice([3, 4, 7, 9, 10, 11, 13, 14])))


PUZZLE = Puzzle(
    spec=add_reversed_blocks_spec,
    solution=add_reversed_blocks,
    inputs=make_inputs,
    cases=[dict(N=5 * 1024), dict(N=18 * 1024)],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # every element is needed once
    par=lambda launch: (
        f"{counted(launch.inputs[1].transfers, 'block of y')} in "
        f"{counted(launch.all_steps, 'step')}"
    ),
    hints=[
        "Which block of `y` does the first step need? And the last one, when there are n blocks?",
        "Block indices run from 0 to n - 1. An index map returns a tuple with one block index for "
        "each axis of the array, here one.",
        "Return a one-tuple that starts at n - 1 for i = 0 and falls by one at every step.",
    ],
    explain="""The index map is evaluated before the step it belongs to, so that the block is on its
    way in good time. The body never learns that anything was reordered.""",
)
