"""Rung 3: an index map is arithmetic on program ids."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## add_reversed_blocks: route data with an index map
#
# An index map may be any arithmetic on the program ids. It moves data without a single instruction
# in the kernel's body. From matmul to mixture-of-experts routing, you will meet this trick again: *the
# body stays, the index map changes*.
#
# Step `i` gets block `i` of `x`. It should get the block of `y` that lies equally far from the
# **end**, with its elements in their order:
#
# ```text
# x      [ x0 | x1 | x2 ]
# y      [ y0 | y1 | y2 ]
# result [ x0 + y2 | x1 + y1 | x2 + y0 ]
# ```
#
# ![While x's blocks are fetched from the first on, y's are fetched from the last on.](diagrams/basics/add_reversed_blocks.svg)
#
# Only `y`'s index map is yours. It may use `n`, the number of blocks: an ordinary Python int.

# %%
def add_reversed_blocks_spec(x: Float[Array, " N"], y: Float[Array, " N"]) -> Float[Array, " N"]:
    return x + y.reshape(-1, 1024)[::-1].reshape(-1)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (spoils vector_add)
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
# Wrong numbers? See which blocks your index map chooses. One that lies outside the array is marked.

# %% active="ipynb"
# show(add_reversed_blocks)

# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle, array, rng
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
    par=lambda launch: f"{counted(launch.inputs[1].transfers, 'block of y')} in {counted(launch.steps, 'step')}",
    hints=[
        "Which block of `y` does the first step need? And the last one, when there are n blocks?",
        "Block indices run from 0 to n - 1. An index map returns a tuple with one block index for "
        "each axis of the array, here one.",
        "Return a one-tuple that starts at n - 1 for i = 0 and falls by one at every step.",
    ],
    explain="""The index map is evaluated before the step it belongs to, so that the block is on its
    way in good time. The body never learns that anything was reordered.""",
    mistakes=[
        Mistake(
            "does not reverse anything",
            old="return (n - 1 - i,)",
            new="return (i,)",
            says="step i still gets block i of y",
        ),
        Mistake(
            "takes the last block of y at every step",
            old="return (n - 1 - i,)",
            new="return (n - 1,)",
            says="an index map that ignores `i` always names the same block",
        ),
        Mistake(
            "reverses the elements of each block as well",
            old="x_ref[...] + y_ref[...]",
            new="x_ref[...] + y_ref[...][::-1]",
            says="blocks change places, the elements inside them do not",
        ),
        Mistake(
            "counts one block too many",
            old="return (n - 1 - i,)",
            new="return (n - i,)",
            says="block n does not exist; the last one is n - 1",
        ),
        Mistake(
            "begins again at the first block",
            old="(n - 1 - i,)",
            new="((n - i) % n,)",
            says="step 0 gets block 0 of y, since n % n is 0; it should get the last one, n - 1",
        ),
        Mistake(
            "has a block count written into it",
            old="return (n - 1 - i,)",
            new="return (4 - i,)",
            says="it fits five blocks only; compute it from `n`",
        ),
        Mistake(
            "uses a negative block index",
            old="return (n - 1 - i,)",
            new="return (-1 - i,)",
            says="negative indices do not wrap on a TPU",
            stage="memory",
        ),
        Mistake(
            "counts in elements",
            old="return (n - 1 - i,)",
            new="return ((n - 1 - i) * bn,)",
            says="an index map counts in blocks, and the interpreter clamps what lies outside",
        ),
        Mistake(
            "reverses x's blocks as well as y's",
            edits=(
                (
                    "pl.BlockSpec((bn,), lambda i: (i,)),\n            pl.BlockSpec((bn,), y_index_map)",
                    "pl.BlockSpec((bn,), y_index_map),\n            pl.BlockSpec((bn,), y_index_map)",
                ),
            ),
            says="step i gets block n - 1 - i of both; x should keep block i",
        ),
        Mistake(
            "keeps all of y in VMEM",
            edits=(
                ("pl.BlockSpec((bn,), y_index_map)", "pl.BlockSpec((n * bn,), lambda i: (0,))"),
                ("x_ref[...] + y_ref[...]", "x_ref[...] + y_ref[pl.ds(_start(x_ref), 1024)]"),
            ),
            code="""
def _start(x_ref):
    return (pl.num_programs(0) - 1 - pl.program_id(0)) * x_ref.shape[0]
""",
            says="`y_ref` takes 64 MiB, all of it as one block",
            stage="work",
        ),
        Mistake(
            "reverses y before the kernel sees it",
            edits=(
                ("return (n - 1 - i,)", "return (i,)"),
                (")(x, y)", ")(x, y.reshape(n, bn)[::-1].reshape(-1))"),
            ),
            says="works on the data outside the kernel",
            stage="pallas",
        ),
    ],
    alternatives=[
        Alternative(
            "walks y forwards, x and the output backwards",
            edits=(
                ("return (n - 1 - i,)", "return (i,)"),
                (
                    "pl.BlockSpec((bn,), lambda i: (i,)),\n            pl.BlockSpec((bn,), y_index_map)",
                    "pl.BlockSpec((bn,), lambda i: (n - 1 - i,)),\n"
                    "            pl.BlockSpec((bn,), y_index_map)",
                ),
                (
                    "out_specs=pl.BlockSpec((bn,), lambda i: (i,))",
                    "out_specs=pl.BlockSpec((bn,), lambda i: (n - 1 - i,))",
                ),
            ),
        ),
        Alternative(
            "asks the grid for the number of blocks",
            old="return (n - 1 - i,)",
            new="return (jnp.int32(n) - (i + 1),)",
        ),
        Alternative(
            "writes the map elsewhere and binds n to it, under jit",
            code="""
import functools


def from_the_end(i, *, count):
    return jax.lax.sub(count - 1, i)


@jax.jit
def add_reversed_blocks(x, y):
    n = x.size // 1024
    forward, backward = (
        pl.BlockSpec((1024,), index_map)
        for index_map in (lambda i: i, functools.partial(from_the_end, count=n))
    )
    return pl.pallas_call(
        add_reversed_blocks_kernel,
        grid=n,
        in_specs=[forward, backward],
        out_specs=forward,
        out_shape=jax.ShapeDtypeStruct((n * 1024,), y.dtype),
        interpret=INTERPRET,
    )(x, y)
""",
        ),
        Alternative(
            "puts the index together bit by bit",
            old="return (n - 1 - i,)",
            new="left = n - 1 - i\n        return sum((left >> bit & 1) << bit for bit in range(20))",
        ),
    ],
)
