"""Puzzle 1: an index map that reads data."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## permuted_matmul: index maps that read data
#
# Multiply each of `E` matrices by one of `E` weights: `lhs[e]` by `rhs[perm[e]]`. But `perm` is an array, known only
# when the program runs:
#
# ```text
# perm = [2, 0, 1]
#
# steps of        fetch blocks of         and write blocks of
#  e = 0          lhs[0]   rhs[2]         o[0] = lhs[0] × rhs[2]
#  e = 1          lhs[1]   rhs[0]         o[1] = lhs[1] × rhs[0]
#  e = 2          lhs[2]   rhs[1]         o[2] = lhs[2] × rhs[1]
# ```
#
# The obvious way, `rhs[perm]`, first writes a permuted copy of all weights to HBM.
# Let an index map choose instead. It needs `perm` early: while one step computes, the pipeline
# already looks up the next step's blocks.
#
# That calls for **scalar prefetch**. Before the first step, small arrays of integers are copied to
# SMEM, the memory for scalars. The `grid_spec`, a `pltpu.PrefetchScalarGridSpec`, counts these
# arrays: **`num_scalar_prefetch`**, here 1. Then
#
# * the prefetched arrays are the **first arguments** of the call, and have no BlockSpec;
# * the kernel gets their Refs **first**, before those of the inputs;
# * every index map gets them **last**, after the program ids, even if it ignores them. It
#   reads one number at a time: `perm_ref[n]`.
#
# ![At each of three steps lhs and the output move on by one, while perm chooses the block of rhs.](diagrams/grouped_matmul/permuted_matmul.svg)
#
# The kernel below is `tiled_matmul`'s, with k on axis 3. It does not read `perm_ref`. Write the three BlockSpecs.


# %%
def permuted_matmul_spec(
    lhs: Float[Array, "E M K"], rhs: Float[Array, "E K N"], perm: Int[Array, " E"]
) -> Float[Array, "E M N"]:
    return jnp.einsum("emk,ekn->emn", lhs, rhs[perm])


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to tiled_matmul)
def permuted_matmul_kernel(perm_ref, lhs_ref, rhs_ref, o_ref, acc_ref):
    k = pl.program_id(3)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    @pl.when(k == pl.num_programs(3) - 1)
    def _():
        o_ref[...] = acc_ref[...]


# %%
def permuted_matmul(
    lhs: Float[Array, "E M K"], rhs: Float[Array, "E K N"], perm: Int[Array, " E"]
) -> Float[Array, "E M N"]:
    (E, M, K), (_, _, N) = lhs.shape, rhs.shape
    bm, bk, bn = 64, 128, 256
    if M % bm or K % bk or N % bn:
        whole = tuple(-(-n // b) * b for n, b in ((M, bm), (K, bk), (N, bn)))
        raise ValueError(
            f"blocks of {bm, bk, bn} do not divide M, K, N = {M, K, N}: pad to {whole}, with zeros"
        )
    return pl.pallas_call(
        permuted_matmul_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(E, M // bm, N // bn, K // bk),
            ### BEGIN SOLUTION
            in_specs=[
                pl.BlockSpec((None, bm, bk), lambda e, i, j, k, perm_ref: (e, i, k)),
                pl.BlockSpec((None, bk, bn), lambda e, i, j, k, perm_ref: (perm_ref[e], k, j)),
            ],
            out_specs=pl.BlockSpec((None, bm, bn), lambda e, i, j, k, perm_ref: (e, i, j)),
            ### END SOLUTION
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((E, M, N), jnp.float32),
        interpret=INTERPRET,
    )(perm, lhs, rhs)


# %% [markdown]
# Here is the example, in your launch. The 12 bytes of `perm` decide which blocks of `rhs` are fetched.

# %% active="ipynb"
# lhs, rhs = jnp.ones((3, 64, 128)), jnp.ones((3, 128, 256))
# show(permuted_matmul, lhs, rhs, jnp.array([2, 0, 1]))

# %% tags=["author"]
import math

import numpy as np

from puzzles import Launch, Puzzle, array, rng


def make_inputs(key, E, M, K, N):
    """`perm` is one cycle: no fixed point, and for E > 3 neither its own inverse nor
    its square's.
    """
    r = rng(key)
    cycle, perm = r.permutation(E), [0] * E
    for here, there in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        perm[here] = int(there)
    return (
        array(r.normal(size=(E, M, K)), jnp.float32),
        array(r.normal(size=(E, K, N)), jnp.float32),
        array(perm, jnp.int32),
    )


def scale(E=40, M=128, K=8192, N=1024):
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((E, M, K), (E, K, N)))
    return lhs, rhs, array(np.roll(np.arange(E), 1), jnp.int32)


def par(launch: Launch) -> str:
    rhs = launch.inputs[1]
    return f"each weight fetched {rhs.hbm_bytes / (4 * math.prod(rhs.shape)):.3g} times"


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(E=4, M=192, K=256, N=512)
    shapes = ((8, 128, 128, 768), (9, 64, 384, 256), (8, 320, 128, 512), (9, 192, 384, 256))
    return dict(zip("EMKN", shapes[r.integers(len(shapes))], strict=True))


PUZZLE = Puzzle(
    spec=permuted_matmul_spec,
    solution=permuted_matmul,
    inputs=make_inputs,
    cases=[dict(E=4, M=192, K=256, N=512), dict(E=144, M=64, K=128, N=256)],
    hints=[
        "First write the three specs as if there were no perm. Which of them then fetches the "
        "wrong matrix?",
        "With one array prefetched and four grid axes, each index map takes five parameters. "
        "The last is a Ref in SMEM: index it by a program id and you get a number.",
        "Every block shape begins with None. For lhs and the output, the map returns e first; "
        "for rhs, it first returns the number that the prefetched Ref holds at e.",
    ],
    explain="""The index map of rhs looks up which weight to fetch, so the pipeline fetches the
    right blocks, and no permuted copy is ever written. The kernel's body does not notice:
    routing happens in the index maps alone.""",
    scale=scale,
    par=par,
    fresh=fresh,
)
