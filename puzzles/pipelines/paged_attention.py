"""Puzzle 11: attention over pages, by index map."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## paged_attention: one query over its pages
#
# When a model generates text, each head issues one **query** per new token. It is compared with the
# keys of all tokens so far; the output is the average of their values, weighted by the match.
#
# Step `(b, i)` of the grid handles page `i` of sequence `b`:
#
# ```text
# page = 16     lengths   i = 0          i = 1           i = 2           i = 3
# b = 0           37      16 keys        16 keys          5 keys         nothing
# b = 1            0      nothing        nothing         nothing         nothing
# b = 2           16      16 keys        nothing         nothing         nothing
# ```
#
# `attend`, below, updates a softmax by one page. Keys that `seen` masks out get weight 0. If no
# key of a page counts, they may get 1: skip it.
#
# You write two parts. **The kernel** computes only if a page holds keys that count. It replaces the
# values of all other keys by zeros, because they may be NaN. Past a sequence's last page, **the
# index map** names that page again: nothing new is fetched. The table is flat, because SMEM pads rows
# to 128 numbers: entry `i` of sequence `b` is number `b * pages + i`.


# %% jupyter={"source_hidden": true} cellView="form"
# @title The online softmax, one page at a time (`splash_attention` derives it)
def spread(x, like):
    """Repeat the 128 equal lanes of x to as many as `like` has; return a column unchanged."""
    n = like.shape[-1]
    times = (1,) * (x.ndim - 1) + (pl.cdiv(n, 128),)
    return x if x.shape[-1] == 1 else jnp.tile(x, times)[..., :n]


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
def paged_attention_spec(
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


def paged_attention_kernel(
    lengths_ref, table_ref, q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref
):
    b, i = pl.program_id(0), pl.program_id(1)
    page, length = k_ref.shape[0], lengths_ref[b]

    @pl.when(i == 0)
    def _():
        start(m_ref, l_ref, acc_ref)

    # Only if this page has keys that count: call `attend`, with `seen` of shape (1, page), and with
    # zeros for the values of the other keys.
    ### BEGIN SOLUTION
    @pl.when(i * page < length)
    def _():
        seen = i * page + jax.lax.broadcasted_iota(jnp.int32, (1, page), 1) < length
        counts = i * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0) < length
        v = jnp.where(counts, v_ref[...], 0)
        attend(q_ref[...], k_ref[...], v, seen, m_ref, l_ref, acc_ref)

    ### END SOLUTION

    @pl.when(i == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = result(l_ref, acc_ref).astype(o_ref.dtype)


def paged_attention(
    q: Float[Array, "B 1 H"],
    k_pages: Float[Array, "P page H"],
    v_pages: Float[Array, "P page H"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
) -> Float[Array, "B 1 H"]:
    (B, _, H), (_, page, _), (_, pages) = q.shape, k_pages.shape, table.shape
    check_lengths(lengths, table, page)

    def page_of(b, i, lengths_ref, table_ref):
        # The block index of page i of sequence b, or of its last page if it has fewer.
        ### BEGIN SOLUTION
        last = jnp.maximum(pl.cdiv(lengths_ref[b], page) - 1, 0)
        return table_ref[b * pages + jnp.minimum(i, last)], 0, 0
        ### END SOLUTION

    query = pl.BlockSpec((None, 1, H), lambda b, i, *_: (b, 0, 0))
    one_page = pl.BlockSpec((None, page, H), page_of)
    return pl.pallas_call(
        paged_attention_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B, pages),
            in_specs=[query, one_page, one_page],
            out_specs=query,
            scratch_shapes=[pltpu.VMEM((1, n), jnp.float32) for n in (128, 128, H)],
        ),
        out_shape=jax.ShapeDtypeStruct((B, 1, H), q.dtype),
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), q, k_pages, v_pages)


# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import in_two_slots
from puzzles.pipelines._paged import afresh, drawn, fetches_no_more, pages_needed


def make_inputs(key, lengths, page, P, pages, garbage, shared, H=128, dtype="float32"):
    """If garbage is NaN, so is a whole column of v: that NaN belongs to the result."""
    q, k, v, *where = drawn(rng(key), lengths, page, P, pages, garbage, shared, H=H, dtype=dtype)
    return q, k, v if np.isfinite(garbage) else v.at[..., -1].set(garbage), *where


def audit(launch: Launch, *, args) -> None:
    lengths, page = args[3], args[1].shape[1]
    in_two_slots(launch)
    fetches_no_more(launch, lengths, page, idle=1)
    run = max((int(dot.executed.sum()) for dot in launch.least.dots), default=0)
    needed = pages_needed(lengths, page) + int((lengths == 0).sum())
    assert run <= needed, (
        f"dots run in {run} steps, but only {needed} are needed, one for each page with keys that "
        f"count and one for each empty sequence. Skip pages beyond a length; a page has {page} rows"
    )


def scale(B=8, page=16, P=1024, pages=64, H=128):
    S, bf16 = jax.ShapeDtypeStruct, jnp.bfloat16
    lengths = array([(331 * b) % (page * pages) for b in range(B)], jnp.int32)
    table = array([[(37 * b + 5 * i) % P for i in range(pages)] for b in range(B)], jnp.int32)
    pool = S((P, page, H), bf16)
    return S((B, 1, H), bf16), pool, pool, lengths, table


def par(launch: Launch) -> str:
    fetched = sum(o.transfers for o in launch.inputs[1:])
    dots = int((launch.dots[0].executed > 0).sum()) if launch.dots else 0
    return f"{fetched} pages fetched, dots in {dots} of {launch.steps} steps"


def fresh(r):
    return afresh(
        r,
        other=dict(lengths=(9, 24, 1), page=8, P=12, pages=3),
        lengths=((63, 0, 17, 32), (1, 48, 0, 16), (0, 15, 64, 2), (33, 0, 0, 49)),
        page=16,
        P=10,
        pages=4,
    )


PUZZLE = Puzzle(
    spec=paged_attention_spec,
    solution=paged_attention,
    inputs=make_inputs,
    cases=[
        dict(lengths=(37, 16, 0, 1), page=16, P=10, pages=4, garbage=1.0, shared=False),
        dict(
            lengths=(0, 32, 31, 278, 3, 64, 0, 1, 40, 288, 5, 0, 2, 33, 7, 9, 35),
            page=32,
            P=48,
            pages=9,
            garbage=float("nan"),
            shared=True,
            H=256,
            dtype="bfloat16",
        ),
        dict(
            lengths=(1100, 3),
            page=128,
            P=16,
            pages=9,
            garbage=float("nan"),
            shared=False,
        ),
    ],
    fresh=fresh,
    hints=[
        "When does page `i` hold a key that counts? In the last such page, which keys count? "
        "Past a sequence's last page, which block must the map name, so that nothing is fetched?",
        "`jax.lax.broadcasted_iota(jnp.int32, (1, page), 1)` numbers the keys of a page along "
        "a row; with `(page, 1), 0` it numbers them along a column. `pl.cdiv` counts the pages of "
        "a length. `jnp.minimum` and `jnp.maximum` keep an index in its bounds.",
        "In the kernel: under `pl.when`, compare the keys' numbers in the sequence with the "
        "length, once as a row for `seen`, once as a column that chooses between a value and "
        "0; call `attend`. In the map: the number of the last page, at least 0; the smaller "
        "of it and `i`; then that entry of sequence `b` in the table.",
    ],
    explain="""In the reference the guard saves the work on pages that hold no key of the sequence, and
    the repeated index saves their copies, except one page of a sequence without keys. The masks
    matter only in the last page, and a sequence without keys gives zeros.""",
    audit=audit,
    scale=scale,
    par=par,
    tolerance={"float32": 2e-4, "bfloat16": 1e-2},
)
