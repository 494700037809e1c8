"""Rung 9: right under interpret=True, wrong on a TPU."""

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
# Why? `interpret=True` keeps the whole output in one place and reads each block from there when a
# step begins. A TPU holds an output block in VMEM for as long as consecutive steps name the same
# block, then copies it to HBM and **forgets it**. If a later step names that block again, it gets a
# buffer with whatever was left in it.
#
# The arithmetic is right. Run the cell, call `show(fix_the_grid)` in one of your own, and watch
# which output block each step names. Then mend it.

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

from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
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
        f"a block holds all {x.shape[0]} rows: with one block of rows there is nothing to revisit, but "
        "long columns do not fit; keep several"
    )


def scale(M=1024, N=262144):
    # Eight of these rows, with a second buffer, are more than 16 MiB.
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def fresh(r):
    return dict(M=64 * int(r.choice([2, 4, 5, 7])), N=128 * int(r.choice([5, 8])))


_GRID = "grid=(M // bm, N // bn)"
_IN = "(bm, bn), lambda i, j: (i, j)"
_OUT = "(bm, 1), lambda i, j: (i, 0)"

PUZZLE = Puzzle(
    picture=False,  # the picture is the answer: show() draws it
    spec=fix_the_grid_spec,
    solution=fix_the_grid,
    inputs=make_inputs,
    cases=[dict(M=128, N=384), dict(M=192, N=256)],
    fresh=fresh,
    keeps={"x": "finite"},  # a maximum on the CPU may drop NaN
    scale=scale,
    tolerance=1e-7,  # a maximum is exact
    slack={"bytes": 1.0},  # x is needed once
    par=lambda launch: f"{counted(launch.outputs[0].transfers, 'block of maxima')} in {counted(launch.steps, 'step')}",
    hints=[
        "List the output blocks of steps (0, 0), (0, 1), (1, 0), (1, 1). Does one come back after "
        "another has been there?",
        "The last grid axis runs fastest. Steps that share an output block must be consecutive, so "
        "the axis that is reduced has to be the last.",
        "Three things name the axes: the grid, the arguments of both index maps, and the axis "
        "given to `pl.program_id`. Change the order in all of them.",
    ],
    explain="""With the reduced axis innermost, all steps of one output block are consecutive: the
    block stays in VMEM until its maximum is complete, and is written to HBM once.""",
    starter="reduces over the outermost grid axis",
    mistakes=[
        Mistake(
            "reduces over the outermost grid axis",
            edits=(
                ("j = pl.program_id(1)", "j = pl.program_id(0)"),
                (_GRID, "grid=(N // bn, M // bm)"),
                (_IN, "(bm, bn), lambda j, i: (i, j)"),
                (_OUT, "(bm, 1), lambda j, i: (i, 0)"),
            ),
            says="as you found it",
            stage="unsolved",
        ),
        Mistake(
            "keeps the order and renames the axes",
            edits=(
                ("j = pl.program_id(1)", "j = pl.program_id(0)"),
                (_GRID, "grid=(N // bn, M // bm)"),
                (_IN, "(bm, bn), lambda i, j: (j, i)"),
                (_OUT, "(bm, 1), lambda i, j: (j, 0)"),
            ),
            says="is visited again at grid step",
            stage="memory",
        ),
        Mistake(
            "asks for another program id than the one that counts j",
            old="j = pl.program_id(1)",
            new="j = pl.program_id(0)",
            says="j counts blocks along a row, and grid and index maps say which axis that is; here the "
            "first row of blocks is set to -inf at every step, and the others never are",
        ),
        Mistake(
            "has a grid and index maps that disagree",
            edits=(
                (_IN, "(bm, bn), lambda j, i: (i, j)"),
                (_OUT, "(bm, 1), lambda j, i: (i, 0)"),
            ),
            says="grid and index maps must name the axes in the same order",
        ),
        Mistake(
            "starts over at every step",
            old="j = pl.program_id(1)",
            new="j = 0",
            says="only the last block of each row counts; -inf belongs to the first step of a row "
            "alone, where j, a program id, is 0",
        ),
        Mistake(
            "begins with zero",
            old="jnp.full_like(o_ref, -jnp.inf)",
            new="jnp.zeros_like(o_ref)",
            says="the largest of negative numbers is negative; only -inf is below every number",
        ),
        Mistake(
            "takes whole rows in one block",
            old="bm, bn = 64, 128",
            new="bm, bn = 64, N",
            says="`x_ref` takes 128 MiB, for blocks of (64, 262144)",
            stage="work",
        ),
        Mistake(
            "has two index maps that name the axes in different orders",
            edits=(
                ("j = pl.program_id(1)", "j = pl.program_id(0)"),
                (_GRID, "grid=(N // bn, M // bm)"),
                (_IN, "(bm, bn), lambda j, i: (i, j)"),
            ),
            says="the maxima of one row of blocks land in another row's place; `x` and the output must "
            "agree on which program id is `i`",
        ),
    ],
    alternatives=[
        Alternative(
            "renames the axes instead of moving them",
            edits=(
                (_IN, "(bm, bn), lambda row, column: (row, column)"),
                (_OUT, "(bm, 1), lambda row, column: (row, 0)"),
            ),
        ),
        Alternative("takes other blocks", old="bm, bn = 64, 128", new="bm, bn = 8, 128"),
        Alternative(
            "keeps the order, and all maxima in VMEM",
            edits=(
                ("j = pl.program_id(1)", "j = pl.program_id(0)\n    rows = _rows(x_ref)"),
                (_GRID, "grid=(N // bn, M // bm)"),
                (_IN, "(bm, bn), lambda j, i: (i, j)"),
                (_OUT, "(M, 1), lambda j, i: (0, 0)"),
                (
                    "o_ref[...] = jnp.full_like(o_ref, -jnp.inf)",
                    "o_ref[rows, :] = jnp.full((x_ref.shape[0], 1), -jnp.inf)",
                ),
                ("o_ref[...] = jnp.maximum(o_ref[...],", "o_ref[rows, :] = jnp.maximum(o_ref[rows, :],"),
            ),
            code="""
def _rows(x_ref):
    return pl.ds(pl.program_id(1) * x_ref.shape[0], x_ref.shape[0])
""",
        ),
        Alternative(
            "keeps the given order of the grid's names and takes j from its last axis, under jit",
            code="""
@jax.jit
def fix_the_grid(x):
    blocks = [size // block for size, block in zip(x.shape, (32, 128))]

    def kernel(x_ref, o_ref):
        pl.when(pl.program_id(axis=1) == 0)(lambda: o_ref.__setitem__(..., x_ref[:, :1]))
        o_ref[...] = jnp.maximum(x_ref[...].max(1, keepdims=True), o_ref[...])

    return pl.pallas_call(
        kernel,
        jax.ShapeDtypeStruct((x.shape[0], 1), jnp.float32),
        grid=tuple(blocks),
        in_specs=(pl.BlockSpec((32, 128), lambda *ids: ids),),
        out_specs=pl.BlockSpec((32, 1), lambda *ids: (ids[0], 0)),
        interpret=INTERPRET,
    )(x)
""",
        ),
    ],
    audit=audit,
)
