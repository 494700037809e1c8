"""Puzzle 5: operands of another rank than the grid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## outer_product: each operand uses the program ids that it needs
#
# Every index map receives **all** program ids, and returns as many block indices as **its own
# array** has axes. Here, step `(i, j)` needs block `i` of `a` and block `j` of `b`.
#
# While `j` runs, `a`'s index stays the same. A block is fetched only if its index **differs from
# the previous step's**. So a grid of 3 × 2 fetches `a` three times and `b` six times. In blocks of
# 4 KiB, that is 36 KiB, not 48. `receipt(outer_product)` will list these reads.
#
# ![From step (0, 0) to (0, 1), a's block is reused and b's is fetched; at (1, 0) both are fetched.](diagrams/basics/outer_product.svg)
#
# Write the two input BlockSpecs and the kernel. `v[:, None]` turns a vector into a column, `v[None,
# :]` into a row.


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
from puzzles import Launch, Puzzle, array, rng


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
        "`pl.BlockSpec((bm,), lambda i, j: (...,))`: two arguments, for the grid; one index, "
        "for the vector. In the kernel, `[:, None]` makes a column.",
        "The first map ignores j, the second ignores i. The kernel stores a column times a row.",
    ],
    explain="""An index map selects the program ids that matter to its array. Each id that it
    ignores means reuse: a's block is fetched once for each i, and stays in VMEM while j runs.""",
    audit=audit,
)
