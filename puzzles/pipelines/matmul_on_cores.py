"""Puzzle 23: two cores, divided by the pipeline."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## matmul_on_cores: the pipeline divides the work
#
# In `halves` you divided the rows yourself. A pipeline can do it: `core_axis_name=`, the mesh's
# name for its cores, gives each core a part of the grid, and `dimension_semantics=` has a word for
# each axis of the grid:
#
# ```text
# pltpu.PARALLEL      its steps are independent: cores may divide them
# pltpu.ARBITRARY     its steps may build on one another: one core takes them all, in order
# ```
#
# The pipeline divides the parallel axis, of even or odd length; your index maps stay as they are. It
# does not make the cores wait for each other: the launch ends when both have ended.
#
# Each core has an `acc` of its own. So the axis that is summed cannot be divided: each core would
# hold a part of the sum, and nobody adds the parts. The body is `pipelined_matmul`'s. Write the
# grid, and the two arguments that divide it.


# %%
def matmul_on_cores_spec(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return jnp.dot(a, b)


# %%
def matmul_on_cores_kernel(a_hbm, b_hbm, o_hbm, acc):
    (M, K), (_, N) = a_hbm.shape, b_hbm.shape
    bm, bk, bn = 64, 128, 128

    def multiply(a_ref, b_ref, o_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = acc[...]

    pltpu.emit_pipeline(
        multiply,
        ### BEGIN SOLUTION
        grid=(M // bm, N // bn, K // bk),
        core_axis_name="core",
        dimension_semantics=(pltpu.PARALLEL, pltpu.ARBITRARY, pltpu.ARBITRARY),
        ### END SOLUTION
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=[pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))],
    )(a_hbm, b_hbm, o_hbm)


def matmul_on_cores(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return pl.kernel(
        matmul_on_cores_kernel,
        jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), jnp.float32),
        mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=2),
        scratch_types={"acc": pltpu.VMEM((64, 128), jnp.float32)},
        interpret=INTERPRET,
    )(a, b)


# %% [markdown]
# Each core reads half of the blocks that one core would read. In July 2026 Google's tokamax moved
# three TensorCore kernels to `pl.kernel`, its grouped matmuls among them, to run on both cores.
# Helion, which writes Pallas kernels for you, launches them with `pl.kernel` only.

# %% active="ipynb"
# x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
# receipt(matmul_on_cores, x, x, chip="v5p")

# %% tags=["author"]
from puzzles import Launch, Puzzle
from puzzles.pipelines._audits import divided
from puzzles.pipelines.double_buffered_matmul import make_inputs


def audit(launch: Launch) -> None:
    divided(launch)


def scale(M=256, K=512, N=512):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


PUZZLE = Puzzle(
    spec=matmul_on_cores_spec,
    solution=matmul_on_cores,
    inputs=make_inputs,
    cases=[dict(M=128, K=384, N=256), dict(M=384, K=256, N=512), dict(M=192, K=256, N=384)],
    fresh=lambda r: dict(M=128, K=128 * int(r.integers(2, 4)), N=256),
    hints=[
        "Which blocks of the result depend on each other? Along which axis do steps share `acc`?",
        "Three arguments: `grid`; `core_axis_name`, the mesh's name for its cores; and "
        "`dimension_semantics`, with a word for each axis of the grid.",
        "The grid counts blocks in the order i, j, k of the maps. i is PARALLEL; k must be "
        "ARBITRARY; j need not be divided.",
    ],
    explain="""Rows of blocks of the result are independent, so the cores divide them and never
    exchange data. A sum has one owner: the core whose `acc` holds it.""",
    audit=audit,
    scale=scale,
)
