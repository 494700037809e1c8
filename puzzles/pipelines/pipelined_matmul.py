"""Rung 7: a sum over the pipeline's steps."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## pipelined_matmul: a sum over the pipeline's steps
#
# `tiled_matmul` once more, its pipeline in your hands. Two things are new.
#
# **Whose steps?** Inside the body, `pl.program_id` counts the steps of the *pipeline's* grid, not of
# the kernel around it. `pl.num_programs` does, too.
#
# **Whose memory?** The sum needs a place that lives longer than a step: scratch of the kernel outside,
# `acc_ref`, which the body sees as it sees any variable. (A pipeline that is called with `scratches=`
# hands it on, too.)
#
# ```text
#   k = 0                 k = 1                 k = 2                 k = 0 of the next block
#   zero acc              .                     .                     zero acc
#   acc += a b            acc += a b            acc += a b            acc += a b
#   .                     .                     o_block = acc         .
#                                               ... and off it goes
# ```
#
# An output slot leaves when its block index changes, and it **does not come back**. So `k` has to be
# the innermost axis. You choose the grid: `i`, `j` and `k` are the order of the index maps.

# %%
def pipelined_matmul_spec(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return jnp.dot(a, b)


# %%
def pipelined_matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    (M, K), (_, N) = a_ref.shape, b_ref.shape
    bm, bk, bn = 64, 128, 128

    def multiply(a_block, b_block, o_block):
        # At the first k of a block: no sum yet.
        ### BEGIN SOLUTION
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)
        ### END SOLUTION

        acc_ref[...] += jnp.dot(a_block[...], b_block[...], preferred_element_type=jnp.float32)

        # At the last k: the sum is complete.
        ### BEGIN SOLUTION
        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o_block[...] = acc_ref[...]
        ### END SOLUTION

    pltpu.emit_pipeline(
        multiply,
        ### BEGIN SOLUTION
        grid=(M // bm, N // bn, K // bk),
        ### END SOLUTION
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=[pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))],
    )(a_ref, b_ref, o_ref)


def pipelined_matmul(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    M, N = a.shape[0], b.shape[1]
    return pl.pallas_call(
        pipelined_matmul_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((64, 128), jnp.float32)],
        interpret=INTERPRET,
    )(a, b)


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


def scale(M=128, K=512, N=512):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


_ZERO = """        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)
"""
_STORE = """        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o_block[...] = acc_ref[...]
"""
_DOT = "acc_ref[...] += jnp.dot(a_block[...], b_block[...], preferred_element_type=jnp.float32)"
_GRID = "grid=(M // bm, N // bn, K // bk)"
_OUTERMOST = (
    (_GRID, "grid=(K // bk, M // bm, N // bn)"),
    ("(bm, bk), lambda i, j, k: (i, k)", "(bm, bk), lambda k, i, j: (i, k)"),
    ("(bk, bn), lambda i, j, k: (k, j)", "(bk, bn), lambda k, i, j: (k, j)"),
    ("(bm, bn), lambda i, j, k: (i, j)", "(bm, bn), lambda k, i, j: (i, j)"),
)

PUZZLE = Puzzle(
    spec=pipelined_matmul_spec,
    solution=pipelined_matmul,
    inputs=make_inputs,
    cases=[dict(M=128, K=384, N=256), dict(M=192, K=256, N=128)],
    fresh=lambda r: dict(M=128, K=384, N=256) if r.integers(4) else dict(M=64, K=128 * int(r.integers(2, 5)), N=256),
    hints=[
        "Which steps share a block of the output, and are they consecutive? What does the first of them "
        "find in the accumulator?",
        "`pl.program_id(2)` is k of the pipeline; `@pl.when` guards. The grid counts blocks, in the order "
        "i, j, k of the index maps.",
        "Under one guard, zeros into `acc_ref`; under another, `acc_ref` into `o_block`; and a grid of three "
        "numbers, the blocks along M, along N and along K.",
    ],
    explain="""The pipeline's grid is a grid like any other: the axis that is summed is the last,
    so that the output block stays in its slot until its sum is complete.""",
    mistakes=[
        Mistake(
            "never zeroes the accumulator, or never stores it",
            old=_ZERO,
            new="",
            says="every number is garbage (NaN here): the accumulator was never zeroed, which nobody does "
            "for you, or nothing was stored at the last k, or only added to what lay in the output's slot",
        ),
        Mistake(
            "zeroes the accumulator at every step",
            old=_ZERO,
            new="        acc_ref[...] = jnp.zeros_like(acc_ref)\n",
            says="only the product of the last k is left",
        ),
        Mistake(
            "zeroes the accumulator once, before the pipeline",
            old=_ZERO,
            new="",
            edits=(
                ("    pltpu.emit_pipeline(\n", "    acc_ref[...] = jnp.zeros_like(acc_ref)\n    pltpu.emit_pipeline(\n"),
            ),
            says="each block contains the blocks before it: one accumulator serves them all, and each "
            "begins with its own zeros",
        ),
        Mistake(
            "stores after the first product",
            old="pl.when(pl.program_id(2) == pl.num_programs(2) - 1)",
            new="pl.when(pl.program_id(2) == 0)",
            says="only the product of the first k arrives: the sum is complete at the last k",
        ),
        Mistake(
            "stores one step early",
            old="pl.num_programs(2) - 1)",
            new="pl.num_programs(2) - 2)",
            says="the last product is missing in each block: k ends at num_programs - 1",
        ),
        Mistake(
            "asks for the wrong axis",
            edits=(
                ("@pl.when(pl.program_id(2) == 0)", "@pl.when(pl.program_id(1) == 0)"),
            ),
            says="the sum starts anew while j is 0, and goes on while it is not: axis 2 is k",
        ),
        Mistake(
            "zeroes where i is 0",
            old="@pl.when(pl.program_id(2) == 0)",
            new="@pl.when(pl.program_id(0) == 0)",
            says="the sum starts anew at every step while i is 0, and never after that: axis 2 is k",
        ),
        Mistake(
            "stores where i is the last",
            old="pl.when(pl.program_id(2) == pl.num_programs(2) - 1)",
            new="pl.when(pl.program_id(0) == pl.num_programs(0) - 1)",
            says="only the last row of blocks is stored (NaN in the others): a sum is complete at the last k, axis 2",
        ),
        Mistake(
            "has k as the outermost axis, and counts axis 2",
            edits=_OUTERMOST,
            says="the body counts k on axis 2, and here it is axis 0: k has to be the innermost",
        ),
        Mistake(
            "has k as the outermost axis, renamed",
            edits=(
                *_OUTERMOST,
                ("@pl.when(pl.program_id(2) == 0)", "@pl.when(pl.program_id(0) == 0)"),
                (
                    "pl.when(pl.program_id(2) == pl.num_programs(2) - 1)",
                    "pl.when(pl.program_id(0) == pl.num_programs(0) - 1)",
                ),
            ),
            says="blocks take turns between two k, and one accumulator adds them all up: k has to be the "
            "innermost axis",
        ),
        Mistake(
            "has k in the middle, or outside",
            edits=(
                (_GRID, "grid=(M // bm, K // bk, N // bn)"),
                ("(bm, bk), lambda i, j, k: (i, k)", "(bm, bk), lambda i, k, j: (i, k)"),
                ("(bk, bn), lambda i, j, k: (k, j)", "(bk, bn), lambda i, k, j: (k, j)"),
                ("(bm, bn), lambda i, j, k: (i, j)", "(bm, bn), lambda i, k, j: (i, j)"),
            ),
            says="axis 2 is not k here: k has to be the innermost, so that a block's steps follow one another",
        ),
        Mistake(
            "has k in the middle of its grid, and not of its maps",
            old=_GRID,
            new="grid=(M // bm, K // bk, N // bn)",
            says="the grid counts blocks of K second, and the maps take the second number for j: their order is "
            "i, j, k, and k is the innermost",
        ),
        Mistake(
            "has k outermost in its grid, and not in its maps",
            old=_GRID,
            new="grid=(K // bk, M // bm, N // bn)",
            says="the grid counts blocks of K first, and the maps take the first number for i: their order is "
            "i, j, k, and k is the innermost",
        ),
        Mistake(
            "accumulates in the output, with k outermost",
            edits=(
                *_OUTERMOST,
                (
                    _ZERO,
                    "        @pl.when(pl.program_id(0) == 0)\n        def _():\n"
                    "            o_block[...] = jnp.zeros_like(o_block)\n",
                ),
                (_DOT, _DOT.replace("acc_ref[...] +=", "o_block[...] +=")),
                (_STORE, ""),
            ),
            says="a slot that has left does not come back: the next k adds to what another block left there",
        ),
        Mistake(
            "has a grid in another order than its index maps",
            old=_GRID,
            new="grid=(N // bn, M // bm, K // bk)",
            says="grid and index maps name the axes in different orders: blocks of M come first",
        ),
        Mistake(
            "leaves the last row of blocks out",
            old=_GRID,
            new="grid=(M // bm - 1, N // bn, K // bk)",
            says="the last row of blocks was never written (NaN there): the grid has M // bm of them",
        ),
        Mistake(
            "rounds the sum to bf16 on the way",
            old="pltpu.VMEM((64, 128), jnp.float32)",
            new="pltpu.VMEM((64, 128), jnp.bfloat16)",
            edits=((_DOT, f"acc_ref[...] += ({_DOT.removeprefix('acc_ref[...] += ')}).astype(jnp.bfloat16)"),
                   ("o_block[...] = acc_ref[...]", "o_block[...] = acc_ref[...].astype(jnp.float32)")),
            says="the accumulator keeps 8 bits of each sum: it is f32, whatever the inputs are",
        ),
        Mistake(
            "turns the overlap of copies and work off",
            old='    )(a_ref, b_ref, o_ref)',
            new='        no_pipelining=True,\n    )(a_ref, b_ref, o_ref)',
            says="at 12 of 12 waits for a copy from `a_ref`, the kernel has computed nothing since that copy started",
            stage="work",
        ),
        Mistake(
            "takes axis 0 for k",
            edits=(
                ("@pl.when(pl.program_id(2) == 0)", "@pl.when(pl.program_id(0) == 0)"),
                ("pl.program_id(2) == pl.num_programs(2) - 1", "pl.program_id(0) == pl.num_programs(0) - 1"),
            ),
            says="k is the last of the grid's axes, number 2: axis 0 counts i",
        ),
        Mistake(
            "leaves the last block of K out",
            old="K // bk)",
            new="K // bk - 1)",
            says="the grid has as many steps along k as K has blocks, K // bk",
        ),
    ],
    alternatives=[
        Alternative(
            "accumulates in the output slot",
            edits=(
                (_ZERO, _ZERO.replace("acc_ref", "o_block")),
                (_DOT, _DOT.replace("acc_ref[...] +=", "o_block[...] +=")),
                (_STORE, ""),
            ),
        ),
        Alternative(
            "hands the accumulator to the pipeline as scratch",
            edits=(
                ("def multiply(a_block, b_block, o_block):", "def multiply(a_block, b_block, o_block, acc_ref):"),
                ("    )(a_ref, b_ref, o_ref)", "    )(a_ref, b_ref, o_ref, scratches=(acc_ref,))"),
            ),
        ),
        Alternative("stores at every step", old=_STORE, new="        o_block[...] = acc_ref[...]\n"),
        Alternative(
            "stores the first product instead of adding it to zeros",
            edits=(
                (_ZERO, "        fresh = pl.program_id(2) == 0\n"),
                (
                    "        " + _DOT,
                    "        product = jnp.dot(a_block[...], b_block[...], preferred_element_type=jnp.float32)\n"
                    "        acc_ref[...] = jnp.where(fresh, product, acc_ref[...] + product)",
                ),
            ),
        ),
        Alternative(
            "walks j before i",
            edits=(
                (_GRID, "grid=(N // bn, M // bm, K // bk)"),
                ("(bm, bk), lambda i, j, k: (i, k)", "(bm, bk), lambda j, i, k: (i, k)"),
                ("(bk, bn), lambda i, j, k: (k, j)", "(bk, bn), lambda j, i, k: (k, j)"),
                ("(bm, bn), lambda i, j, k: (i, j)", "(bm, bn), lambda j, i, k: (i, j)"),
            ),
        ),
    ],
    audit=audit,
    scale=scale,
)
