"""Puzzle 12: several copies, one semaphore, one wait."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## sum_pages: four copies, one wait
#
# A page is small, and every round has a fixed cost. So a round copies the pages of four
# table entries, side by side, into one slot.
#
# ```text
# table = [5, 2, 7, 1,   3, 0, 6, 4]
#
# HBM     page 5    page 2    page 7    page 1
#            |         |         |         |         each adds its bytes to sems[0]
# slot 0  [ r = 0  |  r = 1  |  r = 2  |  r = 3 ]    one wait takes the bytes of all
# ```
#
# Four copies, four semaphores? One is enough. It counts **bytes**, and each copy adds its own.
# `.wait()` waits for as many bytes as *its own* description has, whichever copies brought them, and
# subtracts them from the count. So one wait for a whole slot is a wait for all four. The
# copy that this wait describes is never started, so its source may be anything of that size, even
# the slot.
#
# The two slots still need a semaphore each: otherwise the next round's bytes could end this round's
# wait.


# %%
def sum_pages_spec(
    pages: Float[Array, "P page H"], table: Int[Array, " n"]
) -> Float[Array, "page H"]:
    return jnp.sum(pages[table], axis=0)


# %%
def sum_pages_kernel(table_ref, pages_ref, o_ref, slots_ref, sems):
    rounds = table_ref.shape[0] // 4

    def start_copies(i, slot):
        # Start the copies of pages 4 i … 4 i + 3 of the table into the four places of the slot.
        ### BEGIN SOLUTION
        for r in range(4):
            page = pages_ref.at[table_ref[4 * i + r]]
            pltpu.make_async_copy(page, slots_ref.at[slot, r], sems.at[slot]).start()
        ### END SOLUTION

    start_copies(0, 0)
    o_ref[...] = jnp.zeros_like(o_ref)

    def add(i, _):
        slot = jax.lax.rem(i, 2)

        @pl.when(i + 1 < rounds)
        def _():
            start_copies(i + 1, 1 - slot)

        # Wait once, for all four copies.
        ### BEGIN SOLUTION
        whole = slots_ref.at[slot]
        pltpu.make_async_copy(whole, whole, sems.at[slot]).wait()
        ### END SOLUTION
        o_ref[...] += jnp.sum(slots_ref[slot], axis=0)

    jax.lax.fori_loop(0, rounds, add, None)


def sum_pages(pages: Float[Array, "P page H"], table: Int[Array, " n"]) -> Float[Array, "page H"]:
    _, page, H = pages.shape
    return pl.pallas_call(
        sum_pages_kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct((page, H), pages.dtype),
        scratch_shapes=[pltpu.VMEM((2, 4, page, H), pages.dtype), pltpu.SemaphoreType.DMA((2,))],
        interpret=INTERPRET,
    )(table, pages)


# %% [markdown]
# tpu-inference's `ragged_paged_attention` v3 (2025) waits like this: once for all the bytes of a
# round.

# %% active="ipynb"
# show(sum_pages)

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import by_hand, overlapped


def make_inputs(key, P, page, H, table):
    pages = rng(key).normal(0.5, 1, (P, page, H))
    return array(pages, jnp.float32), array(table, jnp.int32)


def audit(launch: Launch, *, args) -> None:
    pages, table = args
    most = pages.nbytes // pages.shape[0] * len(table)
    by_hand(launch)
    (its,) = (one for one in launch.inputs if len(one.shape) == 3)
    assert its.hbm_bytes <= most, (
        f"{its.hbm_bytes:,} bytes of pages are fetched, and the table names {most:,}: fetch "
        "each entry's page once"
    )
    overlapped(launch)


def scale(P=4096, page=16, H=128, n=128):
    table = array([(1237 * i) % P for i in range(n)], jnp.int32)
    return jax.ShapeDtypeStruct((P, page, H), jnp.float32), table


def fresh(r):
    # mostly the shapes of the first case, whose programs are compiled by now: the table is data
    if r.integers(4) == 0:
        return dict(P=16, page=8, H=128, table=[*range(15, -1, -1), 4, 9, 4, 2])
    tables = ([3, 15, 8, 3, 0, 1, 22, 5, 9, 9, 23, 17], [*range(23, 11, -1)], [*range(12)])
    return dict(P=24, page=16, H=128, table=tables[r.integers(3)])


PUZZLE = Puzzle(
    spec=sum_pages_spec,
    solution=sum_pages,
    inputs=make_inputs,
    cases=[
        dict(P=24, page=16, H=128, table=[5, 2, 7, 1, 11, 20, 3, 9, 23, 14, 6, 17]),
        dict(P=40, page=8, H=256, table=[*range(31, 3, -1), 31, 2, 2, 38]),
    ],
    fresh=fresh,
    hints=[
        "A slot has four places and one semaphore. How many bytes has the semaphore counted "
        "when all four pages are there, and which description has as many?",
        "`slots_ref.at[slot, r]` is one place, `slots_ref.at[slot]` the whole slot. A "
        "description is made by `pltpu.make_async_copy(source, target, sem)`, started or not.",
        "In `start_copies`: a Python loop over four places; take the page that the table lists, "
        "describe its copy on the slot's semaphore, start it. Then one description whose target "
        "is the slot, and only `.wait()` of it.",
    ],
    explain="""A wait takes as many bytes off its semaphore as its description has. So copies may
    share a semaphore if nothing is touched before the bytes of all of them were waited for. In the
    reference each slot has one.""",
    audit=audit,
    scale=scale,
)
