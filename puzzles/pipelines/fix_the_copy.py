"""Puzzle 4: right under interpret=True, garbage on a TPU."""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## fix_the_copy: find the bug
#
# This kernel doubles a long array, 64 rows a round. Rows come into two slots of `in_ref` and leave
# from two slots of `out_ref`, and all four copies may be in flight at once.
#
# Under `interpret=True` every number is right: there a copy is over as soon as it is started, and
# `.wait()` has nothing to do. On a TPU, before the wait, a slot may hold old rows, new rows, or
# some of both: you get garbage now and then.
#
# Ask two questions in each round:
#
# * Has the data that I want to **read** arrived?
# * Is the slot of `out_ref` that I want to **write** free again? Two rounds ago, a copy out of it
#   started.
#
# Stuck? `show`, below, marks the place.


# %%
def fix_the_copy_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return 2 * x


# %%
def fix_the_copy_kernel(x_ref, o_ref, in_ref, out_ref, in_sems, out_sems):
    n = x_ref.shape[0] // 64

    def fetch(i, slot):
        rows = x_ref.at[pl.ds(i * 64, 64)]
        return pltpu.make_async_copy(rows, in_ref.at[slot], in_sems.at[slot])

    def send(i, slot):
        rows = o_ref.at[pl.ds(i * 64, 64)]
        return pltpu.make_async_copy(out_ref.at[slot], rows, out_sems.at[slot])

    fetch(0, 0).start()

    def double(i, _):
        slot = jax.lax.rem(i, 2)

        @pl.when(i + 1 < n)
        def _():
            fetch(i + 1, 1 - slot).start()

        ### BEGIN SOLUTION
        @pl.when(i >= 2)
        def _():
            send(i - 2, slot).wait()

        fetch(i, slot).wait()
        out_ref[slot] = 2 * in_ref[slot]
        send(i, slot).start()
        ### END SOLUTION

    jax.lax.fori_loop(0, n, double, None)

    for i in range(max(0, n - 2), n):  # the last two are still on their way
        send(i, i % 2).wait()


def fix_the_copy(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    M, N = x.shape
    two_slots = pltpu.VMEM((2, 64, N), x.dtype)
    return pl.pallas_call(
        fix_the_copy_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        scratch_shapes=[two_slots, two_slots, *2 * [pltpu.SemaphoreType.DMA((2,))]],
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# `show` crosses out each slot that is touched too early, and quotes the line.

# %% active="ipynb"
# show(fix_the_copy)

# %% tags=["author"]
import jax.numpy as jnp

from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import overlapped


def make_inputs(key, M, N):
    return (array(rng(key).normal(size=(M, N)), jnp.float32),)


def audit(launch: Launch) -> None:
    overlapped(launch)


def scale(M=4096, N=2048):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


PUZZLE = Puzzle(
    picture=False,  # a picture of the round would be the answer
    spec=fix_the_copy_spec,
    solution=fix_the_copy,
    inputs=make_inputs,
    cases=[dict(M=320, N=384), dict(M=64, N=256)],
    fresh=lambda r: (
        dict(M=320, N=384) if r.integers(4) else dict(M=64 * int(r.choice([6, 33, 34, 41])), N=128)
    ),
    hints=[
        "Go through one round with the two questions. Which line reads data that may not have "
        "arrived?",
        "`.wait()` on the incoming copy has to stand between its `.start()`, a round earlier "
        "or before the loop, and the first line that reads its slot.",
        "Only the order is wrong. In a round: free the outgoing slot, make sure of the "
        "incoming one, compute, copy out.",
    ],
    explain="""The wait for the incoming rows comes before the line that reads them. In the
    reference the copy of the next rows starts before both waits, so it is in flight during them.""",
    starter="waits after the use",
    audit=audit,
    scale=scale,
)
