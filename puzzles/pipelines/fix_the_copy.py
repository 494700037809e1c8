"""Rung 4: right under interpret=True, garbage on a TPU."""

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
# `.wait()` has nothing to do. On a TPU, before the wait, a slot may hold old rows, the new ones, or a
# part of them: you get garbage, now and then.
#
# Ask two questions in each round:
#
# * Is what I want to **read** there yet?
# * Is the slot that I want to **write** free again? Two rounds ago a copy left from it.
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
# `show` crosses each slot that is touched too early, and quotes the line.

# %% active="ipynb"
# show(fix_the_copy)

# %% tags=["author"]
import jax.numpy as jnp

from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.pipelines._audits import overlapped


def make_inputs(key, M, N):
    return (array(rng(key).normal(size=(M, N)), jnp.float32),)


def audit(launch: Launch) -> None:
    overlapped(launch)


def scale(M=4096, N=2048):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


_LEFT = """        @pl.when(i >= 2)
        def _():
            send(i - 2, slot).wait()

"""
_CAME = "        fetch(i, slot).wait()\n"
_WORK = "        out_ref[slot] = 2 * in_ref[slot]\n"
_SEND = "        send(i, slot).start()\n"
_TAIL = """    for i in range(max(0, n - 2), n):  # the last two are still on their way
        send(i, i % 2).wait()
"""

