"""Puzzle 16: values that are a part of the keys."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## latent_attention: values are a part of the keys
#
# DeepSeek and Kimi store one row of numbers per token, for **all** heads: a **latent** of `V`
# numbers, then a few that carry the token's position. The whole row is the key. The latent is also
# the value:
#
# ```text
# a row of a page     [ latent: V numbers     | position: D - V ]
#
# scores, q · kᵀ        ########################################
# output, p · v         ######################
# ```
#
# So you need not copy a page twice, once as keys and once as values. Copy it once, into one
# buffer that serves both products.
#
# ![Copies as bars over time. Above, each page comes as keys and again as values, through four slots. Below, one copy of each page into one of two slots serves both.](diagrams/pipelines/latent_attention.svg)
#
# The rest is `paged_grouped_attention` with a single key head. `q` is already scaled. A matmul after
# this kernel expands the latent output of each head.
#
# Write `fetch`, the call of `attend`, and the scratch.


# %% jupyter={"source_hidden": true} cellView="form"
# @title The online softmax, one page at a time (`splash_attention` derives it)
def start(m_ref, l_ref, acc_ref):
    m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
    l_ref[...] = jnp.zeros_like(l_ref)
    acc_ref[...] = jnp.zeros_like(acc_ref)


def attend(q, k, v, seen, m_ref, l_ref, acc_ref):
    f32 = jnp.float32
    s = jnp.einsum("gd,sd->gs", q, k, preferred_element_type=f32)
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
def latent_attention_spec(
    q: Float[Array, "B N D"],
    pages: Float[Array, "P page D"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
    V: int,
) -> Float[Array, "B N V"]:
    rows = pages[table].reshape(len(table), -1, pages.shape[2]).astype(jnp.float32)
    seen = (jnp.arange(rows.shape[1]) < lengths[:, None])[:, None]
    s = jnp.where(seen, jnp.einsum("bnd,bsd->bns", q.astype(jnp.float32), rows), -jnp.inf)
    p = jnp.where(seen, jnp.exp(s - jnp.max(s, axis=2, keepdims=True)), 0)
    total = jnp.sum(p, axis=2, keepdims=True)
    v = jnp.where(seen[:, 0, :, None], rows[:, :, :V], 0)
    return jnp.where(total == 0, 0, jnp.einsum("bns,bsv->bnv", p, v) / total).astype(q.dtype)


# %%
from puzzles.pipelines._paged import check_lengths
from puzzles.pipelines.paged_attention import spread


def latent_attention_kernel(
    lengths_ref, table_ref, q_ref, pages_ref, o_ref, slots, sems, m_ref, l_ref, acc_ref
):
    b, page, V = pl.program_id(0), slots.shape[1], o_ref.shape[1]
    length, most = lengths_ref[b], table_ref.shape[0] // lengths_ref.shape[0]
    n = pl.cdiv(length, page)

    def fetch(i, slot):
        # The copy of page i of this sequence.
        ### BEGIN SOLUTION
        source = pages_ref.at[table_ref[b * most + i]]
        return pltpu.make_async_copy(source, slots.at[slot], sems.at[slot])
        ### END SOLUTION

    @pl.when(n > 0)
    def _():
        fetch(0, 0).start()

    start(m_ref, l_ref, acc_ref)

    def one_page(i, _):
        slot = jax.lax.rem(i, 2)

        @pl.when(i + 1 < n)
        def _():
            fetch(i + 1, 1 - slot).start()

        fetch(i, slot).wait()
        seen = i * page + jax.lax.broadcasted_iota(jnp.int32, (1, page), 1) < length
        counts = i * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0) < length
        # Call `attend` once; rows of the slot that do not count may be NaN.
        ### BEGIN SOLUTION
        rows = jnp.where(counts, slots[slot], 0)
        attend(q_ref[...], rows, rows[:, :V], seen, m_ref, l_ref, acc_ref)
        ### END SOLUTION

    jax.lax.fori_loop(0, n, one_page, None)
    o_ref[...] = result(l_ref, acc_ref).astype(o_ref.dtype)


def latent_attention(
    q: Float[Array, "B N D"],
    pages: Float[Array, "P page D"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
    V: int,
) -> Float[Array, "B N V"]:
    (B, N, D), page = q.shape, pages.shape[1]
    check_lengths(lengths, table, page)
    return pl.pallas_call(
        latent_attention_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B,),
            in_specs=[
                pl.BlockSpec((None, N, D), lambda b, *_: (b, 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((None, N, V), lambda b, *_: (b, 0, 0)),
            # `slots`, `sems`, then m, l and acc in f32: (N, 128), (N, 128) and (N, V).
            ### BEGIN SOLUTION
            scratch_shapes=[
                pltpu.VMEM((2, page, D), pages.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                *(pltpu.VMEM((N, n), jnp.float32) for n in (128, 128, V)),
            ],
            ### END SOLUTION
        ),
        out_shape=jax.ShapeDtypeStruct((B, N, V), q.dtype),
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), q, pages)


# %% [markdown]
# What did it save? `paged_grouped_attention` copies the same pages twice, as keys and as values.
# Compare the bytes of the references:

# %% active="ipynb"
# q, pages, lengths, table, V = find("latent_attention").arguments(0)
# receipt(latent_attention, q, pages, lengths, table, V)
# twice = find("paged_grouped_attention").solution
# receipt(twice, q, pages[None], pages[None], lengths, table)

# %% [markdown]
# In DeepSeek-V3 a row has 512 + 64 numbers, for 128 heads. tpu-inference's `mla` v2 (2026) pads it
# to 512 + 128, because a TPU stores rows in groups of 128 lanes.

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import overlapped
from puzzles.pipelines._paged import afresh, drawn, fetches_no_more


def make_inputs(key, lengths, N, page, P, pages, garbage, shared, D, V, dtype="float32"):
    q, rows, _, *where = drawn(
        rng(key), lengths, page, P, pages, garbage, shared, queries=N, H=D, dtype=dtype
    )
    return q / 16, rows, *where, V  # dots stay exact


def audit(launch: Launch, *, args) -> None:
    # by index map it is the pipeline that fetches, one page for an empty sequence
    idle = 0 if launch.copies else 1
    fetches_no_more(launch, args[2], args[1].shape[1], idle=idle, arrays=1)
    if launch.copies:
        overlapped(launch, first=launch.steps)


def scale(B=8, N=128, page=64, P=1024, pages=16, D=640, V=512):
    S, bf16 = jax.ShapeDtypeStruct, jnp.bfloat16
    lengths = array([(331 * b + 1) % (page * pages) for b in range(B)], jnp.int32)
    table = array([[(37 * b + 5 * i) % P for i in range(pages)] for b in range(B)], jnp.int32)
    return S((B, N, D), bf16), S((P, page, D), bf16), lengths, table, V


def par(launch: Launch) -> str:
    return f"{sum(one.hbm_bytes for one in launch.inputs[1:]) / 2**20:.2f} MiB of pages read"


def fresh(r):
    return afresh(
        r,
        other=dict(lengths=(8, 33), N=6, page=8, P=16, pages=9, D=384, V=128),
        lengths=((17, 0, 0), (0, 49, 170), (176, 0, 5), (144, 16, 80)),
        N=8,
        page=16,
        P=40,
        pages=11,
        D=256,
        V=128,
    )


PUZZLE = Puzzle(
    spec=latent_attention_spec,
    solution=latent_attention,
    inputs=make_inputs,
    cases=[
        dict(
            lengths=(37, 160, 16),
            N=8,
            page=16,
            P=40,
            pages=11,
            garbage=1.0,
            shared=False,
            D=256,
            V=128,
        ),
        dict(
            lengths=(0, 32, 31, 278, 0, 64, 1),
            N=4,
            page=32,
            P=48,
            pages=9,
            garbage=float("nan"),
            shared=True,
            D=640,
            V=512,
            dtype="bfloat16",
        ),
    ],
    fresh=fresh,
    hints=[
        "How many copies does a page need if one buffer serves both products? Which part of a row "
        "does the second product use?",
        "`pages_ref.at[number]` is a page in HBM, `slots.at[slot]` its place in VMEM. A value that "
        "was read from a slot can be sliced; no byte of it comes from HBM again.",
        "`fetch` returns one description of a copy. The call of `attend`: replace the rows that do "
        "not count by zeros, once; pass all of them as keys, and their first V lanes as values. "
        "The scratch: two pages, two semaphores, and f32 for m, l and an acc of V lanes.",
    ],
    explain="""Keys and values share a buffer, so each page is read once for both. In the reference
    this halves the bytes of pages, compared with separate arrays of this width for keys and values.""",
    audit=audit,
    scale=scale,
    par=par,
    tolerance={"float32": 2e-4, "bfloat16": 1e-2},
)
