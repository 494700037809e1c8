"""Puzzle 15: a window and sinks, while decoding."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## paged_window_attention: old pages stay where they are
#
# This is `paged_grouped_attention` with two more arguments, which gpt-oss (2025) needs.
#
# **A window.** The query, at position `length - 1`, sees the last `window` keys, including the key
# at its own position. Pages before the window are neither fetched nor computed. Other sequences may
# have them by now.
#
# ```text
# length = 300, window = 100, page = 64: keys 200 … 299 count
#
# page      0         1         2         3         4
#       [........][........][........][.#######][######..]
#               not fetched             200        299
# ```
#
# **A sink.** Each query head has a learned number, `sinks[head]`. It joins the softmax like the score
# of one more key, whose value is 0:
#
# ```text
# o = Σ exp(score) v / (exp(sink) + Σ exp(score))
# ```
#
# No page holds this key. But the online softmax has to start somewhere: what are `m`, `l` and
# `acc` after the sink alone?
#
# `sinks_ref` holds the sinks of the group, (group, 1). `attend` takes `seen`, (1, page), and values
# without NaN.


# %% jupyter={"source_hidden": true} cellView="form"
# @title The online softmax, one page at a time (`splash_attention` derives it)
def attend(q, k, v, seen, m_ref, l_ref, acc_ref):
    f32 = jnp.float32
    s = jnp.einsum("gh,sh->gs", q, k, preferred_element_type=f32) / q.shape[1] ** 0.5
    s = jnp.where(seen, s, -1e30)
    m = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
    p, old = jnp.exp(s - m), jnp.exp(m_ref[...] - m)
    l_ref[...] = old * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    acc_ref[...] = old * acc_ref[...] + jnp.dot(p, v, preferred_element_type=f32)
    m_ref[...] = m


# %%
def paged_window_attention_spec(
    q: Float[Array, "B N H"],
    k_pages: Float[Array, "K P page H"],
    v_pages: Float[Array, "K P page H"],
    sinks: Float[Array, " N"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
    window: int,
) -> Float[Array, "B N H"]:
    (B, N, H), K = q.shape, k_pages.shape[0]
    groups, k_pages, v_pages = (x.astype(jnp.float32) for x in (q, k_pages, v_pages))
    k, v = (pages[:, table].reshape(K, B, -1, H) for pages in (k_pages, v_pages))
    position, length = jnp.arange(k.shape[2]), lengths[:, None]
    seen = (length - window <= position) & (position < length)
    groups = groups.reshape(B, K, N // K, H)
    s = jnp.einsum("bkgh,kbsh->bkgs", groups, k) / H**0.5
    s = jnp.where(seen[:, None, None], s, -jnp.inf)
    sinks = sinks.reshape(K, N // K, 1)
    m = jnp.maximum(jnp.max(s, axis=3, keepdims=True), sinks)
    p = jnp.where(seen[:, None, None], jnp.exp(s - m), 0)
    total = jnp.exp(sinks - m) + jnp.sum(p, axis=3, keepdims=True)
    o = jnp.einsum("bkgs,kbsh->bkgh", p, jnp.where(seen[:, :, None], v, 0))
    return (o / total).reshape(B, N, H).astype(q.dtype)


# %%
def paged_window_attention_kernel(
    lengths_ref, table_ref, q_ref, sinks_ref, k_pages_ref, v_pages_ref, o_ref,
    k_slots, v_slots, sems, m_ref, l_ref, acc_ref, *, window,
):  # fmt: skip
    b, head, page = pl.program_id(0), pl.program_id(1), k_slots.shape[1]
    length, most = lengths_ref[b], table_ref.shape[0] // lengths_ref.shape[0]
    n = pl.cdiv(length, page)

    def fetch(i, slot):
        at = table_ref[b * most + i]
        return (
            pltpu.make_async_copy(k_pages_ref.at[head, at], k_slots.at[slot], sems.at[0, slot]),
            pltpu.make_async_copy(v_pages_ref.at[head, at], v_slots.at[slot], sems.at[1, slot]),
        )

    # first: the first page to fetch.
    ### BEGIN SOLUTION
    first = jnp.maximum(length - window, 0) // page
    ### END SOLUTION

    @pl.when(n > 0)
    def _():
        for copy in fetch(first, jax.lax.rem(first, 2)):
            copy.start()

    # The online softmax after the sink: m, l and acc.
    ### BEGIN SOLUTION
    m_ref[...] = sinks_ref[...]
    l_ref[...] = jnp.ones_like(l_ref)
    acc_ref[...] = jnp.zeros_like(acc_ref)
    ### END SOLUTION

    def one_page(i, _):
        slot = jax.lax.rem(i, 2)

        @pl.when(i + 1 < n)
        def _():
            for copy in fetch(i + 1, 1 - slot):
                copy.start()

        for copy in fetch(i, slot):
            copy.wait()
        # Attend to the keys of this page that count.
        ### BEGIN SOLUTION
        column = i * page + jax.lax.broadcasted_iota(jnp.int32, (1, page), 1)
        row = i * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0)
        seen = (length - window <= column) & (column < length)
        v = jnp.where((length - window <= row) & (row < length), v_slots[slot], 0)
        attend(q_ref[...], k_slots[slot], v, seen, m_ref, l_ref, acc_ref)
        ### END SOLUTION

    jax.lax.fori_loop(first, n, one_page, None)
    o_ref[...] = (acc_ref[...] / l_ref[...]).astype(o_ref.dtype)


def paged_window_attention(
    q: Float[Array, "B N H"],
    k_pages: Float[Array, "K P page H"],
    v_pages: Float[Array, "K P page H"],
    sinks: Float[Array, " N"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
    window: int,
) -> Float[Array, "B N H"]:
    (B, N, H), (K, _, page, _) = q.shape, k_pages.shape
    group = N // K
    two_slots = pltpu.VMEM((2, page, H), k_pages.dtype)
    o = pl.pallas_call(
        functools.partial(paged_window_attention_kernel, window=window),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B, K),
            in_specs=[
                pl.BlockSpec((None, None, group, H), lambda b, head, *_: (b, head, 0, 0)),
                pl.BlockSpec((None, group, 1), lambda b, head, *_: (head, 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((None, None, group, H), lambda b, head, *_: (b, head, 0, 0)),
            scratch_shapes=[
                two_slots,
                two_slots,
                pltpu.SemaphoreType.DMA((2, 2)),
                *(pltpu.VMEM((group, n), jnp.float32) for n in (1, 1, H)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((B, K, group, H), q.dtype),
        interpret=INTERPRET,
    )(
        lengths,
        table.reshape(-1),
        q.reshape(B, K, group, H),
        sinks.reshape(K, group, 1),
        k_pages,
        v_pages,
    )
    return o.reshape(B, N, H)


# %% [markdown]
# However long the sequences are, the reference fetches only the pages of their windows:

# %% active="ipynb"
# q, k_pages, v_pages, sinks, lengths, table, window = find("paged_window_attention").arguments(0)
# receipt(paged_window_attention, q, k_pages, v_pages, sinks, lengths, table, window)
# receipt(paged_window_attention, q, k_pages, v_pages, sinks, lengths, table, 10**6)

# %% [markdown]
# gpt-oss has a window of 128 in every other layer. tpu-inference's `ragged_paged_attention` v3
# serves it on TPUs. Its kernel also starts `m` as the sink and `l` as 1, and begins its loop with the
# block in which the window begins.

# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import overlapped
from puzzles.pipelines._paged import afresh, drawn, fetches_no_more


def make_inputs(key, lengths, N, K, page, P, pages, garbage, window, H=128, dtype="float32"):
    r = rng(key)
    q, k, v, lengths, table = drawn(
        r, lengths, page, P, pages, garbage, False, heads=(K,), queries=N, H=H, dtype=dtype
    )
    k, v = np.array(k), np.array(v)
    for b, length in enumerate(np.asarray(lengths)):  # other sequences have these pages by now
        old = table[b, : max(length - window, 0) // page]
        k[:, old], v[:, old] = garbage * r.choice([-60, 60], (2, 1, len(old), 1, 1))
    if np.isnan(garbage):
        v[..., -1] = garbage  # a whole column, so it belongs to the result
    sinks = r.normal(0, 3, N)
    sinks[-1] = 100  # exp(100) is inf in f32
    sinks = array(sinks, jnp.float32)
    return q, array(k, dtype), array(v, dtype), sinks, lengths, table, window


def audit(launch: Launch, *, args) -> None:
    _, k_pages, _, _, lengths, _, window = args
    K, _, page, _ = k_pages.shape
    # by index map it is the pipeline that fetches, one page for an empty sequence
    idle = 0 if launch.copies else 1
    fetches_no_more(launch, lengths, page, heads=K, idle=idle, window=window)
    if launch.copies:
        overlapped(launch, first=launch.steps)


def scale(B=8, N=64, K=8, page=16, P=1024, pages=32, window=128, H=128):
    S, bf16 = jax.ShapeDtypeStruct, jnp.bfloat16
    lengths = array([(331 * b) % (page * pages) for b in range(B)], jnp.int32)
    table = array([[(37 * b + 5 * i) % P for i in range(pages)] for b in range(B)], jnp.int32)
    pool = S((K, P, page, H), bf16)
    return S((B, N, H), bf16), pool, pool, S((N,), jnp.float32), lengths, table, window


def par(launch: Launch) -> str:
    return f"{sum(copy.times for copy in launch.copies):,} pages fetched in {launch.steps:,} steps"


def fresh(r):
    dims = afresh(
        r,
        other=dict(lengths=(8, 33), N=6, K=3, page=8, P=9, pages=5, window=17),
        lengths=((80, 0, 17), (2, 51, 0), (0, 21, 68), (20, 64, 3)),
        N=8,
        K=2,
        page=16,
        P=16,
        pages=5,
        window=20,
    )
    del dims["shared"]
    return dims


PUZZLE = Puzzle(
    spec=paged_window_attention_spec,
    solution=paged_window_attention,
    inputs=make_inputs,
    cases=[
        dict(lengths=(37, 9, 68), N=8, K=2, page=16, P=16, pages=5, garbage=1.0, window=20),
        dict(
            lengths=(0, 31, 278, 96, 160, 65),
            N=4,
            K=2,
            page=32,
            P=48,
            pages=9,
            garbage=float("nan"),
            window=64,
            H=256,
            dtype="bfloat16",
        ),
        dict(
            lengths=(1100, 3),
            N=2,
            K=1,
            page=128,
            P=16,
            pages=9,
            garbage=1.0,
            window=5,
        ),
    ],
    fresh=fresh,
    hints=[
        "At which position does the window begin, and which page has this position? After one key "
        "with the score x and the value 0: what is the largest score, what the sum of the weights?",
        "`//` rounds down, below 0 as well, so keep the position at 0 or above with `jnp.maximum`. "
        "A weight is exp(score - m). `broadcasted_iota` numbers the columns of `seen`, and the "
        "rows of v.",
        "The first page has position `length - window`, or 0 if that is negative. m starts as the "
        "sink, l as one, acc as zero. Mask keys and values on both sides of the window.",
    ],
    explain="""The loop begins with the page in which the window begins, so the cost depends on the
    window and not on the length. In the reference the sink costs nothing: it is where the online
    softmax starts.""",
    audit=audit,
    scale=scale,
    par=par,
    tolerance={"float32": 2e-4, "bfloat16": 1e-2},
)
