"""Rung 3: two slots, and a copy that is always under way."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## double_buffered_sum: the next copy is on its way
#
# With two **slots**, copies and sums need not take turns: while you sum one slot, the next rows fly
# into the other.
#
# ![Copies and sums as bars over time. Through one buffer they take turns. Through two slots, the rows for one slot are in flight while the other slot is summed.](diagrams/pipelines/double_buffered_sum.svg)
#
# Rows `i` use slot `i % 2`. One round goes like this:
#
# 1. start the copy of rows `i + 1` into the other slot, if there are such rows;
# 2. wait for rows `i`;
# 3. sum them.
#
# With 1 first, the next copy is under way while you wait for this one. And who starts the very first?
# Nobody in the loop: that is the **prologue**.
#
# Each slot has a semaphore of its own. It counts the **bytes** that have come, and not whose they are:
# with one for both slots, the other copy's bytes could end your wait. `jax.lax.rem(i, 2)` is `i % 2`,
# for `i` from 0 on.

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
# Compare with the picture of `stream_sum`: while a slot is summed, another one is filled. A slot
# that you touch too early is crossed, so call `show` before you are done, too.

# %% active="ipynb"
# show(double_buffered_sum)

# %% [markdown]
# At each wait of the reference two copies are in flight, the one that is waited for and the next; only
# at the last wait is it alone. Who waits first and then starts the next copy has one in flight at all
# waits: its copies take turns, and where they take longer than the sums, each adds its own latency to
# the time. The latencies of two in flight overlap.
#
# What does it bring? libtpu, Google's compiler, estimates for TPU v5e and x of 8,192 × 1,024 numbers
# 222,024 cycles for `stream_sum` and 12,847 for the reference here; where libtpu is installed,
# `puzzles.estimated_cycles(fn, x)` asks it. The first number holds what each copy takes, to begin and to bring
# its bytes. The second is too good: a copy that was started a round earlier counts as done, whatever
# its size. But the 32 MiB alone take about 61,400 cycles (820 GB/s, 1.5 GHz). So hope for 3.6 times
# the speed at most, and not for seventeen.

# %% active="ipynb"
# receipt(double_buffered_sum, jnp.ones((512, 256)))

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
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
    return f"work hides {x.count - x.exposed} of {x.count} copies, up to {x.most} in flight at a wait"


_FIRST = "    fetch(0, 0).start()\n"
_NEXT = """        @pl.when(i + 1 < n)
        def _():
            fetch(i + 1, 1 - slot).start()

