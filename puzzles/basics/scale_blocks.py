"""Rung 4: a grid of two axes, and the shape of a legal block."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## scale_blocks: a two-dimensional grid
#
# A matrix is cut along both axes, so the grid has two, and index maps receive both program ids:
# `lambda i, j: (i, j)`. The steps run in order with the **last axis fastest**: (0, 0), (0, 1), (0,
# 2), (1, 0), ...
#
# ![The steps go along a row of blocks, then along the next: the last grid axis runs fastest.](diagrams/basics/scale_blocks.svg)
#
# Not every block shape can run on a TPU. Data lies in VMEM in tiles of 8 rows by 128 columns. So a
# block's last dimension must be a multiple of 128 and the one before it a multiple of 8, unless a
# dimension spans the whole axis of its array. (Int8 needs more: `matmul_bf16`, later.)
#
# Number the blocks from 1, and multiply each block of `x` by its number:
#
# ```text
#          j = 0   j = 1   j = 2
# i = 0      1       2       3
# i = 1      4       5       6
# ```
#
# In the kernel, `pl.program_id(axis)` is your place on a grid axis, `pl.num_programs(axis)` its
# length.

# %%
def scale_blocks_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    M, N = x.shape
    row = jnp.arange(M)[:, None] // 16
    column = jnp.arange(N)[None, :] // 128
    return x * (row * (N // 128) + column + 1)


# %%
def scale_blocks_kernel(x_ref, o_ref):
    ### BEGIN SOLUTION
    number = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1
    o_ref[...] = x_ref[...] * number
    ### END SOLUTION


def scale_blocks(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    M, N = x.shape
    bm, bn = 16, 128
    return pl.pallas_call(
        scale_blocks_kernel,
        grid=(M // bm, N // bn),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# Does a kernel surprise you? `print(x_ref[...])` in its body shows no numbers: JAX traces the body before
# any step. `pl.debug_print("i = {}", i)` prints at every step. Braces are for integers, or at the
# text's end for one array; a float has none: `pl.debug_print("x", x_ref[0, 0])`. A `check` runs your
# kernel several times, at several shapes: expect many lines. On a TPU they go to the log, and only
# if `xla_tpu_enable_log_recorder` is set:
# `jax.jit(scale_blocks).lower(x).compile({"xla_tpu_enable_log_recorder": "true"})(x)`.

# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, M, N):
    return (array(rng(key).normal(size=(M, N)), jnp.float32),)


def scale(M=16384, N=4096):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def fresh(r):
    return dict(M=16 * int(r.choice([7, 9, 11, 13])), N=128 * int(r.choice([5, 6])))


PUZZLE = Puzzle(
    spec=scale_blocks_spec,
    solution=scale_blocks,
    inputs=make_inputs,
    cases=[dict(M=80, N=512), dict(M=352, N=768)],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # every element is needed once
    par=lambda launch: f"{counted(launch.inputs[0].transfers, 'block of x')} in {counted(launch.steps, 'step')}",
    hints=[
        "How many blocks come before the row of blocks that you are in? How many before you in it?",
        "`pl.program_id(0)` is the row of blocks, `pl.num_programs(1)` the number of blocks in a row.",
        "One line for the number, (row × blocks in a row) + column + 1, and one to multiply and store.",
    ],
    explain="""Program ids are scalars that the kernel can compute with, so a block can know where
    it lies. Row-major numbering is also the order in which the grid runs.""",
    mistakes=[
        Mistake(
            "scales one element of each block",
            old="o_ref[...] = x_ref[...] * number",
            new="i, j = pl.program_id(0), pl.program_id(1)\n    o_ref[i, j] = x_ref[i, j] * number",
            says="`x_ref` is the block already: numbers in the brackets pick one element of it, and the "
            "rest stays garbage (NaN here); `[...]` is all of it",
        ),
        Mistake(
            "numbers the blocks down the columns",
            old="pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1",
            new="pl.program_id(1) * pl.num_programs(0) + pl.program_id(0) + 1",
            says="read along the rows: the last grid axis runs fastest",
        ),
        Mistake(
            "takes the length of the wrong axis",
            old="pl.num_programs(1)",
            new="pl.num_programs(0)",
            says="a row of blocks has `pl.num_programs(1)` of them",
        ),
        Mistake(
            "numbers from zero",
            old=" + pl.program_id(1) + 1",
            new=" + pl.program_id(1)",
            says="the first block is number 1; yours is multiplied by 0",
        ),
        Mistake(
            "adds the two program ids",
            old="pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1",
            new="pl.program_id(0) + pl.program_id(1) + 1",
            says="blocks on a diagonal get the same number; a row counts for as many as it holds",
        ),
        Mistake(
            "adds its number to the block",
            old="x_ref[...] * number",
            new="x_ref[...] + number",
            says="the spec multiplies each block by its number",
        ),
        Mistake(
            "multiplies the two numbers",
            old="pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1",
            new="(pl.program_id(0) + 1) * (pl.program_id(1) + 1)",
            says="that is a multiplication table, in which 2 × 3 and 3 × 2 are the same block; count "
            "the rows of blocks above, times the blocks in a row, then the blocks to the left",
        ),
        Mistake(
            "has the width of the picture written into it",
            old="pl.num_programs(1)",
            new="3",
            says="the picture has three blocks in a row; here a row has `pl.num_programs(1)`",
        ),
        Mistake(
            "gives every block the number 1",
            old="pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1",
            new="1",
            says="only `pl.program_id` knows the step: Python runs the body before any of them, so a "
            "count that Python keeps is the same in all",
        ),
        Mistake(
            "gives every block of a row the same number",
            old="pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1",
            new="pl.program_id(0) + 1",
            says="`pl.program_id(0)` counts rows of blocks; within a row, `pl.program_id(1)` goes on "
            "counting",
        ),
        Mistake(
            "gives every block of a column the same number",
            old="pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1",
            new="pl.program_id(1) + 1",
            says="`pl.program_id(1)` begins again in every row of blocks; add the blocks of the rows "
            "above",
        ),
        Mistake(
            "has the width of one case written into it",
            old="pl.num_programs(1)",
            new="4",
            says="that is right for arrays 512 wide only",
        ),
        Mistake(
            "takes each program id for the other",
            old="pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1",
            new="pl.program_id(1) * pl.num_programs(1) + pl.program_id(0) + 1",
            says="`pl.program_id(0)` counts rows of blocks, `pl.program_id(1)` the blocks in a row; only "
            "the first is multiplied",
        ),
        Mistake(
            "asks one program id twice",
            old="pl.num_programs(1) + pl.program_id(1) + 1",
            new="pl.num_programs(1) + pl.program_id(0) + 1",
            says="`pl.program_id(0)` counts rows of blocks; within a row, it is `pl.program_id(1)` that "
            "counts",
        ),
        Mistake(
            "counts the columns of a block for the blocks in a row",
            old="pl.num_programs(1)",
            new="x_ref.shape[1]",
            says="a Ref's shape is that of one block; a row of blocks has `pl.num_programs(1)` of them",
        ),
        Mistake(
            "adds the 1 to the product",
            edits=(
                (" + pl.program_id(1) + 1", " + pl.program_id(1)"),
                ("x_ref[...] * number", "x_ref[...] * number + 1"),
            ),
            says="the 1 belongs to the number of the block, before it multiplies",
        ),
        Mistake(
            "writes its result to the transposed block",
            old="out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j))",
            new="out_specs=pl.BlockSpec((bm, bn), lambda i, j: (j, i))",
            says="the output's index map is as much a routing table as the input's",
        ),
    ],
    alternatives=[
        Alternative(
            "multiplies by a float",
            old="o_ref[...] = x_ref[...] * number",
            new="o_ref[...] = x_ref[...] * number.astype(x_ref.dtype)",
        ),
        Alternative(
            "walks the grid column by column",
            edits=(
                (
                    "pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1",
                    "pl.program_id(1) * pl.num_programs(0) + pl.program_id(0) + 1",
                ),
                ("        grid=(M // bm, N // bn)", "        grid=(N // bn, M // bm)"),
                (
                    "in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))]",
                    "in_specs=[pl.BlockSpec((bm, bn), lambda j, i: (i, j))]",
                ),
                (
                    "out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j))",
                    "out_specs=pl.BlockSpec((bm, bn), lambda j, i: (i, j))",
                ),
            ),
        ),
        Alternative(
            "counts with a flat grid of row-major blocks, under jit",
            code="""