PUZZLE = Puzzle(
    picture=False,  # a picture of the round would be the answer
    spec=fix_the_copy_spec,
    solution=fix_the_copy,
    inputs=make_inputs,
    cases=[dict(M=320, N=384), dict(M=64, N=256)],
    fresh=lambda r: dict(M=320, N=384) if r.integers(4) else dict(M=64 * int(r.choice([6, 33, 34, 41])), N=128),
    hints=[
        "Go through one round with the two questions. At which line is something read that may not be "
        "there?",
        "`.wait()` on the incoming copy has to stand between its `.start()`, a round earlier or before the loop, and the "
        "first line that reads its slot.",
        "Only the order is wrong. In a round: free the outgoing slot, make sure of the incoming one, "
        "compute, send.",
    ],
    explain="""The wait for the incoming rows stands before the line that reads them. In the
    reference the next rows are sent for before both waits: they fly meanwhile.""",
    starter="waits after the use",
    mistakes=[
        Mistake(
            "waits after the use",
            old=_LEFT + _CAME + _WORK + _SEND,
            new=_LEFT + _WORK + _SEND + _CAME,
            says="as you found it",
            stage="unsolved",
        ),
        Mistake(
            "waits for two at the end, however few there are",
            old="range(max(0, n - 2), n)",
            new="range(n - 2, n)",
            says="waits for a copy that is not on its way",
            stage="memory",
        ),
        Mistake(
            "waits for the incoming rows after they were sent away, outgoing first",
            old=_LEFT + _CAME + _WORK + _SEND,
            new=_WORK + _CAME + _LEFT + _SEND,
            says="`out_ref[slot] = 2 * in_ref[slot]` reads `in_ref[0]`, and the copy into it, started in "
            "`fetch(0, 0).start()`",
            stage="memory",
        ),
        Mistake(
            "never waits for the incoming rows",
            old=_CAME,
            new="",
            says="reads `in_ref[0]`, and the copy into it, started in `fetch(0, 0).start()`, has not been",
            stage="memory",
        ),
        Mistake(
            "writes a slot that has not left yet",
            old=_LEFT,
            new="",
            says="`out_ref[slot] = 2 * in_ref[slot]` writes `out_ref[0]`, and the copy out of it, started in",
            stage="memory",
        ),
        Mistake(
            "frees the slot after it has written it",
            old=_LEFT + _CAME + _WORK,
            new=_CAME + _WORK + "\n" + _LEFT,
            says="on a TPU it may carry away the new numbers",
            stage="memory",
        ),
        Mistake(
            "waits for the other slot to leave",
            old="        @pl.when(i >= 2)\n        def _():\n            send(i - 2, slot).wait()\n",
            new="        @pl.when(i >= 1)\n        def _():\n            send(i - 1, 1 - slot).wait()\n",
            says="waits for a copy that is not on its way",
            stage="memory",
        ),
        Mistake(
            "frees a slot from which nothing has left yet",
            old="pl.when(i >= 2)",
            new="pl.when(i >= 1)",
            says="Every `.wait()` needs its own `.start()` on the same semaphore",
            stage="memory",
        ),
        Mistake(
            "does not wait for the last copies",
            old=_TAIL,
            new="",
            says="ends with a copy that nobody waited for: it was started in `send(i, slot).start()`",
            stage="memory",
        ),
        Mistake(
            "doubles the other slot",
            old="2 * in_ref[slot]",
            new="2 * in_ref[1 - slot]",
            says="each block holds the rows of the next: rows `i` are in slot `i % 2`",
        ),
        Mistake(
            "sends before it computes",
            old=_WORK + _SEND,
            new=_SEND + _WORK,
            says="what was sent is what lay in the slot before this round (NaN, or the rows of two rounds "
            "ago): compute, then send",
        ),
        Mistake(
            "sends the incoming rows on",
            old="pltpu.make_async_copy(out_ref.at[slot], rows",
            new="pltpu.make_async_copy(in_ref.at[slot], rows",
            says="the rows go back as they came: `out_ref` holds the doubled ones",
        ),
        Mistake(
            "waits at once for what it sends",
            edits=(
                (_LEFT, ""),
                (_SEND, _SEND + "        send(i, slot).wait()\n"),
                (_TAIL, ""),
            ),
            says="What is sent need not be waited for before its slot is written again",
            stage="work",
        ),
        Mistake(
            "makes every copy wait at once",
            edits=(
                ("            fetch(i + 1, 1 - slot).start()\n", "            pass\n"),
                ("    fetch(0, 0).start()\n\n    def double", "    def double"),
                (_CAME, "        fetch(i, slot).start()\n" + _CAME),
                (_LEFT, ""),
                (_SEND, _SEND + "        send(i, slot).wait()\n"),
                (_TAIL, ""),
            ),
            says="at 5 of 5 waits for a copy from `x_ref`, the kernel has computed nothing since that copy started",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative(
            "waits for the incoming rows first",
            old=_LEFT + _CAME,
            new=_CAME + "\n" + _LEFT,
        ),
        Alternative(
            "doubles in place, from four slots",
            code="""
def fix_the_copy(x):
    n = x.shape[0] // 64

    def kernel(x_ref, o_ref, slots, sems):
        def fetch(i):
            rows = x_ref.at[pl.ds(i * 64, 64)]
            return pltpu.make_async_copy(rows, slots.at[i % 4], sems.at[0, i % 4])

        def send(i):
            rows = o_ref.at[pl.ds(i * 64, 64)]
            return pltpu.make_async_copy(slots.at[i % 4], rows, sems.at[1, i % 4])

        fetch(0).start()

        def double(i, _):
            pl.when(i >= 3)(lambda: send(i - 3).wait())
            pl.when(i + 1 < n)(lambda: fetch(i + 1).start())
            fetch(i).wait()
            slots[i % 4] = slots[i % 4] * 2
            send(i).start()

        jax.lax.fori_loop(0, n, double, None)
        for i in range(max(0, n - 3), n):
            send(i).wait()

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[
            pltpu.VMEM((4, 64, x.shape[1]), x.dtype), pltpu.SemaphoreType.DMA((2, 4))
        ],
        interpret=INTERPRET,
    )(x)
""",
        ),
        Alternative(
            "waits for what it sent at the end of the next round",
            edits=(
                (_LEFT, ""),
                (
                    _SEND,
                    _SEND + "\n        @pl.when(i >= 1)\n        def _():\n"
                    "            send(i - 1, 1 - slot).wait()\n",
                ),
                (_TAIL, "    send(n - 1, (n - 1) % 2).wait()\n"),
            ),
        ),
        Alternative(
            "lets emit_pipeline do it",
            code="""
def fix_the_copy(x):
    def double(in_ref, out_ref):
        out_ref[...] = 2 * in_ref[...]

    def kernel(x_ref, o_ref):
        spec = pl.BlockSpec((64, x.shape[1]), lambda i: (i, 0))
        grid = (x.shape[0] // 64,)
        pltpu.emit_pipeline(double, grid=grid, in_specs=[spec], out_specs=[spec])(x_ref, o_ref)

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=INTERPRET,
    )(x)
""",
        ),
    ],
    audit=audit,
    scale=scale,
)