"""
_WAIT = "        fetch(i, slot).wait()\n"
_ADD = "        o_ref[...] += jnp.sum(slots_ref[slot], axis=0, keepdims=True)\n"
_USE = "`o_ref[...] += jnp.sum(slots_ref[slot], axis=0, keepdims=True)` reads "

PUZZLE = Puzzle(
    spec=double_buffered_sum_spec,
    solution=double_buffered_sum,
    inputs=make_inputs,
    cases=[dict(M=320, N=384), dict(M=64, N=256)],
    fresh=lambda r: dict(M=320, N=384) if r.integers(4) else dict(M=64 * int(r.choice([6, 33, 34, 41])), N=128),
    hints=[
        "Play three rounds on paper. Before round 0, which copy must already be under way? In the last "
        "round, is there a next one?",
        "`fetch(i, slot)` describes a copy; `.start()` and `.wait()` may be called on two descriptions of "
        "the same one. The other slot is `1 - slot`. `@pl.when` guards a start that has no rows.",
        "Before the loop: start copy 0, into slot 0. In a round: under `pl.when`, start copy i + 1 into "
        "the other slot; after it, wait for copy i in this slot.",
    ],
    explain="""While a slot is summed, the next rows fly into another one. In the reference the
    start comes before the wait, so that the next copy is under way while this one is still waited
    for; and the slot it goes to was summed one round ago.""",
    mistakes=[
        Mistake(
            "waits before it prefetches, and has no prologue",
            edits=(
                (_FIRST, "    pass\n"),
                (_NEXT + _WAIT, "        fetch(i, slot).start()\n" + _WAIT),
            ),
            says="at 5 of 5 waits for a copy from `x_ref`, the kernel has computed nothing since that copy started",
            stage="work",
        ),
        Mistake(
            "starts the next copy only after the sum",
            old=_NEXT + _WAIT,
            new=_WAIT,
            edits=((_ADD, _ADD + "\n" + _NEXT.rstrip("\n") + "\n"),),
            says="Start the next copy before you compute with this one",
            stage="work",
        ),
        Mistake(
            "never waits",
            old=_WAIT,
            new="",
            says=_USE + "`slots_ref[0]`, and the copy into it, started in `fetch(0, 0).start()`",
            stage="memory",
        ),
        Mistake(
            "waits after the sum",
            old=_WAIT,
            new="",
            edits=((_ADD, _ADD + _WAIT),),
            says="has not been waited for. On a TPU the old numbers may still be there",
            stage="memory",
        ),
        Mistake(
            "waits for the next copy",
            old=_WAIT,
            new=_NEXT.replace(".start()", ".wait()").rstrip("\n") + "\n",
            says="The last wait was for a copy into `slots_ref[1]`",
            stage="memory",
        ),
        Mistake(
            "has one semaphore for both slots",
            old="slots_ref.at[slot], sems.at[slot])",
            new="slots_ref.at[slot], sems.at[0])",
            says="There was a wait on its semaphore, but 2 copies were in flight on it",
            stage="memory",
        ),
        Mistake(
            "starts the next copy on this slot's semaphore",
            old="            fetch(i + 1, 1 - slot).start()\n",
            new="            rows = x_ref.at[pl.ds((i + 1) * 64, 64)]\n"
            "            pltpu.make_async_copy(rows, slots_ref.at[1 - slot], sems.at[slot]).start()\n",
            says="any of them may have ended that wait: give each its own",
            stage="memory",
        ),
        Mistake(
            "prefetches into the slot in use",
            old="            fetch(i + 1, 1 - slot).start()\n",
            new="            fetch(i + 1, slot).start()\n",
            says="the next rows come into the slot that is still to be summed, and push out the rows "
            "there: `1 - slot` is the other one",
        ),
        Mistake(
            "prefetches past the end",
            old=_NEXT,
            new="        fetch(i + 1, 1 - slot).start()\n",
            says="starts reaches outside `x_ref`, which has shape (320, 384): `x_ref[320:384, 0:384]`",
            stage="memory",
        ),
        Mistake(
            "guards the prefetch one round too late",
            old="pl.when(i + 1 < n)",
            new="pl.when(i < n)",
            says="Check the bounds of what is copied",
            stage="memory",
        ),
        Mistake(
            "waits once too often after the loop",
            old="    jax.lax.fori_loop(0, n, add, None)\n",
            new="    jax.lax.fori_loop(0, n, add, None)\n    fetch(0, 0).wait()\n",
            says="waits for a copy that is not on its way",
            stage="memory",
        ),
        Mistake(
            "forgets the prologue",
            old=_FIRST,
            new="    pass\n",
            says="nobody starts the copy of the first rows: slot 0 holds what lay there (NaN here)",
        ),
        Mistake(
            "stops prefetching one round early",
            old="pl.when(i + 1 < n)",
            new="pl.when(i + 2 < n)",
            says="the last rows never come, and an older block is added in their place: rows i + 1 "
            "exist as long as i + 1 < n",
        ),
        Mistake(
            "starts the first copy twice",
            old=_FIRST,
            new=_FIRST + "    fetch(0, 1).start()\n",
            says="has not been waited for: on a TPU it may land on top of what is written now",
            stage="memory",
        ),
        Mistake(
            "fetches the rows in use once more",
            old="            fetch(i + 1, 1 - slot).start()\n",
            new="            fetch(i, 1 - slot).start()\n",
            says="the first rows are added twice, and the last never: the rows that come next are `i + 1`",
        ),
        Mistake(
            "fetches rows two ahead",
            old="            fetch(i + 1, 1 - slot).start()\n",
            new="            fetch(i + 2, 1 - slot).start()\n",
            says="rows 1 are skipped: the next rows after `i` are `i + 1`",
        ),
        Mistake(
            "holds all of x in its slots",
            edits=(
                ("pltpu.VMEM((2, 64, N), x.dtype)", "pltpu.VMEM((x.shape[0] // 64, 64, N), x.dtype)"),
                ("pltpu.SemaphoreType.DMA((2,))", "pltpu.SemaphoreType.DMA((x.shape[0] // 64,))"),
                ("slot = jax.lax.rem(i, 2)", "slot = i"),
                ("fetch(i + 1, 1 - slot)", "fetch(i + 1, slot + 1)"),
            ),
            says="`slots_ref` takes 32 MiB",
            stage="work",
        ),
        Mistake(
            "starts with round 1 in the prologue",
            old="    fetch(0, 0).start()",
            new="    fetch(1, 0).start()",
            says="the first wait is for round 0: `fetch(0, 0)`",
        ),
    ],
    alternatives=[
        Alternative(
            "waits before it starts the next copy",
            old=_NEXT + _WAIT,
            new=_WAIT + "\n" + _NEXT.rstrip("\n") + "\n",
        ),
        Alternative(
            "waits in another description, and prefetches with jnp.where on the slot",
            old="            fetch(i + 1, 1 - slot).start()\n",
            new="            fetch(i + 1, jnp.where(slot == 0, 1, 0)).start()\n",
        ),
        Alternative(
            "keeps three slots, two copies ahead",
            edits=(
                ("pltpu.VMEM((2, 64, N)", "pltpu.VMEM((3, 64, N)"),
                ("pltpu.SemaphoreType.DMA((2,))", "pltpu.SemaphoreType.DMA((3,))"),
                (_FIRST, _FIRST + "    if n > 1:\n        fetch(1, 1).start()\n"),
                ("slot = jax.lax.rem(i, 2)", "slot = jax.lax.rem(i, 3)"),
                ("pl.when(i + 1 < n)", "pl.when(i + 2 < n)"),
                ("fetch(i + 1, 1 - slot)", "fetch(i + 2, jax.lax.rem(i + 2, 3))"),
            ),
        ),
        Alternative(
            "brings each slot in two copies",
            edits=(
                ("    def fetch(i, slot):\n", "    def fetch(i, slot, half):\n"),
                ("pl.ds(i * 64, 64)", "pl.ds(pl.multiple_of(i * 64 + half * 32, 32), 32)"),
                ("slots_ref.at[slot], sems", "slots_ref.at[slot, pl.ds(half * 32, 32)], sems"),
                (_FIRST, "    fetch(0, 0, 0).start()\n    fetch(0, 0, 1).start()\n"),
                (
                    "            fetch(i + 1, 1 - slot).start()\n",
                    "            fetch(i + 1, 1 - slot, 0).start()\n"
                    "            fetch(i + 1, 1 - slot, 1).start()\n",
                ),
                (_WAIT, "        fetch(i, slot, 0).wait()\n        fetch(i, slot, 1).wait()\n"),
            ),
        ),
        Alternative(
            "takes the last round out of the loop",
            code="""
