"""Rung 8: both calls by yourself, and a third buffer."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## launch_pipeline: three buffers
#
# Two slots hide the time of copies as long as a step's copies take less time than a step. If they take longer,
# the kernel waits.
#
# A third slot helps: copies then start **two** steps ahead, and a late one has another step to
# arrive. `pl.BlockSpec(…, pipeline_mode=pl.Buffered(3))` asks for it, for one operand of
# `emit_pipeline`:
#
# ```text
#               while step k computes
# Buffered(2)   slot: [ k ] [ k+1 flies ]
# Buffered(3)   slot: [ k ] [ k+1 flies ] [ k+2 flies ]
# ```
#
# It costs one block of VMEM more. It moves no byte less.
#
# The kernel body is that of `pipelined_matmul`, with the accumulator as its first argument. Write the
# two calls around it: the pipeline's grid and specs, with three slots for `b`, and then what
# `pallas_call` needs. Blocks are (bm, bk) of `a` and (bk, bn) of `b`.

# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel's body (spoils pipelined_matmul)
def multiply_blocks(acc_ref, a_block, b_block, o_block):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(a_block[...], b_block[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_block[...] = acc_ref[...]


# %%
def launch_pipeline_spec(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return jnp.dot(a, b)


# %%
def launch_pipeline(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    (M, K), (_, N) = a.shape, b.shape
    bm, bk, bn = 64, 128, 256

    def kernel(a_ref, b_ref, o_ref, acc_ref):
        pltpu.emit_pipeline(
            functools.partial(multiply_blocks, acc_ref),
            ### BEGIN SOLUTION
            grid=(M // bm, N // bn, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda i, j, k: (k, j), pipeline_mode=pl.Buffered(3)),
            ],
            out_specs=[pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))],
            ### END SOLUTION
        )(a_ref, b_ref, o_ref)

    return pl.pallas_call(
        kernel,
        ### BEGIN SOLUTION
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ### END SOLUTION
        interpret=INTERPRET,
    )(a, b)


# %% [markdown]
# Count the copies in flight: the reference has one more than with two slots, until no block is left to
# start.

# %% active="ipynb"
# receipt(launch_pipeline, jnp.ones((128, 512)), jnp.ones((512, 512)))

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.pipelines._audits import in_hbm, multiplied_once, overlapped


def make_inputs(key, M, K, N):
    r = rng(key)
    a, b = r.normal(size=(M, K)), r.normal(size=(K, N))
    return array(a, jnp.float32), array(b, jnp.float32)


def audit(launch: Launch) -> None:
    in_hbm(launch)
    multiplied_once(launch)
    overlapped(launch, first=launch.steps)
    b = launch.inputs[1].name
    its = (launch.waits or {}).get(b)  # None where data decide what is copied
    assert its is None or its.most >= 3, (
        f"at most {its.most} copies from `{b}` are under way at once, with three slots it would be 3: "
        "give b's spec pipeline_mode=pl.Buffered(3)"
    )


def scale(M=256, K=512, N=1024):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


def par(launch: Launch) -> str:
    return f"up to {int(launch.in_flight.max())} copies in flight"


_GRID = "            grid=(M // bm, N // bn, K // bk),\n"
_A = "pl.BlockSpec((bm, bk), lambda i, j, k: (i, k))"
_B = "pl.BlockSpec((bk, bn), lambda i, j, k: (k, j), pipeline_mode=pl.Buffered(3))"
_O = "pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))"
_B2 = "pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))"
_OUTSIDE = """        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
"""

PUZZLE = Puzzle(
    spec=launch_pipeline_spec,
    solution=launch_pipeline,
    inputs=make_inputs,
    cases=[dict(M=128, K=384, N=512), dict(M=192, K=512, N=256)],
    fresh=lambda r: dict(M=64, K=128 * int(r.choice([3, 5, 7])), N=512),
    hints=[
        "There are two calls. Which of them knows blocks, and which only knows where whole arrays lie?",
        "`emit_pipeline` takes `grid`, `in_specs` and `out_specs` as `pallas_call` does; `pl.Buffered(3)` goes "
        "into b's `pl.BlockSpec`, as its `pipeline_mode`. Outside, every array has `memory_space=pl.ANY`.",
        "Inside: three axes, k last; maps (i, k), (k, j) and (i, j). Outside: where the arrays stay, the "
        "shape of the result, and scratch of one output block.",
    ],
    explain="""The inner call knows blocks, the outer one only that the arrays stay in HBM and
    that there is an accumulator. With three slots for b its copies start two steps ahead: one
    block of VMEM buys patience with a late copy, and not a byte of traffic.""",
    mistakes=[
        Mistake(
            "gives b two slots",
            old=_B,
            new=_B2,
            says="at most 2 copies from `b_ref` are under way at once, with three slots it would be 3",
            stage="work",
        ),
        Mistake(
            "gives the grid to the launch, too",
            old="        kernel,\n",
            new="        kernel,\n        grid=(2,),\n",
            says="The grid over blocks belongs to `emit_pipeline`",
            stage="work",
        ),
        Mistake(
            "gives the third slot to a",
            edits=((_B, _B2), (_A, _A[:-1] + ", pipeline_mode=pl.Buffered(3))")),
            says="give b's spec pipeline_mode=pl.Buffered(3)",
            stage="work",
        ),
        Mistake(
            "gives the memory of b's third slot to a, and more",
            edits=((_B, _B2), (_A, _A[:-1] + ", pipeline_mode=pl.Buffered(4))")),
            says="at most 2 copies from `b_ref` are under way at once",
            stage="work",
        ),
        Mistake(
            "gives the third slot to the result",
            edits=((_B, _B2), (_O, _O[:-1] + ", pipeline_mode=pl.Buffered(3))")),
            says="more than two slots only inputs may have",
            stage="error",
        ),
        Mistake(
            "swaps the maps of b",
            old="(bk, bn), lambda i, j, k: (k, j)",
            new="(bk, bn), lambda i, j, k: (j, k)",
            says="b's block is (k, j): its rows go with k, its columns with j",
        ),
        Mistake(
            "takes a's first block at every k",
            old="(bm, bk), lambda i, j, k: (i, k)",
            new="(bm, bk), lambda i, j, k: (i, 0)",
            says="a's first block meets every block of b: its columns go with k",
        ),
        Mistake(
            "takes b's first columns for every block",
            old="(bk, bn), lambda i, j, k: (k, j)",
            new="(bk, bn), lambda i, j, k: (k, 0)",
            says="every block of columns is the first: b's columns go with j",
        ),
        Mistake(
            "writes all blocks of a row to one place",
            old="(bm, bn), lambda i, j, k: (i, j)",
            new="(bm, bn), lambda i, j, k: (i, 0)",
            says="only the first column of blocks is written, and not with its own sums: the output's "
            "block is (i, j)",
        ),
        Mistake(
            "has a grid without k's blocks",
            old=_GRID,
            new="            grid=(M // bm, N // bn, 1),\n",
            says="each sum ends after its first product: k has K // bk steps",
        ),
        Mistake(
            "has k as the outermost axis",
            edits=(
                (_GRID, "            grid=(K // bk, N // bn, M // bm),\n"),
                ("(bm, bk), lambda i, j, k: (i, k)", "(bm, bk), lambda k, j, i: (i, k)"),
                ("(bk, bn), lambda i, j, k: (k, j)", "(bk, bn), lambda k, j, i: (k, j)"),
                ("(bm, bn), lambda i, j, k: (i, j)", "(bm, bn), lambda k, j, i: (i, j)"),
            ),
            says="the body counts k on axis 2, the innermost: with another order it zeroes and stores at "
            "the wrong steps",
        ),
        Mistake(
            "keeps a bf16 accumulator",
            edits=(
                ("scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)]", "scratch_shapes=[pltpu.VMEM((bm, bn), jnp.bfloat16)]"),
            ),
            says="Invalid dtype for `swap`",
            stage="error",
        ),
        Mistake(
            "forgets the scratch",
            old="        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],\n",
            new="",
            says="missing 1 required positional argument: 'acc_ref'",
            stage="error",
        ),
        Mistake(
            "turns the overlap of copies and work off",
            old='        )(a_ref, b_ref, o_ref)',
            new='            no_pipelining=True,\n        )(a_ref, b_ref, o_ref)',
            says="at 12 of 12 waits for a copy from `a_ref`, the kernel has computed nothing since that copy started",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative("gives a three slots, too", old=_A, new=_A[:-1] + ", pipeline_mode=pl.Buffered(3))"),
        Alternative("gives b four slots", old="(k, j), pipeline_mode=pl.Buffered(3)", new="(k, j), pipeline_mode=pl.Buffered(4)"),
        Alternative(
            "walks j before i",
            edits=(
                (_GRID, "            grid=(N // bn, M // bm, K // bk),\n"),
                ("(bm, bk), lambda i, j, k: (i, k)", "(bm, bk), lambda j, i, k: (i, k)"),
                ("(bk, bn), lambda i, j, k: (k, j)", "(bk, bn), lambda j, i, k: (k, j)"),
                ("(bm, bn), lambda i, j, k: (i, j)", "(bm, bn), lambda j, i, k: (i, j)"),
            ),
        ),
        Alternative(
            "names HBM for what stays there",
            old=_OUTSIDE,
            new="        in_specs=2 * (pl.BlockSpec(memory_space=pltpu.MemorySpace.HBM),),\n"
            "        out_specs=pl.BlockSpec(memory_space=pltpu.MemorySpace.HBM),\n",
        ),
    ],
    audit=audit,
    scale=scale,
    par=par,
)
