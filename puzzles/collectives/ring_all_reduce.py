"""Puzzle 6: two slots, and leave to overwrite them."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET
from puzzles.collectives import barrier, neighbours

# %% [markdown]
# ## ring_all_reduce: may I overwrite it?
#
# Every device must end with the sum of all blocks, like `lax.psum`. The blocks go around the ring,
# and each device adds those that arrive. Two slots are enough: in step `i` the block in slot `i %
# 2` goes into the other slot of the right neighbour.
#
# Now a slot is written again: a trap. You wait for data from your **left** neighbour. News of the
# **right** neighbour reaches you only around the whole ring. So if it stalls in step 0, you can be in
# step `n - 2`, and overwrite a slot that it is still sending.
#
# The remedy is a **credit**: a signal to a `REGULAR` semaphore, which counts signals, not bytes.
#
# ```text
# me:                wait for a credit ── copy ──>  slot of the right neighbour
# right neighbour:   ... has read the slot and sent it on ── gives a credit back to me
# ```
#
# At first slot 1 is free everywhere: step 0 needs no credit. At the end all semaphores must be back
# at zero: give only credits that will be used.


# %%
def ring_all_reduce_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return lax.psum(x, "x")


# %%
def ring_all_reduce_kernel(x_ref, o_ref, slots_ref, send_sem, recv_sems, credits):
    _, left, right, n = neighbours()
    barrier(left, right)
    o_ref[...] = x_ref[...]
    slots_ref[0] = x_ref[...]

    def step(i, _):
        here, there = lax.rem(i, 2), lax.rem(i + 1, 2)
        copy = pltpu.make_async_remote_copy(
            slots_ref.at[here],
            slots_ref.at[there],
            send_sem,
            recv_sems.at[there],
            device_id=(right,),
        )

        # Wait for a credit, copy, add what has arrived, give a credit.
        ### BEGIN SOLUTION
        @pl.when(i > 0)
        def _():
            pl.semaphore_wait(credits, 1)

        copy.start()
        copy.wait()
        o_ref[...] += slots_ref[there]

        @pl.when(i < n - 2)
        def _():
            pl.semaphore_signal(credits, 1, device_id=(left,))

        ### END SOLUTION

    lax.fori_loop(0, n - 1, step, None)


def ring_all_reduce(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        ring_all_reduce_kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[
            pltpu.VMEM((2, *x.shape), x.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.REGULAR,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x)


# %% active="ipynb"
# show(ring_all_reduce)

# %% tags=["author"]
import jax.numpy as jnp

from puzzles import Puzzle
from puzzles.collectives.right_permute import fresh, make_inputs


def scale(M=512, N=1024):
    return (jax.ShapeDtypeStruct((4, M, N), jnp.float32),)


PUZZLE = Puzzle(
    picture=False,  # the credit above is the picture; `show` draws the lanes
    axes={"x": 4},
    spec=ring_all_reduce_spec,
    solution=ring_all_reduce,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, x=3), dict(M=8, N=128, x=8)],
    fresh=fresh,
    scale=scale,
    hints=[
        "A slot is free when its owner has read it and has sent it on. Who wants to write it then, "
        "and how does that device learn of it?",
        "`pl.semaphore_wait` for a credit before the copy, but not in step 0. "
        "`pl.semaphore_signal` to the left neighbour, but only if it will write that slot again.",
        "In a step: under `pl.when`, wait for a credit; start the copy and wait for it; add; under "
        "`pl.when`, give a credit to the left. Each device gives n - 2 credits in all.",
    ],
    explain="""In step i the slot `here` leaves, and `copy.wait()` returns when it has left. Then the
    left neighbour may write it, which it does in step i + 1. So the credit of step i is used in step
    i + 1, and the last step, n - 2, gives none.""",
)