def double_buffered_sum_kernel(x_ref, o_ref, slots_ref, sems):
    n = x_ref.shape[0] // 64

    def fetch(i, slot):
        rows = x_ref.at[pl.ds(i * 64, 64)]
        return pltpu.make_async_copy(rows, slots_ref.at[slot], sems.at[slot])

    def add(i):
        fetch(i, i % 2).wait()
        o_ref[...] += jnp.sum(slots_ref[i % 2], axis=0, keepdims=True)

    fetch(0, 0).start()
    o_ref[...] = jnp.zeros_like(o_ref)

    def body(i, _):
        fetch(i + 1, (i + 1) % 2).start()
        add(i)

    jax.lax.fori_loop(0, n - 1, body, None)
    add(n - 1)
""",
        ),
        Alternative(
            "lets emit_pipeline do it",
            code="""
def double_buffered_sum(x):
    M, N = x.shape

    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)

        def add(rows_ref):
            o_ref[...] += jnp.sum(rows_ref[...], axis=0, keepdims=True)

        spec = pl.BlockSpec((64, N), lambda i: (i, 0))
        pltpu.emit_pipeline(add, grid=(M // 64,), in_specs=[spec])(x_ref)

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct((1, N), x.dtype),
        interpret=INTERPRET,
    )(x)
""",
        ),
    ],
    audit=audit,
    scale=scale,
    par=par,
)
