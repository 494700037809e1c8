"""Puzzle 5: what came a step ago goes on."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET
from puzzles.collectives import barrier, neighbours

# %% [markdown]
# ## ring_all_gather: pass it on
#
# Every device must end with the blocks of all devices, as `lax.all_gather` returns them. Each has
# links only to its neighbours, so the blocks go around the ring in `n - 1` steps. In each step a
# device passes on the block that arrived in the step before, in step 0 its own:
#
# ```text
#            device 0 sends   device 1 sends   device 2 sends   device 3 sends
# step 0        block 0          block 1          block 2          block 3      (its own)
# step 1        block 3          block 0          block 1          block 2
# step 2        block 2          block 3          block 0          block 1
# ```
#
# ![The lanes of four devices: in each of three steps every device sends to the next](diagrams/collectives/ring_all_gather.svg)
#
# A block has the same place in `o_ref` on all devices, so `src_ref` and `dst_ref` are the same
# expression. Nothing is written twice, so after the barrier nobody needs permission to write.
#
# Each step has a receive semaphore of its own. If all steps shared one, the bytes of a later step
# could end the wait of an earlier one.


# %%
def ring_all_gather_spec(x: Float[Array, "M N"]) -> Float[Array, "D M N"]:
    return lax.all_gather(x, "x")


# %%
def ring_all_gather_kernel(x_ref, o_ref, local_sem, send_sem, recv_sems):
    me, left, right, n = neighbours()
    barrier(left, right)
    # Copy your own block to its place, within the device.
    ### BEGIN SOLUTION
    own = pltpu.make_async_copy(x_ref, o_ref.at[me], local_sem)
    own.start()
    own.wait()
    ### END SOLUTION

    def step(i, _):
        # Send on the block that arrived in step i - 1, and wait for the next one.
        ### BEGIN SOLUTION
        block = o_ref.at[lax.rem(me - i + n, n)]
        copy = pltpu.make_async_remote_copy(
            block, block, send_sem, recv_sems.at[i], device_id=(right,)
        )
        copy.start()
        copy.wait()
        ### END SOLUTION

    lax.fori_loop(0, n - 1, step, None)


def ring_all_gather(x: Float[Array, "M N"]) -> Float[Array, "D M N"]:
    n = lax.axis_size("x")
    return pl.pallas_call(
        ring_all_gather_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((n, *x.shape), x.dtype),
        scratch_shapes=[
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((n - 1,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# The receipt counts what goes over the links (ICI, inter-chip interconnect): each device sends
# `n - 1` blocks, all in one direction.

# %% active="ipynb"
# receipt(ring_all_gather)

# %% tags=["author"]
import jax.numpy as jnp

from puzzles import Launch, Puzzle
from puzzles._simulator import Wire
from puzzles.collectives.right_permute import fresh, make_inputs


def audit(launch: Launch, *, wire: Wire) -> None:
    assert all(one.hops == 1 for one in wire.transfers), (
        "a copy goes past the neighbour, so it takes the links of every device in between"
    )


def scale(M=1024, N=4096):
    return (jax.ShapeDtypeStruct((4, M, N), jnp.bfloat16),)


PUZZLE = Puzzle(
    axes={"x": 4},
    spec=ring_all_gather_spec,
    solution=ring_all_gather,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, x=3), dict(M=8, N=128, x=8)],
    fresh=fresh,
    audit=audit,
    scale=scale,
    hints=[
        "In step 0 device `me` sends block `me`. In step 1 it sends what its left neighbour sent "
        "in step 0. Whose block is that?",
        "Block `me - i`, modulo `n`. `lax.rem` of a negative number is negative, so add `n` first. "
        "Source and target are the same part of `o_ref`.",
        "Four steps: the part of `o_ref`; a remote copy of it onto itself, to the right, with "
        "`recv_sems.at[i]`; start; wait.",
    ],
    explain="""After step i a device has the blocks `me - i - 1` to `me`. `copy.wait()` waits for the
    block that arrives, which is the one to send in the next step. Each block has a place of its own,
    so a fast neighbour can never overwrite anything.""",
)
