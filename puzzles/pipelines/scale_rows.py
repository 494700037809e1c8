"""Puzzle 19: the other entry point, `pl.kernel`."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## scale_rows: a kernel without blocks
#
# JAX's quickstart launches kernels with `pl.kernel`, which has no grid and no blocks: you name the
# cores and the scratch, and every array stays in HBM.
#
# ```text
#              pallas_call                        pl.kernel
# runs         once for each grid step            once on each core of `mesh`
# arrays       blocks come to VMEM by themselves  stay in HBM: the kernel copies
# scratch      by position                         by the name of the parameter
# ```
#
# A `pltpu.TensorCoreMesh(axis_name="core", num_cores=1)` is one core. Always say `num_cores`:
# without it JAX asks the device, and a CPU has no answer.
#
# `pltpu.sync_copy(source, target)` starts a copy and waits for it. `scratch_types` is a dictionary,
# such as `{"rows": pltpu.VMEM(shape, dtype)}`.


# %%
def scale_rows_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return 2 * x


# %%
def scale_rows_kernel(x_hbm, o_hbm, rows):
    # Copy all of x to the scratch, double it there, and copy it out.
    ### BEGIN SOLUTION
    pltpu.sync_copy(x_hbm, rows)
    rows[...] = 2 * rows[...]
    pltpu.sync_copy(rows, o_hbm)
    ### END SOLUTION


def scale_rows(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.kernel(
        scale_rows_kernel,
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=1),
        # The kernel's third parameter: room for x in VMEM.
        ### BEGIN SOLUTION
        scratch_types={"rows": pltpu.VMEM(x.shape, x.dtype)},
        ### END SOLUTION
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# Which entry point, when? In August 2026 most TPU kernels in production use `pallas_call`: it makes
# and hides the copies of a regular grid for you. `pl.kernel` is the way to use SparseCores, the
# natural way to use several cores, and what JAX's own first page teaches.

# %% tags=["author"]
from puzzles import Puzzle, array, rng


def make_inputs(key, M, N):
    return (array(rng(key).normal(size=(M, N)), jnp.float32),)


def scale(M=1024, N=1024):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


PUZZLE = Puzzle(
    spec=scale_rows_spec,
    solution=scale_rows,
    inputs=make_inputs,
    cases=[dict(M=64, N=384), dict(M=136, N=256)],
    fresh=lambda r: dict(M=8 * int(r.choice([3, 5, 9])), N=128 * int(r.choice([2, 4]))),
    hints=[
        "Which of the three Refs can the kernel read and write by indexing?",
        "`pltpu.sync_copy(source, target)` takes Refs. The scratch has x's shape and x's dtype.",
        "Three statements: a copy from `x_hbm`, an assignment to `rows[...]`, a copy to `o_hbm`. "
        "And a dictionary with one entry.",
    ],
    explain="""A core computes on VMEM only. `pallas_call` copies a block in and out around the
    kernel; `pl.kernel` leaves both copies to the kernel itself.""",
    scale=scale,
)
