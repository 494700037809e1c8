"""Rung 11: all of a matmul's call."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## launch_matmul: the whole call, for a transposed product
#
# Now the whole call is yours, for a product that comes up in every backward pass: `a.T @ b`. `a` is
# stored as `K` × `M`. Transposing it in HBM would cost a round trip of the whole matrix. We fetch
# its blocks as they lie, and the kernel contracts their *first* axis: `jax.lax.dot_general` is
# `dot` with the axes named.
#
# Two need a word:
#
# * `scratch_shapes=[pltpu.VMEM(shape, dtype)]`, one entry for each scratch Ref.
# * `compiler_params=pltpu.CompilerParams(dimension_semantics=(...))`, one word for each grid axis.
#   `"parallel"` promises that the axis may be cut up among cores or reordered. `"arbitrary"`
#   promises nothing, so the axis runs in order. Put parallel axes first: JAX's simulator of a TPU
#   insists on it.
#
# Which axes can go in any order?
#
# ![Three steps go down a column of blocks in both a and b, while the accumulator and one output block stay in VMEM.](diagrams/basics/launch_matmul.svg)

# %%
def launch_matmul_spec(a: Float[Array, "K M"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return jnp.dot(a.T, b)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (spoils tiled_matmul)
def launch_matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jax.lax.dot_general(
        a_ref[...],
        b_ref[...],
        dimension_numbers=(((0,), (0,)), ((), ())),  # contract axis 0 of both
        preferred_element_type=jnp.float32,
    )

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]


# %%
def launch_matmul(a: Float[Array, "K M"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    (K, M), (_, N) = a.shape, b.shape
    bm, bk, bn = 128, 256, 512
    return pl.pallas_call(
        launch_matmul_kernel,
        ### BEGIN SOLUTION
        grid=(M // bm, N // bn, K // bk),
        in_specs=[
            pl.BlockSpec((bk, bm), lambda i, j, k: (k, i)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        ### END SOLUTION
        interpret=INTERPRET,
    )(a, b)


# %% [markdown]
# Is the transpose free, then? Not quite: the blocks are turned on the chip. That costs no traffic,
# but it may cost time.
#
# And why promise anything? Some TPU chips (v4 and v5p) have two cores that can share the parallel
# axes of one kernel. Promise too much, and two cores add into different accumulators; promise
# nothing, and one idles.

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.basics._audits import counted, product_by_dots


def make_inputs(key, K, M, N):
    r = rng(key)
    return (
        array(r.normal(size=(K, M)), jnp.float32),
        array(r.normal(size=(K, N)), jnp.float32),
    )


def scale(K=16384, M=8192, N=4096):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((K, M), (K, N)))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(K=1024, M=384, N=1024)
    K, M, N = [(256, 128, 1536), (768, 128, 512), (1280, 384, 512), (256, 640, 1024)][r.integers(4)]
    return dict(K=K, M=M, N=N)


def audit(launch: Launch, *, args) -> None:
    (K, M), N = args[0].shape, args[1].shape[1]
    product_by_dots(launch, M, K, N)
    semantics = launch.dimension_semantics
    assert semantics is not None, (
        "the launch promises nothing about its axes: pass "
        "compiler_params=pltpu.CompilerParams(dimension_semantics=...)"
    )
    words = tuple(str(s).split(".")[-1].lower() for s in semantics)
    assert words == ("parallel", "parallel", "arbitrary"), (
        f"dimension_semantics is {words}: the output blocks, axes 0 and 1, do not depend on each "
        "other and can be shared out among cores; the steps along k have to stay in order"
    )


_A = "pl.BlockSpec((bk, bm), lambda i, j, k: (k, i))"
_SEMANTICS = '("parallel", "parallel", "arbitrary")'

PUZZLE = Puzzle(
    spec=launch_matmul_spec,
    solution=launch_matmul,
    inputs=make_inputs,
    cases=[dict(K=1024, M=384, N=1024), dict(K=768, M=256, N=512)],
    fresh=fresh,
    scale=scale,
    par=lambda launch: f"{launch.hbm_bytes_read / 2**30:.1f} GiB read in {counted(launch.steps, 'step')}",
    hints=[
        "Begin with the output: step (i, j, k) works on block (i, j). Which block of `a`, stored as "
        "K × M, does it need?",
        "Seven keywords: grid, in_specs, out_specs, out_shape, scratch_shapes, compiler_params, and "
        "the given interpret. The kernel reads k from grid axis 2.",
        "`a`'s block has bk rows and bm columns and its map returns k first. The scratch is an "
        "f32 VMEM buffer of the output block's shape. Two axes are parallel, one is arbitrary.",
    ],
    explain="""Storing `a` transposed changes its BlockSpec and the axis that the kernel contracts,
    nothing else. Output blocks are independent, so i and j are parallel; k carries the accumulator
    from step to step, so it stays in order.""",
    mistakes=[
        Mistake(
            "fetches the blocks of `a` as if it were not transposed",
            old=_A,
            new="pl.BlockSpec((bk, bm), lambda i, j, k: (i, k))",
            says="`a` is stored as K × M, so its map returns k first",
        ),
        Mistake(
            "names the arguments of `a`'s index map in another order than the grid",
            old=_A,
            new="pl.BlockSpec((bk, bm), lambda k, i, j: (k, i))",
            says="an index map gets the program ids in the grid's order, here i, j, k, whatever you "
            "call them",
        ),
        Mistake(
            "gives `a` blocks of the wrong shape",
            old=_A,
            new="pl.BlockSpec((bm, bk), lambda i, j, k: (k, i))",
            says="The axes that are summed over must be equally long",
            stage="error",
        ),
        Mistake(
            "puts k elsewhere than last in the grid",
            old="grid=(M // bm, N // bn, K // bk)",
            new="grid=(K // bk, M // bm, N // bn)",
            says="the kernel and the index maps read k from the last grid axis",
        ),
        Mistake(
            "walks k first",
            edits=(
                ("grid=(M // bm, N // bn, K // bk)", "grid=(K // bk, M // bm, N // bn)"),
                (_A, _A.replace("i, j, k:", "k, i, j:")),
                ("lambda i, j, k: (k, j)", "lambda k, i, j: (k, j)"),
                ("lambda i, j, k: (i, j)", "lambda k, i, j: (i, j)"),
                (_SEMANTICS, '("arbitrary", "parallel", "parallel")'),
            ),
            says="the kernel asks `pl.program_id(2)` for k, so k has to be the last axis of the grid, and "
            "of the semantics",
        ),
        Mistake(
            "counts columns of blocks first in the grid, and rows in the maps",
            old="grid=(M // bm, N // bn, K // bk)",
            new="grid=(N // bn, M // bm, K // bk)",
            says="the first program id runs over the first entry of the grid: with `i` for rows, that is "
            "M // bm",
        ),
        Mistake(
            "swaps the block indices of the output",
            old="pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))",
            new="pl.BlockSpec((bm, bn), lambda i, j, k: (j, i))",
            says="`i` counts blocks of rows of the result",
        ),
        Mistake(
            "stops one K block short",
            old="K // bk)",
            new="K // bk - 1)",
            says="the last K block is missing from every sum",
        ),
        Mistake(
            "reuses the first K block of `b`",
            old="lambda i, j, k: (k, j)",
            new="lambda i, j, k: (0, j)",
            says="`b`'s map ignores k",
        ),
        Mistake(
            "promises that k is parallel",
            old=_SEMANTICS,
            new='("parallel", "parallel", "parallel")',
            says="which differ along axis 2, marked 'parallel'",
            stage="memory",
        ),
        Mistake(
            "promises nothing",
            old="""        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
