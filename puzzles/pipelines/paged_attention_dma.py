"""Puzzle 13: attention over pages, with copies of its own."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## paged_attention_dma: exactly the pages there are
#
# The grid of `paged_attention` has room for the longest sequence, so short sequences go through
# steps that do nothing. A loop can be as long as its sequence:
#
# ```text
# page = 16     lengths   grid (B, 4)            grid (B,), a loop inside
# b = 0           37      # # # .                # # #
# b = 1            0      . . . .
# b = 2           16      # . . .                #
# ```
#
# So there is one grid step per sequence. Pages stay in HBM, and you copy them as in
# `double_buffered_matmul`: per round one page of keys and one of values, with two slots for each.
#
# Two things are new. A copy's source is the page that the table names. And a sequence may have
# **no** page. Then start nothing, not even in the prologue: nothing would wait for that copy, and
# it could still be in flight when the next sequence uses its slot.


# %% jupyter={"source_hidden": true} cellView="form"
# @title The online softmax, one page at a time (`splash_attention` derives it)
def start(m_ref, l_ref, acc_ref):
    m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
    l_ref[...] = jnp.zeros_like(l_ref)
    acc_ref[...] = jnp.zeros_like(acc_ref)


def attend(q, k, v, seen, m_ref, l_ref, acc_ref):
    f32 = jnp.float32
    s = jnp.einsum("gh,sh->gs", q, k, preferred_element_type=f32) / q.shape[1] ** 0.5
    s = jnp.where(seen, s, -1e30)
    m = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
    p, old = jnp.exp(s - spread(m, s)), jnp.exp(m_ref[...] - m)
    l_ref[...] = old * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    pv = jnp.dot(p, v, preferred_element_type=f32)
    acc_ref[...] = spread(old, acc_ref) * acc_ref[...] + pv
    m_ref[...] = m


def result(l_ref, acc_ref):
    l = spread(l_ref[...], acc_ref)
    return jnp.where(l == 0, 0, acc_ref[...] / l)


# %%
def paged_attention_dma_spec(
    q: Float[Array, "B 1 H"],
    k_pages: Float[Array, "P page H"],
    v_pages: Float[Array, "P page H"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
) -> Float[Array, "B 1 H"]:
    B, _, H = q.shape
    k, v = (pages[table].reshape(B, -1, H).astype(jnp.float32) for pages in (k_pages, v_pages))
    seen = jnp.arange(k.shape[1]) < lengths[:, None]
    s = jnp.where(seen, jnp.einsum("bqh,bsh->bs", q.astype(jnp.float32), k) / H**0.5, -jnp.inf)
    p = jnp.where(seen, jnp.exp(s - jnp.max(s, axis=1, keepdims=True)), 0)
    total = jnp.sum(p, axis=1)[:, None, None]
    o = jnp.einsum("bs,bsh->bh", p, jnp.where(seen[:, :, None], v, 0))[:, None]
    return jnp.where(total == 0, 0, o / total).astype(q.dtype)


# %%
from puzzles.pipelines._paged import check_lengths
from puzzles.pipelines.paged_attention import spread


def paged_attention_dma_kernel(
    lengths_ref, table_ref, q_ref, k_pages_ref, v_pages_ref, o_ref,
    k_slots, v_slots, sems, m_ref, l_ref, acc_ref,
):  # fmt: skip
    b, page = pl.program_id(0), k_slots.shape[1]
    length, most = lengths_ref[b], table_ref.shape[0] // pl.num_programs(0)  # most: table's width
    n = pl.cdiv(length, page)

    def fetch(i, slot):
        # The copies of keys and values of page i of this sequence.
        ### BEGIN SOLUTION
        at = table_ref[b * most + i]
        return (
            pltpu.make_async_copy(k_pages_ref.at[at], k_slots.at[slot], sems.at[0, slot]),
            pltpu.make_async_copy(v_pages_ref.at[at], v_slots.at[slot], sems.at[1, slot]),
        )
        ### END SOLUTION

    # The prologue.
    ### BEGIN SOLUTION
    @pl.when(n > 0)
    def _():
        for copy in fetch(0, 0):
            copy.start()

    ### END SOLUTION

    start(m_ref, l_ref, acc_ref)

    def one_page(i, _):
        slot = jax.lax.rem(i, 2)

        # Start the next page's copies, if there is one, and wait for this page.
        ### BEGIN SOLUTION
        @pl.when(i + 1 < n)
        def _():
            for copy in fetch(i + 1, 1 - slot):
                copy.start()

        for copy in fetch(i, slot):
            copy.wait()
        ### END SOLUTION
        seen = i * page + jax.lax.broadcasted_iota(jnp.int32, (1, page), 1) < length
        counts = i * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0) < length
        v = jnp.where(counts, v_slots[slot], 0)
        attend(q_ref[...], k_slots[slot], v, seen, m_ref, l_ref, acc_ref)

    jax.lax.fori_loop(0, n, one_page, None)
    o_ref[...] = result(l_ref, acc_ref).astype(o_ref.dtype)


def paged_attention_dma(
    q: Float[Array, "B 1 H"],
    k_pages: Float[Array, "P page H"],
    v_pages: Float[Array, "P page H"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
) -> Float[Array, "B 1 H"]:
    (B, _, H), page = q.shape, k_pages.shape[1]
    check_lengths(lengths, table, page)
    query = pl.BlockSpec((None, 1, H), lambda b, *_: (b, 0, 0))
    two_slots = pltpu.VMEM((2, page, H), k_pages.dtype)
    return pl.pallas_call(
        paged_attention_dma_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B,),
            in_specs=[query, *2 * [pl.BlockSpec(memory_space=pl.ANY)]],
            out_specs=query,
            scratch_shapes=[
                two_slots,
                two_slots,
                pltpu.SemaphoreType.DMA((2, 2)),
                *(pltpu.VMEM((1, n), jnp.float32) for n in (128, 128, H)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((B, 1, H), q.dtype),
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), q, k_pages, v_pages)


# %% [markdown]
# Something is also lost. In `paged_attention` the next sequence's first page was fetched during the
# step before. In the reference here, each sequence first waits for its first page, and nothing
# hides this wait. `gapless_attention`, later, wins that back.

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import overlapped
from puzzles.pipelines._paged import afresh, drawn, fetches_no_more


def make_inputs(key, lengths, page, P, pages, garbage, shared, H=128, dtype="float32"):
    return drawn(rng(key), lengths, page, P, pages, garbage, shared, H=H, dtype=dtype)


def audit(launch: Launch, *, args) -> None:
    texts = int((args[3] > 0).sum())
    fetches_no_more(launch, args[3], args[1].shape[1])
    overlapped(launch, first=texts)


def scale(B=8, page=16, P=1024, pages=32, H=128):
    S, bf16 = jax.ShapeDtypeStruct, jnp.bfloat16
    lengths = array([(331 * b) % (page * pages) for b in range(B)], jnp.int32)
    table = array([[(37 * b + 5 * i) % P for i in range(pages)] for b in range(B)], jnp.int32)
    pool = S((P, page, H), bf16)
    return S((B, 1, H), bf16), pool, pool, lengths, table


def par(launch: Launch) -> str:
    return f"{sum(copy.times for copy in launch.copies):,} pages fetched in {launch.steps:,} steps"


def fresh(r):
    return afresh(
        r,
        other=dict(lengths=(23, 0, 8), page=8, P=12, pages=3),
        lengths=((63, 0, 17), (2, 48, 0), (0, 16, 64), (33, 0, 15)),
        page=16,
        P=10,
        pages=4,
    )


PUZZLE = Puzzle(
    spec=paged_attention_dma_spec,
    solution=paged_attention_dma,
    inputs=make_inputs,
    cases=[
        dict(lengths=(37, 16, 1), page=16, P=10, pages=4, garbage=1.0, shared=False),
        dict(
            lengths=(0, 32, 31, 278, 3, 64, 0, 1, 40, 288),
            page=32,
            P=48,
            pages=9,
            garbage=float("nan"),
            shared=True,
            H=256,
            dtype="bfloat16",
        ),
    ],
    fresh=fresh,
    hints=[
        "It is `double_buffered_matmul` with a table between the number of a round and the "
        "place of its tiles. For which sequences is there no first page?",
        "Entry `i` of sequence `b` is `table_ref[b * most + i]`; `.at[number]` names one page of "
        "an array of pages. `@pl.when` guards what may not be started.",
        "`fetch` looks up the page and returns two descriptions. The prologue starts page 0, "
        "if there is one. A round starts the next page, if there is one, and waits for both "
        "copies of its own.",
    ],
    explain="""One grid step per sequence, and no round for a page that does not exist: every fetch is
    needed. A sequence without pages starts nothing.""",
    audit=audit,
    scale=scale,
    par=par,
    tolerance={"float32": 2e-4, "bfloat16": 1e-2},
)