@jax.jit
def scale_blocks(x):
    rows, columns = x.shape[0] // 16, x.shape[1] // 128

    def kernel(x_ref, o_ref):
        o_ref[...] = jax.lax.convert_element_type(1 + pl.program_id(0), jnp.float32) * x_ref[...]

    block = pl.BlockSpec((16, 128), lambda n: divmod(n, columns))
    return pl.pallas_call(
        kernel, x, grid=(rows * columns,), in_specs=[block], out_specs=block, interpret=INTERPRET
    )(x)
""",
        ),
        Alternative(
            "adds up the number in a helper, and multiplies by a block of it",
            code="""
def number(axes=2):
    count = 0
    for axis in range(axes):
        count = count * pl.num_programs(axis) + pl.program_id(axis)
    return count + 1


def scale_blocks_kernel(x_ref, o_ref):
    factor = jnp.full(x_ref.shape, number(), jnp.int32)
    o_ref[...] = jnp.multiply(x_ref[...], factor.astype(jnp.float32))
""",
        ),
        Alternative(
            "copies each block in and out itself",
            code="""
from jax.experimental.pallas import tpu as pltpu


def scale_blocks(x, bm=16, bn=128):
    M, N = x.shape

    def kernel(x_ref, o_ref, buf, sem):
        i, j = pl.program_id(0), pl.program_id(1)
        place = pl.ds(i * bm, bm), pl.ds(j * bn, bn)
        fetch = pltpu.make_async_copy(x_ref.at[place], buf, sem)
        fetch.start()
        number = i * pl.num_programs(1) + j + 1
        fetch.wait()
        buf[...] = buf[...] * number
        pltpu.sync_copy(buf, o_ref.at[place])

    far = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        grid=(M // bm, N // bn),
        in_specs=[far],
        out_specs=far,
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), x.dtype), pltpu.SemaphoreType.DMA(())],
        interpret=INTERPRET,
    )(x)
""",
        ),
        Alternative(
            "lets a pipeline inside the kernel walk the blocks",
            code="""
from jax.experimental.pallas import tpu as pltpu


def scale_blocks(x, bm=16, bn=128):
    M, N = x.shape

    def scale_block(x_ref, o_ref):
        number = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1
        o_ref[...] = x_ref[...] * number

    def kernel(x_ref, o_ref):
        spec = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
        walk = pltpu.emit_pipeline(
            scale_block, grid=(M // bm, N // bn), in_specs=[spec], out_specs=[spec]
        )
        walk(x_ref, o_ref)

    far = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        in_specs=[far],
        out_specs=far,
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        interpret=INTERPRET,
    )(x)
""",
        ),
    ],
)
