"""Rung 13: a batch axis, squeezed away by None."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## batched_matmul: None in a block shape
#
# Where a block shape says `None`, the block takes **one** index of that axis, and the axis is
# **squeezed**: it is not there in the Ref. If whole matrices fit into VMEM, one axis is enough:
#
# ```python
# grid=(B,),                                           # step b:
# pl.BlockSpec((None, M, K), lambda b: (b, 0, 0)),     # lhs_ref is lhs[b], of shape (M, K)
# ```
#
# The index map still returns three indices, the first being the batch element itself.
#
# ![The last steps of batch element 0 are followed by the first step of batch element 1, in the second matrix of each operand.](diagrams/basics/batched_matmul.svg)
#
# Large matrices need i, j and k, too. The kernel is `tiled_matmul`'s with k on grid axis 3. Write the
# grid and the specs, the batch first.

# %%
def batched_matmul_spec(
    lhs: Float[Array, "B M K"], rhs: Float[Array, "B K N"]
) -> Float[Array, "B M N"]:
    return jnp.einsum("bmk,bkn->bmn", lhs, rhs)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (spoils tiled_matmul)
def batched_matmul_kernel(lhs_ref, rhs_ref, o_ref, acc_ref):
    k = pl.program_id(3)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...])

    @pl.when(k == pl.num_programs(3) - 1)
    def _():
        o_ref[...] = acc_ref[...]


# %%
def batched_matmul(
    lhs: Float[Array, "B M K"], rhs: Float[Array, "B K N"]
) -> Float[Array, "B M N"]:
    (B, M, K), (_, _, N) = lhs.shape, rhs.shape
    bm, bk, bn = 64, 128, 256
    return pl.pallas_call(
        batched_matmul_kernel,
        ### BEGIN SOLUTION
        grid=(B, M // bm, N // bn, K // bk),
        in_specs=[
            pl.BlockSpec((None, bm, bk), lambda b, i, j, k: (b, i, k)),
            pl.BlockSpec((None, bk, bn), lambda b, i, j, k: (b, k, j)),
        ],
        out_specs=pl.BlockSpec((None, bm, bn), lambda b, i, j, k: (b, i, j)),
        ### END SOLUTION
        out_shape=jax.ShapeDtypeStruct((B, M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        interpret=INTERPRET,
    )(lhs, rhs)


# %% [markdown]
# `jax.vmap` does this for you. It prepends a grid axis, and a squeezed dimension to every block of
# what it maps over. Here is the receipt of the reference `tiled_matmul` under `vmap`: the same grid
# and the same bytes as the reference here. `receipt(batched_matmul)` shows yours.
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
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.basics._audits import product_by_dots


def make_inputs(key, B, M, K, N):
    r = rng(key)
    return (
        array(r.normal(size=(B, M, K)), jnp.float32),
        array(r.normal(size=(B, K, N)), jnp.float32),
    )


def scale(B=64, M=256, K=16384, N=512):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((B, M, K), (B, K, N)))


def fresh(r):
    B, M, K, N = [(4, 64, 640, 512), (5, 64, 128, 1024), (8, 64, 256, 512), (9, 128, 128, 512)][r.integers(4)]
    return dict(B=B, M=M, K=K, N=N)


def audit(launch: Launch, *, args) -> None:
    (B, M, K), N = args[0].shape, args[1].shape[2]
    product_by_dots(launch, M, K, N, B)


_GRID = "grid=(B, M // bm, N // bn, K // bk)"
_LHS = "pl.BlockSpec((None, bm, bk), lambda b, i, j, k: (b, i, k))"
_RHS = "pl.BlockSpec((None, bk, bn), lambda b, i, j, k: (b, k, j))"
_OUT = "pl.BlockSpec((None, bm, bn), lambda b, i, j, k: (b, i, j))"

PUZZLE = Puzzle(
    spec=batched_matmul_spec,
    solution=batched_matmul,
    inputs=make_inputs,
    cases=[dict(B=3, M=128, K=384, N=512), dict(B=2, M=192, K=256, N=512)],
    fresh=fresh,
    scale=scale,
    par=lambda launch: f"{launch.hbm_bytes_read / 2**30:.1f} GiB read in {launch.steps:,} steps",
    hints=[
        "Write tiled_matmul's specs first. Then let every one of them know which batch element it is in.",
        "`None` in a block shape takes one index of that axis and removes it from the Ref. Index maps "
        "get four program ids now, and return three block indices.",
        "The grid begins with B. Every block shape begins with None, every index map takes b first "
        "and returns it first.",
    ],
    explain="""None makes the block one element thick along the batch and squeezes that axis away, so
    the kernel's matrices stay two-dimensional. vmap builds exactly the reference's launch.""",
    mistakes=[
        Mistake(
            "uses the first right-hand side for the whole batch",
            old="lambda b, i, j, k: (b, k, j)",
            new="lambda b, i, j, k: (0, k, j)",
            says="`rhs`'s index map ignores b",
        ),
        Mistake(
            "uses the first left-hand side for the whole batch",
            old="lambda b, i, j, k: (b, i, k)",
            new="lambda b, i, j, k: (0, i, k)",
            says="`lhs`'s index map ignores b",
        ),
        Mistake(
            "uses the first batch element of both sides",
            edits=(
                ("lambda b, i, j, k: (b, i, k)", "lambda b, i, j, k: (0, i, k)"),
                ("lambda b, i, j, k: (b, k, j)", "lambda b, i, j, k: (0, k, j)"),
            ),
            says="both inputs' index maps ignore b, so every batch element gets the product of the "
            "first",
        ),
        Mistake(
            "keeps the batch axis in the blocks",
            edits=(
                (_LHS, _LHS.replace("None", "1")),
                (_RHS, _RHS.replace("None", "1")),
                (_OUT, _OUT.replace("None", "1")),
            ),
            says="`None` removes it",
            stage="error",
        ),
        Mistake(
            "swaps k and j for the right-hand side",
            old="(b, k, j)",
            new="(b, j, k)",
            says="`rhs` is B × K × N, so its map returns b, k, j",
        ),
        Mistake(
            "swaps the block indices of the output",
            old="lambda b, i, j, k: (b, i, j)",
            new="lambda b, i, j, k: (b, j, i)",
            says="the output is B × M × N, and `i` counts blocks of rows: return b, i, j",
        ),
        Mistake(
            "writes every batch element to the first",
            old="lambda b, i, j, k: (b, i, j)",
            new="lambda b, i, j, k: (0, i, j)",
            says="the output's index map ignores b, and the other elements are never written",
        ),
        Mistake(
            "leaves the batch out of the grid",
            edits=((_GRID, "grid=(1, M // bm, N // bn, K // bk)"),),
            says="only batch element 0 is ever computed",
        ),
        Mistake(
            "counts M and N the wrong way round in the grid",
            edits=((_GRID, "grid=(B, N // bn, M // bm, K // bk)"),),
            says="axis 1 of the grid is i, which counts blocks of rows",
        ),
        Mistake(
            "takes all of K in one block",
            old="bm, bk, bn = 64, 128, 256",
            new="bm, bk, bn = 64, K, 256",
            says="16384, 256): take smaller ones",
            stage="work",
        ),
        Mistake(
            "cuts blocks of 64 columns",
            old="bm, bk, bn = 64, 128, 256",
            new="bm, bk, bn = 64, 64, 256",
            says="the last breaks that (64 is not)",
            stage="tpu",
        ),
    ],
    alternatives=[
        Alternative(
            "runs through the batch inside i",
            edits=(
                (_GRID, "grid=(M // bm, B, N // bn, K // bk)"),
                (_LHS, _LHS.replace("b, i, j, k:", "i, b, j, k:")),
                (_RHS, _RHS.replace("b, i, j, k:", "i, b, j, k:")),
                (_OUT, _OUT.replace("b, i, j, k:", "i, b, j, k:")),
            ),
        ),
        Alternative(
            "folds the batch into the rows",
            edits=(
                (_LHS, "pl.BlockSpec((bm, bk), lambda b, i, j, k: (b * (M // bm) + i, k))"),
                (_RHS, "pl.BlockSpec((bk, bn), lambda b, i, j, k: (b * (K // bk) + k, j))"),
                (")(lhs, rhs)", ")(lhs.reshape(B * M, K), rhs.reshape(B * K, N))"),
            ),
        ),
        Alternative(
            "lets vmap do it",
            code="""
def batched_matmul(lhs, rhs):
    from puzzles import find

    return jax.vmap(find("tiled_matmul").solution)(lhs, rhs)
""",
        ),
        Alternative(
            "takes other blocks",
            old="bm, bk, bn = 64, 128, 256",
            new="bm, bk, bn = 32, 128, 128",
        ),
        Alternative(
            "keeps an axis of one and indexes it away in the kernel",
            edits=(
                ("        batched_matmul_kernel,\n", "        squeezed,\n"),
                (_LHS, _LHS.replace("None", "1")),
                (_RHS, _RHS.replace("None", "1")),
                (_OUT, _OUT.replace("None", "1")),
            ),
            code="""
def squeezed(lhs_ref, rhs_ref, o_ref, acc_ref):
    batched_matmul_kernel(lhs_ref.at[0], rhs_ref.at[0], o_ref.at[0], acc_ref)
""",
        ),
        Alternative(
            "lets a pipeline inside each element of the batch walk the blocks",
            code="""
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
    audit=audit,
)