""",
            new="",
            says="promises nothing about its axes",
            stage="work",
        ),
        Mistake(
            "promises too little",
            old=_SEMANTICS,
            new='("arbitrary", "arbitrary", "arbitrary")',
            says="can be shared out among cores",
            stage="work",
        ),
        Mistake(
            "takes all of K in one block",
            old="bm, bk, bn = 128, 256, 512",
            new="bm, bk, bn = 128, K, 512",
            says="for blocks of (16384, 512): take smaller ones",
            stage="work",
        ),
        Mistake(
            "forgets the scratch",
            old="        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],\n",
            new="",
            says="A kernel receives one Ref",
            stage="error",
        ),
        Mistake(
            "cuts blocks of 64 columns",
            old="bm, bk, bn = 128, 256, 512",
            new="bm, bk, bn = 64, 256, 512",
            says="the last breaks that (64 is not)",
            stage="tpu",
        ),
    ],
    alternatives=[
        Alternative(
            "walks the output blocks column by column",
            edits=(
                ("grid=(M // bm, N // bn, K // bk)", "grid=(N // bn, M // bm, K // bk)"),
                (_A, "pl.BlockSpec((bk, bm), lambda j, i, k: (k, i))"),
                ("lambda i, j, k: (k, j)", "lambda j, i, k: (k, j)"),
                (
                    "pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))",
                    "pl.BlockSpec((bm, bn), lambda j, i, k: (i, j))",
                ),
            ),
        ),
        Alternative(
            "takes other blocks",
            old="bm, bk, bn = 128, 256, 512",
            new="bm, bk, bn = 128, 64, 256",
        ),
        Alternative(
            "hands over a GridSpec, enums and named index maps, under jit",
            code="""
@jax.jit
def launch_matmul(a, b):
    (K, M), (_, N) = a.shape, b.shape

    def rows(i, j, k):
        return k, i

    def columns(i, j, k):
        del i
        return [k, j]

    word = pltpu.GridDimensionSemantics
    call = pl.pallas_call(
        kernel=launch_matmul_kernel,
        out_shape=jax.ShapeDtypeStruct(shape=(M, N), dtype=a.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(pl.cdiv(M, 128), pl.cdiv(N, 256), pl.cdiv(K, 128)),
            in_specs=(pl.BlockSpec((128, 128), rows), pl.BlockSpec((128, 256), columns)),
            out_specs=pl.BlockSpec(index_map=lambda i, j, k: (i, j), block_shape=(128, 256)),
            scratch_shapes=(pltpu.VMEM((128, 256), "float32"),),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=[word.PARALLEL, word.PARALLEL, word.ARBITRARY]
        ),
        interpret=INTERPRET,
    )
    return call(a, b)
""",
        ),
        Alternative(
            "takes all of the output's columns in one block",
            edits=(
                ("bm, bk, bn = 128, 256, 512", "bm, bk, bn = 128, 128, N"),
                ("grid=(M // bm, N // bn, K // bk)", "grid=(M // bm, 1, K // bk)"),
            ),
        ),
    ],
    audit=audit,
)
