"""Puzzle 22: two cores, divided by hand."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## halves: two cores run one body
#
# A v4 or a v5p has two TensorCores that share one HBM. With `num_cores=2` both run your kernel,
# **at the same time**, each with VMEM and SMEM of its own. `jax.lax.axis_index("core")` is 0 on one
# core and 1 on the other: the only difference between them.
#
# ```text
# HBM     x_hbm  [ first half | second half ]      o_hbm  [ first half | second half ]
#                      |              |                        ^              ^
# core 0   rows  [ M/2 rows ]         |                   [ M/2 rows ]        |
# core 1   rows                 [ M/2 rows ]                            [ M/2 rows ]
# ```
#
# If both cores write the same rows, you may get either core's numbers, or some of both. That is a
# race even if both write the same numbers today.
#
# Subtract from each row its mean. Each core takes half of the rows.


# %%
def halves_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return x - jnp.mean(x, axis=1, keepdims=True)


# %%
def halves_kernel(x_hbm, o_hbm, rows):
    half = rows.shape[0]
    # Copy this core's half in, subtract the means, copy it out.
    ### BEGIN SOLUTION
    core = jax.lax.axis_index("core")
    mine = pl.ds(core * half, half)
    pltpu.sync_copy(x_hbm.at[mine], rows)
    rows[...] = rows[...] - jnp.mean(rows[...], axis=1, keepdims=True)
    pltpu.sync_copy(rows, o_hbm.at[mine])
    ### END SOLUTION


def halves(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    M, N = x.shape
    return pl.kernel(
        halves_kernel,
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=2),
        scratch_types={"rows": pltpu.VMEM((M // 2, N), x.dtype)},
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# A receipt for a v5p has a line for the cores. The receipt's time is the slower core's.

# %% active="ipynb"
# receipt(halves, jax.ShapeDtypeStruct((1024, 1024), jnp.float32), chip="v5p")

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import divided


def make_inputs(key, M, N):
    return (array(rng(key).normal(1, 2, size=(M, N)), jnp.float32),)


def audit(launch: Launch) -> None:
    divided(launch)


def scale(M=1024, N=1024):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


PUZZLE = Puzzle(
    spec=halves_spec,
    solution=halves,
    inputs=make_inputs,
    cases=[dict(M=128, N=384), dict(M=48, N=256)],
    fresh=lambda r: dict(M=16 * int(r.choice([3, 5, 9])), N=128 * int(r.choice([2, 4]))),
    hints=[
        "Both cores run every line. What can differ, so that each has rows of its own?",
        '`jax.lax.axis_index("core")` is the number of this core; `.at[pl.ds(first, half)]` names '
        "half of the rows.",
        "The first row is the core's number times `half`. The same slice names the rows of `x_hbm` "
        "that come and those of `o_hbm` that go.",
    ],
    explain="""A mesh of cores is a grid whose steps run at once. Nothing is shared but HBM, so the
    cores agree on who writes what by their numbers alone.""",
    audit=audit,
    scale=scale,
)
