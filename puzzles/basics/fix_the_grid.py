"""Puzzle 9: right under interpret=True, wrong on a TPU."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## fix_the_grid: find the bug
#
# This is somebody's row maximum, block by block. It passes its tests under `interpret=True`, to the
# last digit. On a TPU it can give wrong answers.
#
# Why? `interpret=True` keeps the whole output in one place and loads the step's block from there
# when the step begins. A TPU holds an output block in VMEM for as long as consecutive steps name
# the same block, then copies it to HBM and **forgets it**. If a later step names the block again,
# the block is not fetched from HBM: its buffer holds leftovers.
#
# The arithmetic is right. Run the cell, call `show(fix_the_grid)` in a new cell, and watch which
# output block each step names. Then fix it.


# %%
def fix_the_grid_spec(x: Float[Array, "M N"]) -> Float[Array, "M 1"]:
    return jnp.max(x, axis=1, keepdims=True)


# %%
def fix_the_grid_kernel(x_ref, o_ref):
    ### BEGIN SOLUTION
    j = pl.program_id(1)
    ### END SOLUTION

    @pl.when(j == 0)
    def _():
        o_ref[...] = jnp.full_like(o_ref, -jnp.inf)

    o_ref[...] = jnp.maximum(o_ref[...], jnp.max(x_ref[...], axis=1, keepdims=True))


def fix_the_grid(x: Float[Array, "M N"]) -> Float[Array, "M 1"]:
    M, N = x.shape
    bm, bn = 64, 128
    return pl.pallas_call(
        fix_the_grid_kernel,
        ### BEGIN SOLUTION
        grid=(M // bm, N // bn),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((bm, 1), lambda i, j: (i, 0)),
        ### END SOLUTION
        out_shape=jax.ShapeDtypeStruct((M, 1), x.dtype),
        interpret=INTERPRET,
    )(x)


# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, M, N):
    # Every other row is negative throughout, some far below zero: a maximum that begins there, or
    # at any number that is merely small, is noticed.
    r = rng(key)
    below = np.array([0, 6, 0, 1000])[np.arange(M) % 4]
    return (array(r.normal(size=(M, N)) - below[:, None], jnp.float32),)


def audit(launch: Launch) -> None:
    x = launch.inputs[0]
    assert x.portion[0] < x.shape[0], (
        f"a block holds all {x.shape[0]} rows: with one block of rows there is nothing to "
        "revisit, but long columns do not fit; keep several"
    )


def scale(M=1024, N=262144):
    # Eight of these rows, with a second buffer, are more than 16 MiB.
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def fresh(r):
    return dict(M=64 * int(r.choice([2, 4, 5, 7])), N=128 * int(r.choice([5, 8])))


PUZZLE = Puzzle(
    picture=False,  # the picture is the answer: show() draws it
    spec=fix_the_grid_spec,
    solution=fix_the_grid,
    inputs=make_inputs,
    cases=[
        dict(M=128, N=384),
        dict(M=192, N=256),
        dict(M=128, N=17 * 128),
    ],
    fresh=fresh,
    scale=scale,
    tolerance=1e-7,  # a maximum is exact
    slack={"bytes": 1.0, "seconds": 10.0},  # x is needed once; blocks may be small
    par=lambda launch: (
        f"{counted(launch.outputs[0].transfers, 'block of maxima')} in "
        f"{counted(launch.all_steps, 'step')}"
    ),
    hints=[
        "List the output blocks of steps (0, 0), (0, 1), (1, 0), (1, 1). Does a block come back "
        "after a different block?",
        "The last grid axis runs fastest. Steps that share an output block must be consecutive, so "
        "the axis that is reduced has to be the last.",
        "Three things name the axes: the grid, the arguments of both index maps, and the axis "
        "given to `pl.program_id`. Change the order in all of them.",
    ],
    explain="""With the reduced axis innermost, all steps of one output block are consecutive: the
    block stays in VMEM until its maximum is complete, and is written to HBM once.""",
    starter="reduces over the outermost grid axis",
    audit=audit,
)
