"""Puzzle 7: a sum over the pipeline's steps."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## pipelined_matmul: a sum over the pipeline's steps
#
# `tiled_matmul` once more, with its pipeline in your hands. Two things are new.
#
# **Whose steps?** Inside the body, `pl.program_id` counts the steps of the *pipeline's* grid, not
# of the kernel around it. So does `pl.num_programs`.
#
# **Whose memory?** The sum needs a place that lives longer than a step: the outer kernel's scratch,
# `acc_ref`, which the body can use like any variable around it. (With `scratches=`, the pipeline
# would pass `acc_ref` to the body.)
#
# ```text
#   k = 0                 k = 1                 k = 2                 k = 0 of the next block
#   zero acc              .                     .                     zero acc
#   acc += a b            acc += a b            acc += a b            acc += a b
#   .                     .                     o_block = acc         .
#                                               ... and off it goes
# ```
#
# An output block is copied out when its index changes, and **never fetched again**. So `k` has to
# be the innermost axis. You choose the grid. The index maps take its axes in the order `i`, `j`,
# `k`.


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
from puzzles import Launch, Puzzle
from puzzles.pipelines._audits import in_hbm, multiplied_once, overlapped
from puzzles.pipelines.double_buffered_matmul import make_inputs


def audit(launch: Launch) -> None:
    in_hbm(launch)
    multiplied_once(launch)
    overlapped(launch, first=launch.steps)


def scale(M=128, K=512, N=512):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


PUZZLE = Puzzle(
    spec=pipelined_matmul_spec,
    solution=pipelined_matmul,
    inputs=make_inputs,
    cases=[
        dict(M=128, K=384, N=256),
        dict(M=192, K=256, N=128),
        dict(M=64, K=17 * 128, N=128),
    ],
    fresh=lambda r: (
        dict(M=128, K=384, N=256)
        if r.integers(4)
        else dict(M=64, K=128 * int(r.integers(2, 5)), N=256)
    ),
    hints=[
        "Which steps share a block of the output, and are they consecutive? What does the "
        "first of them find in the accumulator?",
        "`pl.program_id(2)` is k of the pipeline; `@pl.when` guards. The grid counts blocks, "
        "in the order i, j, k of the index maps.",
        "Under one guard, zeros into `acc_ref`; under another, `acc_ref` into `o_block`; and a "
        "grid of three numbers, the blocks along M, along N and along K.",
    ],
    explain="""The pipeline's grid is a grid like any other: the axis that is summed is the last,
    so that the output block stays in its slot until its sum is complete.""",
    audit=audit,
    scale=scale,
)
