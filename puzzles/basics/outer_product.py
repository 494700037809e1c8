"""Rung 5: operands of another rank than the grid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## outer_product: each operand sees the part of the grid that it needs
#
# Every index map receives **all** program ids, and returns as many block indices as **its own
# array** has axes. Here, step `(i, j)` needs block `i` of `a` and block `j` of `b`.
#
# While `j` runs, `a`'s index stays the same. A block is fetched only if its index **differs from
# the previous step's**. So in blocks of 4 KiB, a grid of 3 × 2 reads 36 KiB, not 48: three blocks of
# `a`, once each, and six of `b`. `receipt(outer_product)` will show these bytes.
#
# ![From step (0, 0) to (0, 1), a's block is reused and b's is fetched; at (1, 0) both are fetched.](diagrams/basics/outer_product.svg)
#
# Write the two input BlockSpecs and the kernel. `v[:, None]` makes a column of a vector, `v[None,
# :]` a row.

# %%
def outer_product_spec(a: Float[Array, " M"], b: Float[Array, " N"]) -> Float[Array, "M N"]:
    return a[:, None] * b[None, :]


# %%
def outer_product_kernel(a_ref, b_ref, o_ref):
    ### BEGIN SOLUTION
    o_ref[...] = a_ref[...][:, None] * b_ref[...][None, :]
    ### END SOLUTION


def outer_product(a: Float[Array, " M"], b: Float[Array, " N"]) -> Float[Array, "M N"]:
    (M,), (N,) = a.shape, b.shape
    bm, bn = 1024, 1024
    return pl.pallas_call(
        outer_product_kernel,
        grid=(M // bm, N // bn),
        in_specs=[
            ### BEGIN SOLUTION
            pl.BlockSpec((bm,), lambda i, j: (i,)),
            pl.BlockSpec((bn,), lambda i, j: (j,)),
            ### END SOLUTION
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), a.dtype),
        interpret=INTERPRET,
    )(a, b)


# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng


def make_inputs(key, M, N):
    r = rng(key)
    return tuple(array(r.normal(size=n), jnp.float32) for n in (M, N))


def scale(M=16384, N=8192):
    return tuple(jax.ShapeDtypeStruct((n,), jnp.float32) for n in (M, N))


def fresh(r):
    M, N = [(1024, 2048), (2048, 1024), (1024, 3072), (3072, 1024)][r.integers(4)]
    return dict(M=M, N=N)


def audit(launch: Launch) -> None:
    for operand in launch.inputs:
        assert operand.portion != operand.shape, (
            f"`{operand.name}` comes as one block of all {operand.shape[0]} elements: "
            "give it blocks, so that vectors of any length fit"
        )


PUZZLE = Puzzle(
    spec=outer_product_spec,
    solution=outer_product,
    inputs=make_inputs,
    cases=[dict(M=3072, N=2048)],
    fresh=fresh,
    scale=scale,
    par=lambda launch: (
        f"{launch.hbm_bytes_read / 2**10:,.0f} KiB read, "
        f"{launch.hbm_bytes_written / 2**20:,.0f} MiB written"
    ),
    hints=[
        "Rows of the result come from `a`, columns from `b`. Which program id counts rows?",
        "`pl.BlockSpec((bm,), lambda i, j: (...,))`: two arguments, for the grid; one index, for the "
        "vector. In the kernel, `[:, None]` makes a column.",
        "The first map ignores j, the second ignores i. The kernel stores a column times a row.",
    ],
    explain="""An index map selects the program ids that matter to its array. What it ignores is
    reuse: a's block is fetched once for each i, and stays in VMEM while j runs.""",
    mistakes=[
        Mistake(
            "swaps the two index maps",
            edits=(
                ("pl.BlockSpec((bm,), lambda i, j: (i,))", "pl.BlockSpec((bm,), lambda i, j: (j,))"),
                ("pl.BlockSpec((bn,), lambda i, j: (j,))", "pl.BlockSpec((bn,), lambda i, j: (i,))"),
            ),
            says="`i` counts blocks of rows, which come from `a`",
        ),
        Mistake(
            "makes a row of `a` and a column of `b`",
            old="a_ref[...][:, None] * b_ref[...][None, :]",
            new="a_ref[...][None, :] * b_ref[...][:, None]",
            says="each block of the result is transposed: `a` runs down the rows",
        ),
        Mistake(
            "gives every step the first block of `a`",
            old="pl.BlockSpec((bm,), lambda i, j: (i,))",
            new="pl.BlockSpec((bm,), lambda i, j: (0,))",
            says="only the first 1024 rows are right",
        ),
        Mistake(
            "gives every step the first block of `b`",
            old="pl.BlockSpec((bn,), lambda i, j: (j,))",
            new="pl.BlockSpec((bn,), lambda i, j: (0,))",
            says="`b`'s index map ignores `j`, so only the first 1024 columns are right",
        ),
        Mistake(
            "takes block `i` of both",
            old="pl.BlockSpec((bn,), lambda i, j: (j,))",
            new="pl.BlockSpec((bn,), lambda i, j: (i,))",
            says="columns of the result come from `b`, and `j` counts blocks of columns",
        ),
        Mistake(
            "takes block `j` of both",
            old="pl.BlockSpec((bm,), lambda i, j: (i,))",
            new="pl.BlockSpec((bm,), lambda i, j: (j,))",
            says="rows of the result come from `a`, and `i` counts blocks of rows",
        ),
        Mistake(
            "adds instead of multiplying",
            old="[:, None] * b_ref",
            new="[:, None] + b_ref",
            says="an outer sum is not an outer product",
        ),
        Mistake(
            "multiplies element by element",
            old="a_ref[...][:, None] * b_ref[...][None, :]",
            new="jnp.broadcast_to(a_ref[...] * b_ref[...], o_ref.shape)",
            says="within a block every row is the same; `a` needs an axis of its own",
        ),
        Mistake(
            "returns two block indices for a vector",
            old="pl.BlockSpec((bm,), lambda i, j: (i,))",
            new="pl.BlockSpec((bm,), lambda i, j: (i, 0))",
            says="one block index for each axis",
            stage="error",
        ),
        Mistake(
            "keeps all of `b` in one block",
            edits=(
                ("pl.BlockSpec((bn,), lambda i, j: (j,))", "pl.BlockSpec((N,), lambda i, j: (0,))"),
                (
                    "b_ref[...][None, :]",
                    "b_ref[pl.ds(pl.program_id(1) * 1024, 1024)][None, :]",
                ),
            ),
            says="give it blocks",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative(
            "reshapes instead of indexing with None",
            old="a_ref[...][:, None] * b_ref[...][None, :]",
            new="a_ref[...].reshape(-1, 1) * b_ref[...].reshape(1, -1)",
        ),
        Alternative(
            "broadcasts by hand, with specs from a loop, under jit",
            code="""
def across(vector, axis, shape):
    return jax.lax.broadcast_in_dim(vector, shape, (axis,))


@jax.jit
def outer_product(a, b):
    shape = len(a), len(b)

    def kernel(a_ref, b_ref, o_ref):
        o_ref[...] = across(a_ref[...], 0, o_ref.shape) * across(b_ref[...], 1, o_ref.shape)

    return pl.pallas_call(
        kernel,
        grid=(shape[0] // 1024, shape[1] // 1024),
        in_specs=[pl.BlockSpec((1024,), lambda *at, n=n: at[n]) for n in (0, 1)],
        out_specs=pl.BlockSpec((1024, 1024), lambda *at: at),
        out_shape=jax.ShapeDtypeStruct(shape, jnp.float32),
        interpret=INTERPRET,
    )(a, b)
""",
        ),
        Alternative(
            "lets j run outside i",
            code="""
def outer_product(a, b):
    return pl.pallas_call(
        lambda a_ref, b_ref, o_ref: outer_product_kernel(a_ref, b_ref, o_ref),
        grid=(b.shape[0] // 1024, a.shape[0] // 1024),
        in_specs=[
            pl.BlockSpec((1024,), lambda j, i: (i,)),
            pl.BlockSpec((1024,), lambda j, i: (j,)),
        ],
        out_specs=pl.BlockSpec((1024, 1024), lambda j, i: (i, j)),
        out_shape=jax.ShapeDtypeStruct((a.shape[0], b.shape[0]), a.dtype),
        interpret=INTERPRET,
    )(a, b)
""",
        ),
        Alternative(
            "stacks the vectors as a column and a row",
            edits=(
                ("a_ref[...][:, None] * b_ref[...][None, :]", "a_ref[...] * b_ref[...]"),
                (
                    "pl.BlockSpec((bm,), lambda i, j: (i,))",
                    "pl.BlockSpec((bm, 1), lambda i, j: (i, 0))",
                ),
                (
                    "pl.BlockSpec((bn,), lambda i, j: (j,))",
                    "pl.BlockSpec((1, bn), lambda i, j: (0, j))",
                ),
                (")(a, b)", ")(a.reshape(M, 1), b[None])"),
            ),
        ),
    ],
    audit=audit,
)
