"""Puzzle 13: a batch axis, squeezed away by None."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## batched_matmul: None in a block shape
#
# Here are `B` pairs of matrices, each small enough for VMEM. Step `b` multiplies pair `b`.
#
# But the arrays have three axes, and the kernel multiplies Refs with two. `None` in a block
# shape takes **one** index of its axis, and **squeezes** it: the Ref does not have this axis.
#
# ```text
# block shape         the Ref has the shape
# (1, M, K)           (1, M, K)
# (None, M, K)        (M, K)
# ```
#
# The index map still returns three indices: the first counts batch elements.
#
# ![At step b, each operand's block is the whole matrix b of its array.](diagrams/basics/batched_matmul.svg)
#
# Write the grid and the specs.


# %%
def batched_matmul_spec(
    lhs: Float[Array, "B M K"], rhs: Float[Array, "B K N"]
) -> Float[Array, "B M N"]:
    return jnp.einsum("bmk,bkn->bmn", lhs, rhs)


# %%
def batched_matmul_kernel(lhs_ref, rhs_ref, o_ref):
    o_ref[...] = jnp.dot(lhs_ref[...], rhs_ref[...])


# %%
def batched_matmul(lhs: Float[Array, "B M K"], rhs: Float[Array, "B K N"]) -> Float[Array, "B M N"]:
    (B, M, K), (_, _, N) = lhs.shape, rhs.shape
    return pl.pallas_call(
        batched_matmul_kernel,
        ### BEGIN SOLUTION
        grid=(B,),
        in_specs=[
            pl.BlockSpec((None, M, K), lambda b: (b, 0, 0)),
            pl.BlockSpec((None, K, N), lambda b: (b, 0, 0)),
        ],
        out_specs=pl.BlockSpec((None, M, N), lambda b: (b, 0, 0)),
        ### END SOLUTION
        out_shape=jax.ShapeDtypeStruct((B, M, N), jnp.float32),
        interpret=INTERPRET,
    )(lhs, rhs)


# %% [markdown]
# `jax.vmap` does this for you. It puts a new axis first in the grid, and squeezes the mapped axis in
# the blocks of each operand. It also works for large matrices, which need i, j and k. Here is
# the receipt of the reference `tiled_matmul` under `vmap`: the batch axis comes first, then the
# matmul's own three.
#
# The (8, 128) rule is about the last two axes of the *array*. A squeezed axis has block length 1,
# which breaks the rule if the array is longer there. So squeeze leading axes, as here.

# %% active="ipynb"
# receipt(
#     jax.vmap(find("tiled_matmul").solution),
#     jax.ShapeDtypeStruct((3, 128, 384), jnp.float32),
#     jax.ShapeDtypeStruct((3, 384, 512), jnp.float32),
# )

# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, B, M, K, N):
    r = rng(key)
    return (
        array(r.normal(size=(B, M, K)), jnp.float32),
        array(r.normal(size=(B, K, N)), jnp.float32),
    )


def scale(B=96, M=64, K=1024, N=512):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((B, M, K), (B, K, N)))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(B=3, M=128, K=384, N=256)
    B, M, K, N = [(4, 64, 640, 512), (5, 64, 128, 1024), (8, 64, 256, 512), (9, 128, 128, 512)][
        r.integers(4)
    ]
    return dict(B=B, M=M, K=K, N=N)


PUZZLE = Puzzle(
    spec=batched_matmul_spec,
    solution=batched_matmul,
    inputs=make_inputs,
    cases=[dict(B=3, M=128, K=384, N=256), dict(B=2, M=192, K=256, N=512)],
    fresh=fresh,
    scale=scale,
    par=lambda launch: (
        f"{launch.hbm_bytes_read / 2**20:.0f} MiB read in {counted(launch.all_steps, 'step')}"
    ),
    hints=[
        "How many steps are there, if each multiplies one pair? And which pair does step b take?",
        "`None` in a block shape takes one index of that axis and removes it from the Ref. The "
        "index map gets b alone, and returns three block indices.",
        "The grid is `(B,)`. Every block shape is `None` and then a whole matrix, and every "
        "index map returns b first and then `0, 0`.",
    ],
    explain="""None makes the block one element thick along the batch and squeezes that axis away, so
    the kernel's matrices are two-dimensional. `jax.vmap` makes the same launch of a
    matmul without a grid.""",
)
