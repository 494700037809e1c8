"""Puzzle 7: a reduction over the grid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## row_sum: one output block, many steps
#
# A row of `x` spans several blocks, so its sum takes several steps. All of them name the same
# output block, because its index map ignores `j`.
#
# ![During the three steps of a row, x's blocks are fetched one by one while the output block stays in VMEM; it is written after the third.](diagrams/basics/row_sum.svg)
#
# While its index does not change, the output block **stays in VMEM**: each step can read the sum so
# far and add to it. So you can accumulate in `o_ref`, if
#
# * the steps that share an output block are **consecutive**: you sum over the grid's last axis;
# * your kernel writes the first value: every `i` begins with a fresh block of garbage.
#
# `@pl.when(condition)` runs the function below it only if `condition` holds, say, in the last row
# of blocks:
#
# ```python
# i = pl.program_id(0)
#
# @pl.when(i == pl.num_programs(0) - 1)
# def _():
#     ...
# ```
#
# Read program ids at the top: inside `pl.when` or a loop, interpret mode cannot read them. A Ref
# has a `.shape` and a `.dtype`, so `jnp.zeros_like(o_ref)` makes zeros to store.


# %%
def row_sum_spec(x: Float[Array, "M N"]) -> Float[Array, "M 1"]:
    return jnp.sum(x, axis=1, keepdims=True)


# %%
def row_sum_kernel(x_ref, o_ref):
    ### BEGIN SOLUTION
    @pl.when(pl.program_id(1) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)
    ### END SOLUTION


def row_sum(x: Float[Array, "M N"]) -> Float[Array, "M 1"]:
    M, N = x.shape
    bm, bn = 64, 128
    return pl.pallas_call(
        row_sum_kernel,
        grid=(M // bm, N // bn),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((bm, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((M, 1), x.dtype),
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# Watch the output block stay while `j` runs, and go back to HBM when `i` moves on.
#
# <details>
# <summary>More: why (M, 1), and loops in a body</summary>
#
# A sum along the rows of a block, with `keepdims=True`, leaves a column. An output of shape (M,)
# would need 1-D blocks of 64 elements, which a TPU rejects if the array is longer.
#
# A Python `for` in a body is unrolled: its lines are traced again in each iteration. A real loop is
# `jax.lax.fori_loop(0, n, body, init)`. In iteration `c`, `x_ref[pl.ds(8 * c, 8), :]` reads eight
# rows: `pl.ds(start, size)` is a slice whose start may be known only at run time.
#
# </details>

# %% active="ipynb"
# show(row_sum)

# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, M, N):
    return (array(rng(key).normal(0.5, 1, (M, N)), jnp.float32),)


def scale(M=1024, N=262144):
    # Eight of these rows, with a second buffer, are more than 16 MiB.
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def fresh(r):
    return dict(M=64 * int(r.integers(1, 5)), N=128 * int(r.choice([5, 9])))


PUZZLE = Puzzle(
    spec=row_sum_spec,
    solution=row_sum,
    inputs=make_inputs,
    cases=[
        dict(M=128, N=384),
        dict(M=192, N=128),
        dict(M=64, N=17 * 128),
    ],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # x is needed once
    par=lambda launch: (
        f"{counted(launch.outputs[0].transfers, 'block of sums')} in "
        f"{counted(launch.all_steps, 'step')}"
    ),
    hints=[
        "What must the output block contain before the first addition to it? Which steps make "
        "that first addition?",
        "`@pl.when(condition)` guards the start; `pl.program_id(1)` is j. `jnp.sum(x, axis=1, "
        "keepdims=True)` gives a column for one block.",
        "Two parts: under `pl.when`, store zeros in the output Ref; then, unguarded, add this "
        "block's column of sums to it with `+=`.",
    ],
    explain="""Steps that share an output block are consecutive, and the block stays in VMEM between
    them. Zeros at j = 0 separate each row of blocks from the one before.""",
)
