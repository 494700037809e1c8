"""Puzzle 1: read a Ref, write a Ref."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## add_ten: your first kernel
#
# A JAX function takes arrays and returns arrays. A **kernel** takes **Refs** and returns nothing. A
# Ref is a handle to a buffer, here in VMEM, the TPU's small memory right next to the arithmetic
# units. `jax.Array`s live in HBM, the large memory: `pallas_call` copies the input from there to
# VMEM, and the output back.
#
# ![x is copied from HBM to VMEM, the kernel reads x_ref and writes o_ref, and the result is copied back to HBM.](diagrams/basics/add_ten.svg)
#
# A kernel does three things:
#
# 1. **read** a Ref: `x = x_ref[...]` (the `...` means "all of it");
# 2. **compute** with `jax.numpy`;
# 3. **write** into the output Ref: `o_ref[...] = y`.
#
# Before you write, an output Ref holds garbage (for floats, NaN on a CPU).
#
# `out_shape` gives the shape and dtype of the result. `Float[Array, "M N"]` is a note to you:
# floats, M rows, N columns. Add ten to every element.


# %%
def add_ten_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return x + 10


# %%
def add_ten_kernel(x_ref, o_ref):
    ### BEGIN SOLUTION
    o_ref[...] = x_ref[...] + 10
    ### END SOLUTION


def add_ten(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        add_ten_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# A `jax.ShapeDtypeStruct` is a shape and dtype without data. `interpret=INTERPRET` runs the kernel
# on the CPU unless there is a TPU. `check` also runs your kernel in a simulator of the TPU's memory,
# and lowers it for Mosaic, the compiler of TPU kernels. If all is right, it prints a *receipt*: bytes
# moved between HBM and VMEM, VMEM used, and a lower bound on the time on a v5e, a small TPU. The
# bound is computed, not measured. VMEM is 16 to 128 MiB, depending on the chip. A v5e has 128 MiB,
# and a kernel gets 16 of them unless it asks for more.
#
# <details>
# <summary>More: the other entry point</summary>
#
# Newer versions of JAX have a second entry point, `pl.kernel`. Its Refs are in HBM, and the kernel
# copies the parts that it needs. `pallas_call`, which we use here, makes the copies for you.
#
# ```python
# def kernel(x_hbm, o_hbm, buffer):      # buffer is scratch in VMEM
#     pltpu.sync_copy(x_hbm, buffer)
#     ...                                # your line, on the buffer
#     pltpu.sync_copy(buffer, o_hbm)
# ```
#
# `check` accepts both. Part IV of `pipelines` teaches `pl.kernel`, on one core and on two.
#
# </details>

# %% tags=["author"]
from puzzles import Puzzle, array, rng


def make_inputs(key, M, N):
    return (array(rng(key).normal(0, 10, (M, N)), jnp.float32),)


def scale(M=128, N=8192):  # of a model 8,192 wide, what 128 texts have in one step of decoding
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def fresh(r):
    return dict(M=int(r.choice([16, 40, 64])), N=int(r.choice([256, 640])))


PUZZLE = Puzzle(
    spec=add_ten_spec,
    solution=add_ten,
    inputs=make_inputs,
    cases=[dict(M=8, N=128), dict(M=24, N=384)],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # every element is needed once
    par=lambda launch: f"{launch.hbm_bytes / 2**20:.0f} MiB moved",
    hints=[
        "A kernel does not return its result: it leaves it in the output buffer.",
        "Index a Ref with `[...]` to read all of it, and assign to an indexed Ref to write.",
        "One line: the output Ref, indexed, on the left; the input Ref, indexed, in a sum on "
        "the right.",
    ],
    explain="""Reading a Ref gives a value, assigning to one fills the buffer. The two copies
    between HBM and VMEM are made by `pallas_call`, before and after the kernel runs.""",
)
