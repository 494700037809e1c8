"""Puzzle 20: blocks again, in a kernel without a grid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## kernel_add: the same body, both ways
#
# `scale_rows` copied everything, then computed, then copied everything back. Nothing overlapped,
# and an array larger than VMEM would not fit. Blocks solve both.
#
# A kernel of `pl.kernel` gets its blocks from `pltpu.emit_pipeline`. The body stays what it was in
# `vector_add`; grid and index maps move from the launch into the kernel:
#
# ```text
# pallas_call(body, grid, in_specs, out_specs)
#
# pl.kernel(kernel, out_type, mesh)
#   kernel: emit_pipeline(body, grid, in_specs, out_specs)(x_hbm, y_hbm, o_hbm)
# ```
#
# Here `y` is a single row that is added to every row of `x`. Its blocks are (1, 128); those of `x`
# and of the result are (64, 128). The sum in the body broadcasts.
#
# Write the pipeline, and the launch.


# %%
def kernel_add_spec(x: Float[Array, "M N"], y: Float[Array, "1 N"]) -> Float[Array, "M N"]:
    return x + y


# %%
def kernel_add_blocks(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


def kernel_add_kernel(x_hbm, y_hbm, o_hbm):
    M, N = x_hbm.shape
    bm, bn = 64, 128
    # Run kernel_add_blocks on blocks of the three arrays.
    ### BEGIN SOLUTION
    pltpu.emit_pipeline(
        kernel_add_blocks,
        grid=(M // bm, N // bn),
        in_specs=[
            pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
            pl.BlockSpec((1, bn), lambda i, j: (0, j)),
        ],
        out_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
    )(x_hbm, y_hbm, o_hbm)
    ### END SOLUTION


def kernel_add(x: Float[Array, "M N"], y: Float[Array, "1 N"]) -> Float[Array, "M N"]:
    one_core = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
    # Launch kernel_add_kernel on one core. It needs no scratch.
    ### BEGIN SOLUTION
    out_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.kernel(kernel_add_kernel, out_type, mesh=one_core, interpret=INTERPRET)(x, y)
    ### END SOLUTION


# %% tags=["author"]
from puzzles import Puzzle, array, rng


def make_inputs(key, M, N):
    r = rng(key)
    return tuple(array(r.normal(size=(m, N)), jnp.float32) for m in (M, 1))


def scale(M=4096, N=512):
    return tuple(jax.ShapeDtypeStruct((m, N), jnp.float32) for m in (M, 1))


PUZZLE = Puzzle(
    spec=kernel_add_spec,
    solution=kernel_add,
    inputs=make_inputs,
    cases=[dict(M=128, N=384), dict(M=320, N=256)],
    fresh=lambda r: dict(M=64 * int(r.choice([1, 3])), N=128 * int(r.choice([2, 3, 5]))),
    hints=[
        "What would the grid and the index maps be in a `pallas_call` of `kernel_add_blocks`?",
        "`emit_pipeline(...)` returns a function of the Refs in HBM. `pl.kernel(...)` returns a "
        "function of the arrays.",
        "A grid of rows of blocks by columns of blocks; y's index map ignores i; and the launch "
        "has the result's shape and dtype, a mesh, and `interpret=INTERPRET`.",
    ],
    explain="""`emit_pipeline` is the copying half of `pallas_call`. So a body that was written for
    blocks serves both entry points unchanged.""",
    scale=scale,
)
