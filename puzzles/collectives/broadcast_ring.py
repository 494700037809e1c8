"""Puzzle 3: devices with different roles."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## broadcast_ring: first, middle, last
#
# Every device must end with the block of device 0. It goes from hand to hand: device 0 sends it to
# device 1, device 1 to device 2, and the last device keeps it. (The spec takes the first block of
# `lax.all_gather`.)
#
# ![Four lanes, and arrows that follow one another: from device 0 to 1, then 1 to 2, then 2 to 3](diagrams/collectives/broadcast_ring.svg)
#
# Now the devices have different roles: the first has nothing to wait for, and the last has nothing
# to send. Choose with `pl.when` on a device's number. A device that only sends or only receives
# cannot call `.wait()`, which waits for both. So there are two other waits:
#
# * `.wait_recv()` waits until data have **arrived** here. Call it on your own `copy`, though the
#   left neighbour sends the data: it waits for as many bytes as your `dst_ref` has.
# * `.wait_send()` waits until your **own** data have left.
#
# A device that waits for a copy that nobody sends waits for ever.


# %%
def broadcast_ring_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return lax.all_gather(x, "x")[0]


# %%
def broadcast_ring_kernel(x_ref, o_ref, local_sem, send_sem, recv_sem):
    me, n = lax.axis_index("x"), lax.axis_size("x")
    right = lax.rem(me + 1, n)
    copy = pltpu.make_async_remote_copy(o_ref, o_ref, send_sem, recv_sem, device_id=(right,))

    @pl.when(me == 0)
    def _():
        own = pltpu.make_async_copy(x_ref, o_ref, local_sem)
        own.start()
        own.wait()

    # Who waits for its left neighbour, and who sends to its right one?
    ### BEGIN SOLUTION
    @pl.when(me > 0)
    def _():
        copy.wait_recv()

    @pl.when(me < n - 1)
    def _():
        copy.start()
        copy.wait_send()

    ### END SOLUTION


def broadcast_ring(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        broadcast_ring_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 3,
        interpret=INTERPRET,
    )(x)


# %% tags=["author"]
from puzzles import Puzzle
from puzzles.collectives.right_permute import fresh, make_inputs, scale

PUZZLE = Puzzle(
    axes={"x": 4},
    spec=broadcast_ring_spec,
    solution=broadcast_ring,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, x=3), dict(M=8, N=128, x=8)],
    fresh=fresh,
    scale=scale,
    hints=[
        "Walk through three devices. What must device 1 have before it sends? What does the last "
        "device do?",
        "All but the first wait with `.wait_recv()`. All but the last start the copy and wait "
        "with `.wait_send()`.",
        "Two functions under `pl.when`: the first waits for the arrival, the second sends on and "
        "waits until the data have left.",
    ],
    explain="""A wait needs no copy of its own, only a description with the right semaphore and the
    right number of bytes. So a device can wait for data that another device sent.""",
)
