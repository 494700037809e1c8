"""Rung 9: right under interpret=True, wrong on a TPU."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## fix_the_grid: find the bug
#
# This is somebody's row maximum: the largest number of each row, block by block. It passes its tests
# under `interpret=True`, to the last digit. On a TPU it can give wrong answers.
#
# Why the difference? `interpret=True` keeps the whole output in one place and reads each block
# from there when a step begins. A TPU does not. It holds an output block in VMEM for as long as
# consecutive steps name the same block, then copies it to HBM and **forgets it**. If a later step
# names that block again, it gets a buffer with whatever was left in it; nothing is read back.
#
# Nothing is wrong with the arithmetic. Write down which output block each of the first grid steps
# names, and you will see it. `check` judges your repair; the first hint lists the steps.

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
from puzzles import Alternative, Launch, Mistake, Puzzle, rng
from puzzles.basics._audits import rows_by_blocks


def make_inputs(key, M, N):
    return (jnp.asarray(rng(key).normal(-6, 1, (M, N)), jnp.float32),)


def audit(launch: Launch) -> None:
    x = launch.inputs[0]
    assert x.portion[0] < x.shape[0], (
        f"a block holds all {x.shape[0]} rows: with one block of rows there is nothing to revisit, but "
        "long columns do not fit; keep several"
    )
    rows_by_blocks(launch)


_GRID = "grid=(M // bm, N // bn)"
_IN = "(bm, bn), lambda i, j: (i, j)"
_OUT = "(bm, 1), lambda i, j: (i, 0)"

PUZZLE = Puzzle(
    picture=False,  # the picture is the answer: show() draws it
    spec=fix_the_grid_spec,
    solution=fix_the_grid,
    inputs=make_inputs,
    cases=[dict(M=128, N=384), dict(M=192, N=256)],
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
            says="visited again",
            stage="memory",
        ),
        Mistake(
            "has a grid and a program id that disagree",
            old="j = pl.program_id(1)",
            new="j = pl.program_id(0)",
            says="j must count blocks along a row; here the first row of blocks is set to -inf at every step, and the others never are",
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
            "takes whole rows in one block",
            old="bm, bn = 64, 128",
            new="bm, bn = 64, N",
            says="a block holds whole rows",
            stage="work",
        ),
        Mistake(
            "swaps the output's index map only",
            edits=(
                ("j = pl.program_id(1)", "j = pl.program_id(0)"),
                (_GRID, "grid=(N // bn, M // bm)"),
                (_IN, "(bm, bn), lambda j, i: (i, j)"),
            ),
            says="the maxima of one column of blocks land in another row's place",
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
