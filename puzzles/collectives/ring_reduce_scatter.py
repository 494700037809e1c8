"""Puzzle 8: what travels is a sum."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET
from puzzles.collectives import barrier, neighbours

# %% [markdown]
# ## ring_reduce_scatter: a sum that grows on its way
#
# `ring_all_reduce` gave everybody the whole sum. Often each device needs only its share of the sum
# (`lax.psum_scatter`). Each device has one chunk for every device, `x[0]` to `x[n - 1]`. Device `d`
# must end with the sum of `x[d]` over all devices.
#
# So let the **sum** travel. Its home is the device that needs it. The sum starts one device to the
# right of its home and goes around the ring. Each device adds its chunk for that home. The home adds
# last:
#
# ```text
# the sum for device 0:   starts on device 1  ->  2  ->  3  ->  0
# the sum for device 1:   starts on device 2  ->  3  ->  0  ->  1
# ```
#
# Which chunk does device `me` start with? In step `i` a sum arrives from the left. For which device
# is that sum?
#
# Each copy has `1 / n` of the bytes of `x`. A reduce-scatter and then an all-gather make an
# all-reduce that sends `2 (n - 1) / n` times the bytes of `x`, while `ring_all_reduce` sends
# `n - 1` times `x`.


# %%
def ring_reduce_scatter_spec(x: Float[Array, "D M N"]) -> Float[Array, "M N"]:
    return lax.psum_scatter(x, "x")


# %%
def ring_reduce_scatter_kernel(x_ref, o_ref, slots_ref, send_sem, recv_sems, credits):
    me, left, right, n = neighbours()
    barrier(left, right)
    # Slot 0 holds the sum that leaves in step 0: your chunk for which device?
    ### BEGIN SOLUTION
    slots_ref[0] = x_ref[left]
    ### END SOLUTION

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

        copy.start()
        # Wait, and add your chunk to the sum that arrives.
        ### BEGIN SOLUTION
        copy.wait()
        slots_ref[there] += x_ref[lax.rem(me - i - 2 + 2 * n, n)]
        ### END SOLUTION

        @pl.when(i < n - 2)
        def _():
            pl.semaphore_signal(credits, 1, device_id=(left,))

    lax.fori_loop(0, n - 1, step, None)
    o_ref[...] = slots_ref[(n - 1) % 2]


def ring_reduce_scatter(x: Float[Array, "D M N"]) -> Float[Array, "M N"]:
    chunk = x.shape[1:]
    return pl.pallas_call(
        ring_reduce_scatter_kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        out_shape=jax.ShapeDtypeStruct(chunk, x.dtype),
        scratch_shapes=[
            pltpu.VMEM((2, *chunk), x.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.REGULAR,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x)


# %% tags=["author"]
import jax.numpy as jnp

from puzzles import Puzzle, array, rng
from puzzles.collectives.right_permute import fresh


def make_inputs(key, x, M, N):
    return (array(rng(key).normal(0.3, 1, (x, x, M, N)), jnp.float32),)


def scale(M=256, N=1024):
    return (jax.ShapeDtypeStruct((4, 4, M, N), jnp.float32),)


PUZZLE = Puzzle(
    picture=False,  # the routes above are the picture
    axes={"x": 4},
    spec=ring_reduce_scatter_spec,
    solution=ring_reduce_scatter,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, x=3), dict(M=8, N=128, x=8)],
    fresh=fresh,
    scale=scale,
    slack={"transfers": 1.2},  # the first chunk may be copied into its slot
    hints=[
        "The sum for device `d` starts on device `d + 1`. So which sum starts on device `me`? And "
        "which arrives there in step 0?",
        "Start with `x_ref[left]`. In step `i` the sum for device `me - i - 2`, modulo `n`, "
        "arrives: add enough multiples of `n` before `lax.rem`.",
        "Before the loop one store into slot 0. In the step: wait, then add your chunk to the "
        "slot that was filled.",
    ],
    explain="""Device me receives in step 0 what its left neighbour started with: the sum for device
    me - 2. In each later step the sum is for the device before, and in the last step, n - 2, for
    device me - n, which is me. The sum that travels is as large as one chunk, however many chunks
    have been added.""",
)
