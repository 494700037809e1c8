"""Puzzle 6: the pipeline as a function."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## pipelined_add: the pipeline as a function
#
# Slots, prologue, prefetch, waits: it is the same plan every time, so Pallas has a function for it.
# `pltpu.emit_pipeline` takes a grid and specs, as `pallas_call` does, and is called **inside** a
# kernel, on refs that stay in HBM:
#
# ```text
# pallas_call          one kernel, x_ref, y_ref, o_ref in HBM
#   emit_pipeline      a grid of its own; for each step
#     fetch              blocks of x_ref and y_ref  ->  slots in VMEM
#     add_blocks         (x_block, y_block, o_block)
#     send               slot of o_block            ->  o_ref
# ```
#
# `emit_pipeline(body, grid=…, in_specs=[…], out_specs=[…])` copies nothing yet. It returns a
# function. Call it with the refs, inputs first. Then the grid runs, with two slots for each
# operand. Inputs are fetched one step ahead, outputs are written back during the next step, and a
# block whose index does not change is not moved.
#
# Inside `body`, the refs are blocks in VMEM. So an ordinary kernel body fits, unchanged.


# %%
def pipelined_add_spec(x: Float[Array, "M N"], y: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return x + y


# %%
def add_blocks(x_block, y_block, o_block):
    o_block[...] = x_block[...] + y_block[...]


def pipelined_add_kernel(x_ref, y_ref, o_ref):
    M, N = x_ref.shape
    bm, bn = 64, 128
    # Emit a pipeline over blocks of (bm, bn), and run it on the three refs.
    ### BEGIN SOLUTION
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    pipeline = pltpu.emit_pipeline(
        add_blocks, grid=(M // bm, N // bn), in_specs=[block, block], out_specs=[block]
    )
    pipeline(x_ref, y_ref, o_ref)
    ### END SOLUTION


def pipelined_add(x: Float[Array, "M N"], y: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        pipelined_add_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=INTERPRET,
    )(x, y)


# %% [markdown]
# At each of the reference's waits at least two copies are in flight, except at the very end.

# %% active="ipynb"
# x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
# receipt(pipelined_add, x, x)

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import in_hbm, overlapped


def make_inputs(key, M, N):
    x, y = rng(key).normal(size=(2, M, N))
    return array(x, jnp.float32), array(y, jnp.float32)


def audit(launch: Launch) -> None:
    in_hbm(launch)
    for one in launch.inputs:
        one_block = one.portion == one.shape and one.shape[0] > 64  # 64 rows may come at once
        assert not one_block, (
            f"all of {one.name.removesuffix('_ref')} comes as one block: cut it into "
            "smaller blocks, or there is nothing to overlap"
        )
    overlapped(launch)


def scale(M=512, N=512):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),) * 2


PUZZLE = Puzzle(
    spec=pipelined_add_spec,
    solution=pipelined_add,
    inputs=make_inputs,
    cases=[dict(M=192, N=256), dict(M=64, N=384)],
    fresh=lambda r: (
        dict(M=192, N=256) if r.integers(4) else dict(M=64 * int(r.integers(2, 5)), N=128)
    ),
    hints=[
        "Which grid and which blocks would you give to `pallas_call` for this sum? Use them here.",
        "`pltpu.emit_pipeline(body, grid=…, in_specs=[…], out_specs=[…])` returns a function "
        "of the refs; `pl.BlockSpec(shape, index_map)` is what it always was.",
        "Three statements: one BlockSpec that serves all three operands; emit the pipeline "
        "over a grid of two axes; call it with both inputs and the output.",
    ],
    explain="""`emit_pipeline` fetches, calls the body on blocks, and sends, with two slots for each
    operand. It returns an ordinary function, so a kernel can run several pipelines in turn, or a
    pipeline whose grid it has just computed.""",
    audit=audit,
    scale=scale,
)
