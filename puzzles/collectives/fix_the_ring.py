"""Puzzle 7: right in every plain run, wrong on chips."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET
from puzzles.collectives import barrier, neighbours

# %% [markdown]
# ## fix_the_ring: find the bug
#
# This kernel takes the maximum of all blocks (`lax.pmax`), around the ring and through two slots,
# with credits. A colleague made it faster: while the block in slot `here` is still leaving, the
# kernel already takes the maximum with the block that has arrived. So `copy.wait()` became
# `.wait_recv()`, for what arrives, and `.wait_send()`, for what leaves.
#
# It has passed every test for a year, and most runs in JAX's own simulator give the right
# numbers. Then a training job on a thousand chips gives a wrong maximum, once a week.
#
# Ask of each slot, as in `ring_all_reduce`:
#
# * Until when do I **read** it?
# * Until when do I **send** it?
# * When do I tell my left neighbour that it may overwrite it?
#
# Move one line. `show`, below, crosses out the copy that lands too early.


# %%
def fix_the_ring_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return lax.pmax(x, "x")


# %%
def fix_the_ring_kernel(x_ref, o_ref, slots_ref, send_sem, recv_sems, credits):
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

        @pl.when(i > 0)
        def _():
            pl.semaphore_wait(credits, 1)

        ### BEGIN SOLUTION
        copy.start()
        copy.wait_recv()
        o_ref[...] = jnp.maximum(o_ref[...], slots_ref[there])
        copy.wait_send()

        @pl.when(i < n - 2)
        def _():
            pl.semaphore_signal(credits, 1, device_id=(left,))

        ### END SOLUTION

    lax.fori_loop(0, n - 1, step, None)


def fix_the_ring(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        fix_the_ring_kernel,
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
# show(fix_the_ring)

# %% tags=["author"]
from puzzles import Puzzle
from puzzles.collectives.right_permute import fresh, make_inputs
from puzzles.collectives.ring_all_reduce import scale

PUZZLE = Puzzle(
    picture=False,  # a picture of the step would be the answer
    axes={"x": 4},
    spec=fix_the_ring_spec,
    solution=fix_the_ring,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, x=3), dict(M=8, N=128, x=8)],
    fresh=fresh,
    scale=scale,
    hints=[
        "When the credit is given, the left neighbour may write slot `here` at once. Does "
        "anything still need this slot?",
        "`.wait_recv()` says that the other slot has been filled. Only `.wait_send()` says "
        "that `here` has left.",
        "The order of a step: start, wait for the arrival, compute, wait for the departure, give "
        "the credit.",
    ],
    explain="""The credit hands slot `here` to the left neighbour. It was given while the copy out
    of that slot was still on its way, so the neighbour's next block could land in the middle of it.
    In most runs on a CPU a copy is over at once, and nothing shows the bug. Here the simulator
    asks, for each pair of events, whether anything forces one to come first.""",
    starter="gives the credit while the slot is still being sent",
)
