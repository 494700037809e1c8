"""Rung 7: a grouped matmul for groups of whole tiles."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## grouped_matmul_aligned: routing by the index map
#
# Rows of `lhs` are tokens, sorted by expert; `rhs[e]` are the weights of expert `e`. Each row is
# multiplied by its own expert's weights. (The spec multiplies all rows by all of them, `E` times the
# work.)
#
# Here every group is a multiple of `bm` = 64, or empty. So **each tile of rows belongs to one expert**,
# visit `i` is to tile `i`, and of the list you need only `group_ids`:
#
# ```text
# group_sizes = [64, 0, 128, 192]
#
# tile, visit   0   1   2   3   4   5
# group_ids     0   2   2   3   3   3      nobody fetches rhs[1]
# ```
#
# What `perm` was for a matrix in the first puzzle, `group_ids` is for a tile. The kernel is
# `tiled_matmul`'s, with a Ref in front that it ignores: **the body does not change**.
#
# Write the grid, with k as its last axis, and the specs. The sizes add up to `M`.

# %%
def grouped_matmul_aligned_spec(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E K N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    ends = jnp.cumsum(group_sizes)
    expert = jnp.sum(jnp.arange(len(lhs))[:, None] >= ends, axis=1)  # of each row
    own = expert == jnp.arange(len(rhs))[:, None]  # (E, M)
    each = jnp.einsum("mk,ekn->emn", lhs, rhs)
    return jnp.sum(jnp.where(own[:, :, None], each, 0.0), axis=0)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (spoils tiled_matmul)
def grouped_matmul_aligned_kernel(group_ids_ref, lhs_ref, rhs_ref, o_ref, acc_ref):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]


# %%
def grouped_matmul_aligned(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E K N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    (M, K), (_, _, N) = lhs.shape, rhs.shape
    bm, bk, bn = 64, 128, 256  # all group sizes are multiples of bm
    if K % bk or N % bn:
        whole = -(-K // bk) * bk, -(-N // bn) * bn
        raise ValueError(f"blocks of {bk, bn} do not divide K, N = {K, N}: pad to {whole}, with zeros")
    group_ids, _, _ = find("tile_metadata").solution(group_sizes, M, bm)
    return pl.pallas_call(
        grouped_matmul_aligned_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            ### BEGIN SOLUTION
            grid=(M // bm, N // bn, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k, group_ids: (i, k)),
                pl.BlockSpec((None, bk, bn), lambda i, j, k, group_ids: (group_ids[i], k, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k, group_ids: (i, j)),
            ### END SOLUTION
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        interpret=INTERPRET,
    )(group_ids, lhs, rhs)


# %% tags=["author"]
import numpy as np

from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng


def make_inputs(key, K, N, tiles=(), E=0):
    """Groups of so many tiles of 64 rows; or E groups, of which every thirtieth has one."""
    r, tiles = rng(key), tiles or [int(e % 30 == 7) for e in range(E)]
    sizes = [64 * n for n in tiles]
    return (
        array(r.normal(size=(sum(sizes), K)), jnp.float32),
        array(r.normal(size=(len(sizes), K, N)), jnp.float32),
        array(sizes, jnp.int32),
    )


def scale(M=12_288, K=8192, N=512, E=160):
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (E, K, N)))
    r = np.random.default_rng(0)
    tiles = r.multinomial(M // 64, r.dirichlet(np.full(E, 0.3)))
    return lhs, rhs, array(64 * tiles, jnp.int32)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(tiles=(1, 0, 2, 3), K=256, N=768)
    tiles = ((0, 1, 0, 0, 2, 0, 1, 1), (5, 0, 3))[r.integers(2)]
    return dict(tiles=tiles, K=128, N=int(r.choice([256, 768])))


def par(launch: Launch) -> str:
    return f"dots in {int(launch.busy.sum()):,} of {launch.steps:,} steps"


_GRID = "grid=(M // bm, N // bn, K // bk)"
_LHS = "pl.BlockSpec((bm, bk), lambda i, j, k, group_ids: (i, k))"
_RHS = "pl.BlockSpec((None, bk, bn), lambda i, j, k, group_ids: (group_ids[i], k, j))"
_OUT = "pl.BlockSpec((bm, bn), lambda i, j, k, group_ids: (i, j))"
_IDS = 'group_ids, _, _ = find("tile_metadata").solution(group_sizes, M, bm)'

PUZZLE = Puzzle(
    spec=grouped_matmul_aligned_spec,
    solution=grouped_matmul_aligned,
    inputs=make_inputs,
    cases=[dict(tiles=(1, 0, 2, 3), K=256, N=768), dict(E=144, K=128, N=256)],
    hints=[
        "Write tiled_matmul's call first. Only one of its three operands has an axis that tiled_matmul's had not.",
        "`None` squeezes the expert axis out of a block. The index map gets i, j, k and then the Ref with the group "
        "of each tile.",
        "lhs and the output are tiled as in tiled_matmul, with one more parameter in their maps. The map "
        "of rhs returns three indices: the group of tile i, then k and j.",
    ],
    explain="""A grouped matmul of whole tiles is a matmul whose index map looks up which weights to fetch. In
    the reference the kernel's body does not change, and the grid has no axis of experts. Weights that no token
    needs are never fetched.""",
    mistakes=[
        Mistake(
            "takes the tile's number for its expert's",
            old=_RHS,
            new=_RHS.replace("group_ids[i]", "i"),
            says="tile i belongs to expert group_ids[i]",
        ),
        Mistake(
            "gives every expert the same number of tiles",
            old=_RHS,
            new=_RHS.replace("group_ids[i]", "i * len(rhs) // (M // bm)"),
            says="groups have sizes of their own; group_ids knows them",
        ),
        Mistake(
            "looks up the group of a block of columns",
            old=_RHS,
            new=_RHS.replace("group_ids[i]", "group_ids[j]"),
            says="it is the tile of rows, i, that belongs to a group",
        ),
        Mistake(
            "looks up the group of a step along K",
            old=_RHS,
            new=_RHS.replace("group_ids[i]", "group_ids[k]"),
            says="a sum over k must stay with one expert's weights",
        ),
        Mistake(
            "gives all tiles the weights of expert 0",
            old=_RHS,
            new=_RHS.replace("group_ids[i]", "0"),
            says="group_ids[i] is the expert of tile i",
        ),
        Mistake(
            "swaps the block indices of lhs",
            old=_LHS,
            new=_LHS.replace("(i, k)", "(k, i)"),
            says="lhs is M × K: the tile of rows, i, comes before k",
        ),
        Mistake(
            "swaps the block indices of the output",
            old=_OUT,
            new=_OUT.replace("(i, j)", "(j, i)"),
            says="the output is M × N: the tile of rows, i, comes before the columns, j",
        ),
        Mistake(
            "routes the output",
            old=_OUT,
            new=_OUT.replace("(i, j)", "(group_ids[i], j)"),
            says="the result of tile i lies at tile i; only the weights are looked up",
        ),
        Mistake(
            "routes the rows as well",
            old=_LHS,
            new=_LHS.replace("(i, k)", "(group_ids[i], k)"),
            says="tile i of lhs is tile i; only the weights are looked up",
        ),
        Mistake(
            "swaps the last two block indices of rhs",
            old=_RHS,
            new=_RHS.replace("k, j))", "j, k))"),
            says="an expert's weights are K × N: k comes before j",
        ),
        Mistake(
            "gives empty groups a tile",
            old=_IDS,
            new="group_ids = jnp.repeat(jnp.arange(len(rhs)), jnp.maximum(group_sizes // bm, 1), total_repeat_length=M // bm)",
            says="all tiles behind an empty group move on by one",
        ),
        Mistake(
            "cuts tiles of 128 rows",
            old="bm, bk, bn = 64, 128, 256",
            new="bm, bk, bn = 128, 128, 256",
            says="a tile with rows of two groups gets the weights of one",
        ),
        Mistake(
            "sums over k in the outermost axis",
            old=_GRID,
            new="grid=(K // bk, N // bn, M // bm)",
            says="the kernel sums over the last grid axis, and the index maps take it for k",
        ),
        Mistake(
            "gathers each tile's weights before the launch",
            edits=((_RHS, _RHS.replace("group_ids[i]", "i")), ("(group_ids, lhs, rhs)", "(group_ids, lhs, rhs[group_ids])")),
            says="`gather` works on the data outside the kernel",
            stage="pallas",
        ),
        Mistake(
            "leaves the Ref out of an index map that does not need it",
            old=_OUT,
            new=_OUT.replace("k, group_ids:", "k:"),
            says="takes 3 positional arguments but 4 were given",
            stage="error",
        ),
        Mistake(
            "keeps the expert axis in the blocks of rhs",
            old=_RHS,
            new=_RHS.replace("(None, bk", "(1, bk"),
            says="Value shape: (64, 64, 256)",
            stage="error",
        ),
        Mistake(
            "visits every expert for every tile",
            code="""
