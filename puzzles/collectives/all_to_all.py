"""Puzzle 10: everybody sends to everybody."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET
from puzzles.collectives import barrier

# %% [markdown]
# ## all_to_all: a transpose across devices
#
# Each device has one chunk for every device. `x[d]` on device `s` must become `o[s]` on device `d`:
# rows become columns.
#
# ```text
# before:  device 0   device 1   device 2         after:  device 0   device 1   device 2
#   x[0]      00         10         20              o[0]     00         01         02
#   x[1]      01         11         21              o[1]     10         11         12
#   x[2]      02         12         22              o[2]     20         21         22
# ```
#
# There is no ring: start all `n - 1` remote copies at once, and let the chips route them. (Copies
# may contend for links.) Two things change:
#
# * You write to everybody, so `barrier` must name every other device.
# * **One** receive semaphore is enough, because you read nothing before all chunks have arrived. It
#   counts the bytes of all senders: wait for the bytes of `n - 1` chunks.
#
# On v5e a copy can go only to a chip whose distance is a power of two, as [JAX's
# documentation](https://docs.jax.dev/en/latest/pallas/tpu/distributed.html) says. The
# ends of a row of four v5e chips are 3 apart and cannot copy to each other: neither this kernel nor a
# ring in row order runs there.


# %%
def all_to_all_spec(x: Float[Array, "D M N"]) -> Float[Array, "D M N"]:
    return lax.all_gather(x, "x")[:, lax.axis_index("x")]


# %%
def all_to_all_kernel(x_ref, o_ref, local_sem, send_sem, recv_sem):
    me, n = lax.axis_index("x"), lax.axis_size("x")
    ### BEGIN SOLUTION
    others = [lax.rem(me + k, n) for k in range(1, n)]
    barrier(*others)
    own = pltpu.make_async_copy(x_ref.at[me], o_ref.at[me], local_sem)
    own.start()
    sends = [
        pltpu.make_async_remote_copy(
            x_ref.at[other], o_ref.at[me], send_sem, recv_sem, device_id=(other,)
        )
        for other in others
    ]
    for send in sends:
        send.start()
    for send in sends:
        send.wait()
    own.wait()
    ### END SOLUTION


def all_to_all(x: Float[Array, "D M N"]) -> Float[Array, "D M N"]:
    return pl.pallas_call(
        all_to_all_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 3,
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x)


# %% active="ipynb"
# show(all_to_all)

# %% tags=["author"]
import math

import jax.numpy as jnp

from puzzles import Launch, Puzzle
from puzzles._simulator import Wire
from puzzles.collectives._audits import at_once
from puzzles.collectives.right_permute import fresh
from puzzles.collectives.ring_reduce_scatter import make_inputs


def audit(launch: Launch, *, wire: Wire) -> None:
    at_once(wire, wire.devices - 1)
    x = launch.inputs[0]
    chunks = launch.hbm_bytes_read // (math.prod(x.shape[1:]) * x.dtype.itemsize)
    assert chunks <= wire.devices, (
        f"each device copies {chunks} chunks, but it has {wire.devices}: copy each chunk once. Its "
        "own chunk needs no copy to another device, so the others are `me + k` for `k` from 1"
    )


def scale(M=1024, N=1024):
    return (jax.ShapeDtypeStruct((4, 4, M, N), jnp.bfloat16),)


PUZZLE = Puzzle(
    picture=False,  # the table above is the picture
    axes={"x": 4},
    spec=all_to_all_spec,
    solution=all_to_all,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, x=3), dict(M=8, N=128, x=8)],
    fresh=fresh,
    audit=audit,
    scale=scale,
    hints=[
        "Your chunk for device `d` is `x_ref.at[d]`. Where does it belong on device `d`?",
        "The other devices are `me + k`, modulo `n`, for `k` from 1 to `n - 1`. The target is "
        "`o_ref.at[me]` everywhere. Your own chunk is a local copy.",
        "List the others; meet them at the barrier; start the local copy and all remote copies; "
        "then wait for all of them.",
    ],
    explain="""Each device sends n - 1 chunks and receives n - 1 chunks of the same size. Whichever
    arrive first, a wait for the bytes of all of them ends only when all have arrived.""",
)
