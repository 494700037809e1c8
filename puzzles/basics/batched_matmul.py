"""Rung 13: a batch axis, squeezed away by None."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## batched_matmul: None in a block shape
#
# Here are `B` pairs of matrices, each small enough for VMEM: step b multiplies pair b.
#
# But the arrays have three axes, and a product takes two. Where a block shape says `None`, the block
# takes **one** index of that axis, and the axis is **squeezed**: it is not there in the Ref.
#
# ```text
# block shape         the Ref has the shape
# (1, M, K)           (1, M, K)
# (None, M, K)        (M, K)
# ```
#
# The index map still returns three indices, the first being the batch element itself.
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
def batched_matmul(
    lhs: Float[Array, "B M K"], rhs: Float[Array, "B K N"]
) -> Float[Array, "B M N"]:
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
# `jax.vmap` does this for you. It prepends a grid axis, and a squeezed dimension to every block of
# what it maps over. That is the way for large matrices, too, which need i, j and k. Here is the
# receipt of the reference `tiled_matmul` under `vmap`: b comes first, then its three axes.
#
# The (8, 128) rule looks at the last two axes of the *array*, where a squeezed one counts as 1. So
# squeeze axes in front, as here, and the rule does not notice.

# %% active="ipynb"
# receipt(
#     jax.vmap(find("tiled_matmul").solution),
#     jax.ShapeDtypeStruct((3, 128, 384), jnp.float32),
#     jax.ShapeDtypeStruct((3, 384, 512), jnp.float32),
# )

# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle, array, rng
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
    B, M, K, N = [(4, 64, 640, 512), (5, 64, 128, 1024), (8, 64, 256, 512), (9, 128, 128, 512)][r.integers(4)]
    return dict(B=B, M=M, K=K, N=N)


_LHS = "pl.BlockSpec((None, M, K), lambda b: (b, 0, 0))"
_RHS = "pl.BlockSpec((None, K, N), lambda b: (b, 0, 0))"
_OUT = "pl.BlockSpec((None, M, N), lambda b: (b, 0, 0))"


def _map(spec, indices):
    """The edit that gives a spec's map other indices."""
    return (spec, spec.replace("(b, 0, 0)", indices))


def _shape(spec, old, new):
    """The edit that changes a spec's block shape."""
    return (spec, spec.replace(old, new))


