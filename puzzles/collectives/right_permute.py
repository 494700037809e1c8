"""Puzzle 1: one remote copy."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## right_permute: one remote copy
#
# The devices form a ring. Each gives its block to its right neighbour, as `lax.ppermute` does:
# 0 to 1, 1 to 2, and the last to 0.
#
# ![Four lanes, one for each device, and an arrow from each lane to the next](diagrams/collectives/right_permute.svg)
#
# All devices run the same kernel. `lax.axis_index("x")` is a device's own number, and
# `lax.axis_size("x")` is the number of devices along the axis `"x"`. A remote copy is **pushed**:
#
# ```python
# copy = pltpu.make_async_remote_copy(src_ref, dst_ref, send_sem, recv_sem, device_id=(3,))
# ```
#
# `src_ref` is in the memory of the device that runs this line, `dst_ref` in that of device 3.
# `send_sem` tells the sender that its data have left. `recv_sem` tells device 3 that they have
# arrived. So your own `o_ref` is filled by a line that your left neighbour runs, and `.wait()` waits
# for both: your block has left, and another one has arrived here.


# %%
def right_permute_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    n = lax.axis_size("x")
    return lax.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)])


# %%
def right_permute_kernel(x_ref, o_ref, send_sem, recv_sem):
    ### BEGIN SOLUTION
    me, n = lax.axis_index("x"), lax.axis_size("x")
    right = lax.rem(me + 1, n)
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send_sem, recv_sem, device_id=(right,))
    copy.start()
    copy.wait()
    ### END SOLUTION


def right_permute(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        right_permute_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# `on_devices` runs your function on a mesh. The first axis of the arrays counts the devices. On a
# machine with enough TPU chips it runs on them; everywhere else NumPy simulates the devices.

# %% active="ipynb"
# x = jnp.arange(4.0).reshape(4, 1, 1) * jnp.ones((4, 8, 128))
# print(on_devices(right_permute, x, axes={"x": 4})[:, 0, 0])  # device 0 has what device 3 had
# show(right_permute)

# %% tags=["author"]
import jax.numpy as jnp

from puzzles import Puzzle, array, rng


def make_inputs(key, x, M, N):
    return (array(rng(key).normal(0.3, 1, (x, M, N)), jnp.float32),)


def scale(M=4096, N=2048):
    return (jax.ShapeDtypeStruct((4, M, N), jnp.float32),)


def fresh(r):
    return dict(M=8 * int(r.choice([1, 3])), N=128, x=int(r.choice([3, 4, 5])))


PUZZLE = Puzzle(
    axes={"x": 4},
    spec=right_permute_spec,
    solution=right_permute,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, x=3), dict(M=8, N=128, x=8)],
    fresh=fresh,
    scale=scale,
    hints=[
        "Write what one device does. It never fetches: it sends, and its left neighbour fills its "
        "`o_ref`. What is the number of its right neighbour, and what is it on the last device?",
        "Make the copy from `x_ref` to `o_ref`, with `device_id` a tuple of one number, start it "
        "and wait for it.",
        "Four steps: this device's number and the number of devices; the right neighbour, modulo "
        "the number of devices; the description of the copy; start and wait.",
    ],
    explain="""Every device runs one copy and waits for two ends: that of its own copy, counted by
    `send_sem`, and that of its left neighbour's copy, counted by `recv_sem`. `dst_ref` names a Ref
    of this kernel, but it means the same Ref in the memory of device `device_id`.""",
)
