"""Puzzle 3: two slots, and a copy that is always under way."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## double_buffered_sum: the next copy is on its way
#
# With two **slots**, copies and sums need not take turns: while you sum one slot, the next rows are
# copied into the other.
#
# ![Copies and sums as bars over time. Through one buffer they take turns. Through two slots, the rows for one slot are in flight while the other slot is summed.](diagrams/pipelines/double_buffered_sum.svg)
#
# Rows `i` use slot `i % 2`. One round goes like this:
#
# 1. start the copy of rows `i + 1` into the other slot, if there are such rows;
# 2. wait for rows `i`;
# 3. sum them.
#
# Since step 1 comes first, the next copy is under way while you wait for the current one. The very first
# copy starts before the loop, in the **prologue**.
#
# Each slot has a semaphore of its own. It counts the **bytes** that have arrived, from whichever
# copy: if both slots shared a semaphore, the other copy's bytes could end your wait.
# `jax.lax.rem(i, 2)` is `i % 2` if `i` is not negative.


# %%
def double_buffered_sum_spec(x: Float[Array, "M N"]) -> Float[Array, "1 N"]:
    return jnp.sum(x, axis=0, keepdims=True)


# %%
def double_buffered_sum_kernel(x_ref, o_ref, slots_ref, sems):
    n = x_ref.shape[0] // 64

    def fetch(i, slot):
        rows = x_ref.at[pl.ds(i * 64, 64)]
        return pltpu.make_async_copy(rows, slots_ref.at[slot], sems.at[slot])

    o_ref[...] = jnp.zeros_like(o_ref)
    # The prologue.
    ### BEGIN SOLUTION
    fetch(0, 0).start()
    ### END SOLUTION

    def add(i, _):
        slot = jax.lax.rem(i, 2)

        # Start the next copy, if there is one, and wait for this one.
        ### BEGIN SOLUTION
        @pl.when(i + 1 < n)
        def _():
            fetch(i + 1, 1 - slot).start()

        fetch(i, slot).wait()
        ### END SOLUTION
        o_ref[...] += jnp.sum(slots_ref[slot], axis=0, keepdims=True)

    jax.lax.fori_loop(0, n, add, None)


def double_buffered_sum(x: Float[Array, "M N"]) -> Float[Array, "1 N"]:
    N = x.shape[1]
    return pl.pallas_call(
        double_buffered_sum_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct((1, N), x.dtype),
        scratch_shapes=[pltpu.VMEM((2, 64, N), x.dtype), pltpu.SemaphoreType.DMA((2,))],
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# Compare with the picture of `stream_sum`: while one slot is summed, the other is filled. `show`
# crosses out a slot that you touch too early, so call it before you are done.

# %% active="ipynb"
# show(double_buffered_sum)

# %% [markdown]
# At each wait of the reference two copies are in flight, this round's and the next round's; at the
# last wait there is only one. If you wait first and start the next copy afterwards, only one copy
# is ever in flight at a wait: the copies take turns. So, if copies take longer than sums, you pay
# the full latency of every copy. With two in flight, latencies overlap.
#
# How much does it save? For x of 8,192 × 1,024 numbers on TPU v5e, the compiler in libtpu
# estimates 222,024 cycles for `stream_sum` and 12,847 for the reference here. (If libtpu is
# installed, `puzzles.estimated_cycles(fn, x)` runs it.) The first number includes each copy's
# latency and bytes. The second is too low: a copy that was started a round earlier counts as done,
# whatever its size. But the 32 MiB alone take about 61,400 cycles (820 GB/s, 1.5 GHz). So expect at
# most 3.6 times the speed, not seventeen.

# %% active="ipynb"
# receipt(double_buffered_sum, jnp.ones((512, 256)))

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import overlapped


def make_inputs(key, M, N):
    return (array(rng(key).normal(0.5, 1, (M, N)), jnp.float32),)


def audit(launch: Launch) -> None:
    overlapped(launch)


def scale(M=4096, N=2048):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def par(launch: Launch) -> str:
    x = (launch.waits or {}).get(launch.inputs[0].name)
    if not x:
        return ""
    return (
        f"work hides {x.count - x.exposed} of {x.count} copies, up to {x.most} in flight at a wait"
    )


PUZZLE = Puzzle(
    spec=double_buffered_sum_spec,
    solution=double_buffered_sum,
    inputs=make_inputs,
    cases=[dict(M=320, N=384), dict(M=64, N=256)],
    fresh=lambda r: (
        dict(M=320, N=384) if r.integers(4) else dict(M=64 * int(r.choice([6, 33, 34, 41])), N=128)
    ),
    hints=[
        "Play three rounds on paper. Before round 0, which copy must already be under way? In "
        "the last round, is there a next one?",
        "`fetch(i, slot)` describes a copy; `.start()` and `.wait()` may be called on two "
        "descriptions of the same copy. The other slot is `1 - slot`. `@pl.when` skips a start if "
        "there are no rows for it.",
        "Before the loop: start copy 0, into slot 0. In a round: under `pl.when`, start copy i "
        "+ 1 into the other slot; after it, wait for copy i in this slot.",
    ],
    explain="""While a slot is summed, the next rows fly into another one. In the reference the
    start comes before the wait, so that the next copy is under way while this one is still waited
    for; and the slot it goes to was summed one round ago.""",
    audit=audit,
    scale=scale,
    par=par,
)
