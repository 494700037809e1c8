"""Puzzle 4: a barrier of one's own."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## barrier_first: is my neighbour there yet?
#
# Devices do not start a kernel at the same moment. If you send to a device that is still running
# the previous kernel, your data may land in memory which that kernel uses.
#
# Until now Pallas took care of it: before the kernel, all devices waited for one another. A kernel
# that uses a **barrier semaphore** does this itself, and waits only for the devices that it needs:
#
# ```python
# sem = pltpu.get_barrier_semaphore()            # chosen by the launch's collective_id
# pl.semaphore_signal(sem, 1, device_id=(2,))    # adds 1 to it on device 2
# pl.semaphore_wait(sem, 3)                      # waits until it is at least 3, then takes 3 off
# ```
#
# ```text
# left neighbour   ── will write to me ──>   me   ── I will write to it ──>   right neighbour
#        <──────────── signal ────────────        <──────────── signal ────────────
# ```
#
# Who must know that you are here? And whose signal must you wait for before the copy starts?


# %%
def barrier_first_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    n = lax.axis_size("x")
    return lax.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)])


# %%
def barrier_first_kernel(x_ref, o_ref, send_sem, recv_sem):
    me, n = lax.axis_index("x"), lax.axis_size("x")
    left, right = lax.rem(me + n - 1, n), lax.rem(me + 1, n)
    # Make sure that the right neighbour is in the kernel.
    ### BEGIN SOLUTION
    arrived = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(arrived, 1, device_id=(left,))
    pl.semaphore_wait(arrived, 1)
    ### END SOLUTION
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send_sem, recv_sem, device_id=(right,))
    copy.start()
    copy.wait()


def barrier_first(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        barrier_first_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# From here on two functions of the project save you typing: `neighbours()` returns
# `(me, left, right, n)`, and `barrier(left, right)` signals both and waits for two signals. In one
# program, kernels with different barriers need different `collective_id`s.

# %% tags=["author"]
from puzzles import Puzzle
from puzzles.collectives.right_permute import fresh, make_inputs, scale

PUZZLE = Puzzle(
    picture=False,  # the signals above are the picture
    axes={"x": 4},
    spec=barrier_first_spec,
    solution=barrier_first,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, x=3), dict(M=8, N=128, x=8)],
    fresh=fresh,
    scale=scale,
    hints=[
        "You write to your right neighbour, so you must know that it is here. Who must know that "
        "you are here?",
        "`pl.semaphore_signal` with `device_id` signals one device. `pl.semaphore_wait` waits for "
        "the signals that others send to you.",
        "Get the semaphore; signal the device that writes to you; wait for a signal.",
    ],
    explain="""Signal whoever writes to you, and wait for whomever you write to. The wait ends with
    the right neighbour's signal, since it is the only one that signals this device. Many kernels
    signal both neighbours and wait for two signals, which is also right.""",
)