PUZZLE = Puzzle(
    spec=batched_matmul_spec,
    solution=batched_matmul,
    inputs=make_inputs,
    cases=[dict(B=3, M=128, K=384, N=256), dict(B=2, M=192, K=256, N=512)],
    fresh=fresh,
    scale=scale,
    par=lambda launch: f"{launch.hbm_bytes_read / 2**20:.0f} MiB read in {counted(launch.steps, 'step')}",
    hints=[
        "How many steps are there, if each multiplies one pair? And which pair does step b take?",
        "`None` in a block shape takes one index of that axis and removes it from the Ref. The index "
        "map gets b alone, and returns three block indices.",
        "The grid is `(B,)`. Every block shape is `None` and then a whole matrix, and every index map "
        "returns b first and then `0, 0`.",
    ],
    explain="""None makes the block one element thick along the batch and squeezes that axis away, so
    the kernel's matrices are two-dimensional. vmap builds exactly this launch of one without a
    grid.""",
    mistakes=[
        Mistake(
            "uses the first right-hand side for the whole batch",
            edits=(_map(_RHS, "(0, 0, 0)"),),
            says="`rhs`'s index map ignores b",
        ),
        Mistake(
            "uses the first left-hand side for the whole batch",
            edits=(_map(_LHS, "(0, 0, 0)"),),
            says="`lhs`'s index map ignores b",
        ),
        Mistake(
            "uses the first batch element of both sides",
            edits=(_map(_LHS, "(0, 0, 0)"), _map(_RHS, "(0, 0, 0)")),
            says="both inputs' index maps ignore b, so every batch element gets the product of the "
            "first",
        ),
        Mistake(
            "keeps the batch axis in the blocks",
            edits=tuple(_shape(spec, "None", "1") for spec in (_LHS, _RHS, _OUT)),
            says="`None` removes it",
            stage="error",
        ),
        Mistake(
            "keeps the batch axis in the right-hand side alone",
            edits=(_shape(_RHS, "None", "1"),),
            says="The blocks still have their leading axis",
            stage="error",
        ),
        Mistake(
            "keeps the batch axis in the output alone",
            edits=(_shape(_OUT, "None", "1"),),
            says="`None` in its block shape removes it",
            stage="error",
        ),
        Mistake(
            "returns two indices, since the Ref has two axes",
            edits=tuple(_map(spec, "(b, 0)") for spec in (_LHS, _RHS, _OUT)),
            says="one block index for each axis of the array",
            stage="error",
        ),
        Mistake(
            "leaves the squeezed axis out of the block shapes",
            edits=tuple(_shape(spec, "None, ", "") for spec in (_LHS, _RHS, _OUT)),
            says="`None` for an axis taken one by one",
            stage="error",
        ),
        Mistake(
            "counts along the rows of the left-hand side",
            edits=(_map(_LHS, "(0, b, 0)"),),
            says="the first axis of `lhs` is the batch, so b is the first index",
        ),
        Mistake(
            "counts the batch along the rows",
            edits=tuple(_map(spec, "(0, b, 0)") for spec in (_LHS, _RHS, _OUT)),
            says="the first axis of each array is the batch, so b is the first index",
        ),
        Mistake(
            "writes every batch element to the first",
            edits=(_map(_OUT, "(0, 0, 0)"),),
            says="the output's index map ignores b, and the other elements are never written",
        ),
        Mistake(
            "leaves the batch out of the grid",
            old="grid=(B,)",
            new="grid=(1,)",
            says="only batch element 0 is ever computed",
        ),
        Mistake(
            "takes the whole batch of the left-hand side into the block",
            edits=(_shape(_LHS, "None", "B"),),
            says="The blocks still have their leading axis",
            stage="error",
        ),
        Mistake(
            "swaps M and K in a block shape",
            edits=(_shape(_LHS, "M, K", "K, M"),),
            says="The axes that are summed over must be equally long",
            stage="error",
        ),
    ],
    alternatives=[
        Alternative(
            "takes i, j and k behind the batch, as tiled_matmul does",
            code="""
from jax.experimental.pallas import tpu as pltpu


def batched_matmul_kernel(lhs_ref, rhs_ref, o_ref, acc_ref):
    k = pl.program_id(3)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...])

    @pl.when(k == pl.num_programs(3) - 1)
    def _():
        o_ref[...] = acc_ref[...]


def batched_matmul(lhs, rhs, bm=64, bk=128, bn=256):
    (B, M, K), (_, _, N) = lhs.shape, rhs.shape
    return pl.pallas_call(
        batched_matmul_kernel,
        grid=(B, M // bm, N // bn, K // bk),
        in_specs=[
            pl.BlockSpec((None, bm, bk), lambda b, i, j, k: (b, i, k)),
            pl.BlockSpec((None, bk, bn), lambda b, i, j, k: (b, k, j)),
        ],
        out_specs=pl.BlockSpec((None, bm, bn), lambda b, i, j, k: (b, i, j)),
        out_shape=jax.ShapeDtypeStruct((B, M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        interpret=INTERPRET,
    )(lhs, rhs)
""",
        ),
        Alternative(
            "cuts the rows and columns of each matrix, too",
            edits=(
                ("grid=(B,)", "grid=(B, M // 64, N // 256)"),
                (_LHS, "pl.BlockSpec((None, 64, K), lambda b, i, j: (b, i, 0))"),
                (_RHS, "pl.BlockSpec((None, K, 256), lambda b, i, j: (b, 0, j))"),
                (_OUT, "pl.BlockSpec((None, 64, 256), lambda b, i, j: (b, i, j))"),
            ),
        ),
        Alternative(
            "folds the batch into the rows",
            edits=(
                (_LHS, "pl.BlockSpec((M, K), lambda b: (b, 0))"),
                (_RHS, "pl.BlockSpec((K, N), lambda b: (b, 0))"),
                (_OUT, "pl.BlockSpec((M, N), lambda b: (b, 0))"),
                ("(B, M, N), jnp.float32", "(B * M, N), jnp.float32"),
                (")(lhs, rhs)", ")(lhs.reshape(B * M, K), rhs.reshape(B * K, N)).reshape(B, M, N)"),
            ),
        ),
        Alternative(
            "lets vmap do it",
            code="""
def batched_matmul(lhs, rhs):
    (_, M, _), (_, _, N) = lhs.shape, rhs.shape
    return jax.vmap(
        pl.pallas_call(
            batched_matmul_kernel,
            out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
            interpret=INTERPRET,
        )
    )(lhs, rhs)
""",
        ),
        Alternative(
            "maps tiled_matmul over the batch",
            code="""
def batched_matmul(lhs, rhs):
    from puzzles import find

    return jax.vmap(find("tiled_matmul").solution)(lhs, rhs)
""",
        ),
        Alternative(
            "squeezes by name",
            edits=tuple(_shape(spec, "None", "pl.Squeezed()") for spec in (_LHS, _RHS, _OUT)),
        ),
        Alternative(
            "keeps an axis of one and indexes it away in the kernel",
            edits=(
                ("        batched_matmul_kernel,\n", "        squeezed,\n"),
                *(_shape(spec, "None", "1") for spec in (_LHS, _RHS, _OUT)),
            ),
            code="""
def squeezed(lhs_ref, rhs_ref, o_ref):
    batched_matmul_kernel(lhs_ref.at[0], rhs_ref.at[0], o_ref.at[0])
""",
        ),
        Alternative(
            "lets a pipeline inside each element of the batch walk the blocks",
            code="""
from jax.experimental.pallas import tpu as pltpu


def batched_matmul(lhs, rhs, bm=64, bk=128, bn=256):
    (B, M, K), (_, _, N) = lhs.shape, rhs.shape

    def kernel(lhs_ref, rhs_ref, o_ref, acc_ref):
        def body(lhs_ref, rhs_ref, o_ref):
            k = pl.program_id(2)

            @pl.when(k == 0)
            def _():
                acc_ref[...] = jnp.zeros_like(acc_ref)

            acc_ref[...] += jnp.dot(
                lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32
            )

            @pl.when(k == K // bk - 1)
            def _():
                o_ref[...] = acc_ref[...]

        b = pl.program_id(0)
        pltpu.emit_pipeline(
            body,
            grid=(M // bm, N // bn, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            ],
            out_specs=[pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))],
        )(lhs_ref.at[b], rhs_ref.at[b], o_ref.at[b])

    far = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        grid=(B,),
        in_specs=[far, far],
        out_specs=far,
        out_shape=jax.ShapeDtypeStruct((B, M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        interpret=INTERPRET,
    )(lhs, rhs)
""",
        ),
        Alternative(
            "copies the blocks of both batches itself",
            code="""
from jax.experimental.pallas import tpu as pltpu


def batched_matmul(a, b, bm=64, bk=128, bn=256):
    (B, M, K), N = a.shape, b.shape[2]

    def kernel(a_ref, b_ref, o_ref, a_buf, b_buf, acc_ref, sems):
        e, i, j = (pl.program_id(axis) for axis in range(3))
        acc_ref[...] = jnp.zeros_like(acc_ref)

        def add(k, _):
            rows, columns, depth = pl.ds(i * bm, bm), pl.ds(j * bn, bn), pl.ds(k * bk, bk)
            copies = [
                pltpu.make_async_copy(a_ref.at[e, rows, depth], a_buf, sems.at[0]),
                pltpu.make_async_copy(b_ref.at[e, depth, columns], b_buf, sems.at[1]),
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()
            acc_ref[...] += jnp.dot(a_buf[...], b_buf[...])
            return 0

        jax.lax.fori_loop(0, K // bk, add, 0)
        o_ref[...] = acc_ref[...]

    far = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        grid=(B, M // bm, N // bn),
        in_specs=[far, far],
        out_specs=pl.BlockSpec((None, bm, bn), lambda e, i, j: (e, i, j)),
        out_shape=jax.ShapeDtypeStruct((B, M, N), a.dtype),
        scratch_shapes=[
            pltpu.VMEM((bm, bk), a.dtype),
            pltpu.VMEM((bk, bn), b.dtype),
            pltpu.VMEM((bm, bn), jnp.float32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        interpret=INTERPRET,
    )(a, b)
""",
        ),
    ],
)