def grouped_matmul_aligned(lhs, rhs, group_sizes):
    (M, K), (E, _, N) = lhs.shape, rhs.shape
    bm, bk, bn = 64, 128, 256
    group_ids, _, _ = find("tile_metadata").solution(group_sizes, M, bm)

    def kernel(group_ids_ref, lhs_ref, rhs_ref, o_ref, acc_ref):
        i, e, k = (pl.program_id(axis) for axis in (0, 2, 3))

        @pl.when((e == 0) & (k == 0))
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        @pl.when(e == group_ids_ref[i])
        def _():
            acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

        o_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(M // bm, N // bn, E, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, e, k, _: (i, k)),
                pl.BlockSpec((None, bk, bn), lambda i, j, e, k, _: (e, k, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, e, k, _: (i, j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        interpret=INTERPRET,
    )(group_ids, lhs, rhs)
""",
            says="3,907,584 of 3,932,160 grid steps compute nothing",
            stage="work",
        ),
        Mistake(
            "takes all of K in one block",
            old="bm, bk, bn = 64, 128, 256",
            new="bm, bk, bn = 64, K, 256",
            says="of VMEM, where a kernel gets 16 MiB",
            stage="work",
        ),
        Mistake(
            "puts k in the middle of the grid",
            old="grid=(M // bm, N // bn, K // bk)",
            new="grid=(M // bm, K // bk, N // bn)",
            says="the kernel and the maps count k last: axis 2 of the grid has the blocks of K",
        ),
    ],
    alternatives=[
        Alternative(
            "walks down the rows for each block of columns",
            edits=(
                (_GRID, "grid=(N // bn, M // bm, K // bk)"),
                (_LHS, _LHS.replace("i, j, k,", "j, i, k,")),
                (_RHS, _RHS.replace("i, j, k,", "j, i, k,")),
                (_OUT, _OUT.replace("i, j, k,", "j, i, k,")),
            ),
        ),
        Alternative(
            "looks each tile's first row up in the offsets",
            old=_IDS,
            new='group_ids = jnp.searchsorted(jnp.cumsum(group_sizes), bm * jnp.arange(M // bm), side="right")',
        ),
        Alternative(
            "finds the tile in the metadata as well",
            edits=(
                (_IDS, 'group_ids, tile_ids, _ = find("tile_metadata").solution(group_sizes, M, bm)'),
                ("num_scalar_prefetch=1", "num_scalar_prefetch=2"),
                (_LHS, _LHS.replace("group_ids: (i,", "group_ids, tile_ids: (tile_ids[i],")),
                (_RHS, _RHS.replace("group_ids:", "group_ids, _:")),
                (_OUT, _OUT.replace("group_ids: (i,", "group_ids, tile_ids: (tile_ids[i],")),
                ("kernel(group_ids_ref, lhs_ref", "kernel(group_ids_ref, tile_ids_ref, lhs_ref"),
                ("(group_ids, lhs, rhs)", "(group_ids, tile_ids, lhs, rhs)"),
            ),
        ),
        Alternative("takes other blocks", old="bm, bk, bn = 64, 128, 256", new="bm, bk, bn = 32, 128, 128"),
        Alternative(
            "lets a pipeline inside each tile walk the blocks of its expert's weights",
            code="""
def grouped_matmul_aligned(lhs, rhs, group_sizes, bm=64, bk=128, bn=256):
    (M, K), (_, _, N) = lhs.shape, rhs.shape
    group_ids, _, _ = find("tile_metadata").solution(group_sizes, M, bm)

    def kernel(group_ids_ref, lhs_ref, rhs_ref, o_ref, acc_ref):
        def body(lhs_ref, rhs_ref, o_ref):
            k = pl.program_id(1)

            @pl.when(k == 0)
            def _():
                acc_ref[...] = jnp.zeros_like(acc_ref)

            acc_ref[...] += jnp.dot(
                lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32
            )

            @pl.when(k == K // bk - 1)
            def _():
                o_ref[...] = acc_ref[...]

        i = pl.program_id(0)
        pltpu.emit_pipeline(
            body,
            grid=(N // bn, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda j, k: (k, j)),
            ],
            out_specs=[pl.BlockSpec((bm, bn), lambda j, k: (i, j))],
        )(lhs_ref, rhs_ref.at[group_ids_ref[i]], o_ref)

    far = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(M // bm,),
            in_specs=[far, far],
            out_specs=far,
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        interpret=INTERPRET,
    )(group_ids, lhs, rhs)
""",
        ),
        Alternative(
            "copies the blocks of its expert's weights itself",
            code="""
def grouped_matmul_aligned(lhs, rhs, group_sizes, bm=64, bk=128, bn=256):
    (M, K), (_, _, N) = lhs.shape, rhs.shape
    group_ids, _, _ = find("tile_metadata").solution(group_sizes, M, bm)

    def kernel(group_ids_ref, lhs_ref, rhs_ref, o_ref, buf, acc_ref, sem):
        i, j, k = (pl.program_id(axis) for axis in range(3))
        expert = group_ids_ref[i]
        copy = pltpu.make_async_copy(
            rhs_ref.at[expert, pl.ds(k * bk, bk), pl.ds(j * bn, bn)], buf, sem
        )
        copy.start()

        @pl.when(k == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        copy.wait()
        acc_ref[...] += jnp.dot(lhs_ref[...], buf[...], preferred_element_type=jnp.float32)

        @pl.when(k == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(M // bm, N // bn, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k, ids: (i, k)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k, ids: (i, j)),
            scratch_shapes=[
                pltpu.VMEM((bk, bn), rhs.dtype),
                pltpu.VMEM((bm, bn), jnp.float32),
                pltpu.SemaphoreType.DMA(()),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        interpret=INTERPRET,
    )(group_ids, lhs, rhs)
""",
        ),
    ],
    scale=scale,
    par=par,
    fresh=fresh,
)
