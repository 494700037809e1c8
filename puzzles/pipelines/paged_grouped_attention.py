"""Puzzle 14: grouped queries over pages."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## paged_grouped_attention: a page for all heads of its group
#
# Served models have many query heads, `N`, and few heads of keys and values, `K`: each of the few
# serves a **group** of `N // K` query heads. Query head `h` reads key head `h // (N // K)`.
#
# Decoding does little arithmetic per byte. So the question is: how often is a page fetched?
#
# ```text
#                       N = 8 query heads, K = 2: groups of 4
# grid (B, N)           a page of a key head is fetched 4 times
# grid (B, K)           a page is fetched once; attend sees 4 rows of q
# ```
#
# `attend` takes any number of rows, so the kernel is the one of `paged_attention_dma`. Only `fetch`
# changes, because each key head now has pages of its own: `k_pages` is (K, P, page, H), as in JAX's
# `paged_attention` (2024).
#
# Write `fetch`, the grid, and the blocks of `q` and of the output. The launch sees both arrays
# as (B, K, group, H).


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
def paged_grouped_attention_spec(
    q: Float[Array, "B N H"],
    k_pages: Float[Array, "K P page H"],
    v_pages: Float[Array, "K P page H"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
) -> Float[Array, "B N H"]:
    (B, N, H), K = q.shape, k_pages.shape[0]
    groups, k_pages, v_pages = (x.astype(jnp.float32) for x in (q, k_pages, v_pages))
    k, v = (pages[:, table].reshape(K, B, -1, H) for pages in (k_pages, v_pages))
    seen = jnp.arange(k.shape[2]) < lengths[:, None]
    groups = groups.reshape(B, K, N // K, H)
    s = jnp.einsum("bkgh,kbsh->bkgs", groups, k) / H**0.5
    s = jnp.where(seen[:, None, None], s, -jnp.inf)
    p = jnp.exp(s - jnp.max(s, axis=3, keepdims=True))
    p = jnp.where(seen[:, None, None], p, 0)
    total = jnp.sum(p, axis=3, keepdims=True)
    o = jnp.einsum("bkgs,kbsh->bkgh", p, jnp.where(seen[:, :, None], v, 0))
    return jnp.where(total == 0, 0, o / total).reshape(B, N, H).astype(q.dtype)


# %%
from puzzles.pipelines._paged import check_lengths
from puzzles.pipelines.paged_attention import spread


def paged_grouped_attention_kernel(
    lengths_ref, table_ref, q_ref, k_pages_ref, v_pages_ref, o_ref,
    k_slots, v_slots, sems, m_ref, l_ref, acc_ref,
):  # fmt: skip
    b, head, page = pl.program_id(0), pl.program_id(1), k_slots.shape[1]
    length, most = lengths_ref[b], table_ref.shape[0] // lengths_ref.shape[0]
    n = pl.cdiv(length, page)

    def fetch(i, slot):
        # The copies of keys and values of page i of this sequence and of this head.
        ### BEGIN SOLUTION
        at = table_ref[b * most + i]
        return (
            pltpu.make_async_copy(k_pages_ref.at[head, at], k_slots.at[slot], sems.at[0, slot]),
            pltpu.make_async_copy(v_pages_ref.at[head, at], v_slots.at[slot], sems.at[1, slot]),
        )
        ### END SOLUTION

    @pl.when(n > 0)
    def _():
        for copy in fetch(0, 0):
            copy.start()

    start(m_ref, l_ref, acc_ref)

    def one_page(i, _):
        slot = jax.lax.rem(i, 2)

        @pl.when(i + 1 < n)
        def _():
            for copy in fetch(i + 1, 1 - slot):
                copy.start()

        for copy in fetch(i, slot):
            copy.wait()
        seen = i * page + jax.lax.broadcasted_iota(jnp.int32, (1, page), 1) < length
        counts = i * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0) < length
        v = jnp.where(counts, v_slots[slot], 0)
        attend(q_ref[...], k_slots[slot], v, seen, m_ref, l_ref, acc_ref)

    jax.lax.fori_loop(0, n, one_page, None)
    o_ref[...] = result(l_ref, acc_ref).astype(o_ref.dtype)


def paged_grouped_attention(
    q: Float[Array, "B N H"],
    k_pages: Float[Array, "K P page H"],
    v_pages: Float[Array, "K P page H"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
) -> Float[Array, "B N H"]:
    (B, N, H), (K, _, page, _) = q.shape, k_pages.shape
    group = N // K
    check_lengths(lengths, table, page)
    two_slots = pltpu.VMEM((2, page, H), k_pages.dtype)
    o = pl.pallas_call(
        paged_grouped_attention_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            ### BEGIN SOLUTION
            grid=(B, K),
            in_specs=[
                pl.BlockSpec((None, None, group, H), lambda b, head, *_: (b, head, 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((None, None, group, H), lambda b, head, *_: (b, head, 0, 0)),
            ### END SOLUTION
            scratch_shapes=[
                two_slots,
                two_slots,
                pltpu.SemaphoreType.DMA((2, 2)),
                *(pltpu.VMEM((group, n), jnp.float32) for n in (128, 128, H)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((B, K, group, H), q.dtype),
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), q.reshape(B, K, group, H), k_pages, v_pages)
    return o.reshape(B, N, H)


# %% [markdown]
# As before, each sequence and key head of the reference first waits for its first page, and nothing
# hides this wait.

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import overlapped
from puzzles.pipelines._paged import afresh, drawn, fetches_no_more


def make_inputs(key, lengths, N, K, page, P, pages, garbage, shared, H=128, dtype="float32"):
    return drawn(
        rng(key), lengths, page, P, pages, garbage, shared, heads=(K,), queries=N, H=H, dtype=dtype
    )


def audit(launch: Launch, *, args) -> None:
    K = args[1].shape[0]
    # by index map it is the pipeline that fetches, one page for an empty sequence
    fetches_no_more(launch, args[3], args[1].shape[2], heads=K, idle=0 if launch.copies else 1)
    if launch.copies:
        overlapped(launch, first=launch.steps)


def scale(B=8, N=32, K=8, page=16, P=1024, pages=32, H=128):
    S, bf16 = jax.ShapeDtypeStruct, jnp.bfloat16
    lengths = array([(331 * b) % (page * pages) for b in range(B)], jnp.int32)
    table = array([[(37 * b + 5 * i) % P for i in range(pages)] for b in range(B)], jnp.int32)
    pool = S((K, P, page, H), bf16)
    return S((B, N, H), bf16), pool, pool, lengths, table


def par(launch: Launch) -> str:
    return f"{sum(copy.times for copy in launch.copies):,} pages fetched in {launch.steps:,} steps"


def fresh(r):
    return afresh(
        r,
        other=dict(lengths=(8, 9), N=6, K=3, page=8, P=9, pages=4),
        lengths=((48, 0, 17), (2, 33, 0), (0, 16, 47), (32, 0, 15)),
        N=8,
        K=2,
        page=16,
        P=10,
        pages=3,
    )


PUZZLE = Puzzle(
    spec=paged_grouped_attention_spec,
    solution=paged_grouped_attention,
    inputs=make_inputs,
    cases=[
        dict(lengths=(37, 1, 16), N=8, K=2, page=16, P=10, pages=3, garbage=1.0, shared=False),
        dict(
            lengths=(0, 31, 278, 64),
            N=4,
            K=2,
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
        "One grid step is one sequence and one key head. Which rows of `q` does it serve, and "
        "which page of which head does it fetch?",
        "`k_pages_ref.at[…, …]` takes the head and the page. A block (None, None, group, H) "
        "has two axes left; index maps get the program ids, then the refs of scalar prefetch.",
        "In `fetch`: the table's entry, then two copies as in the previous puzzle, with the head "
        "in front. In the call: two axes, sequences and key heads; one BlockSpec for `q` and for "
        "the output; pages stay in HBM.",
    ],
    explain="""A step of the grid is a sequence and a key head, and its block of q is the whole group:
    each page is fetched once and serves all of its heads. In the reference the body did not change:
    it never knew how many rows `q` had.""",
    audit=audit,
    scale=scale,
    par=par,
    tolerance={"float32": 2e-4, "bfloat16": 1e-2},
)
