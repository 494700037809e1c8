"""Rung 14: grouped queries over pages."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## paged_grouped_attention: a page for all heads of its group
#
# Models that are served have many heads of queries, `N`, and few heads of keys and values, `K`: each
# serves a **group** of `N // K` query heads. Query head `h` reads key head `h // (N // K)`.
#
# Decoding computes little with each byte that it moves. So the question is: how often is a page
# fetched?
#
# ```text
#                       N = 8 query heads, K = 2: groups of 4
# grid (B, N)           a page of a key head is fetched 4 times
# grid (B, K)           a page is fetched once; attend sees 4 rows of q
# ```
#
# `attend` takes any number of rows, so the kernel is that of `paged_attention_dma`. Only `fetch`
# learns that pages have a head, too: their order is (K, P, page, H), as in JAX's `paged_attention`
# (2024).
#
# Write `fetch`, the grid, and the blocks of `q` and of the output, which are reshaped to
# (B, K, group, H).

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
    p, old = jnp.exp(s - m), jnp.exp(m_ref[...] - m)
    l_ref[...] = old * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    acc_ref[...] = old * acc_ref[...] + jnp.dot(p, v, preferred_element_type=f32)
    m_ref[...] = m


def result(l_ref, acc_ref):
    return jnp.where(l_ref[...] == 0, 0, acc_ref[...] / l_ref[...])

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
def paged_grouped_attention_kernel(
    lengths_ref, table_ref, q_ref, k_pages_ref, v_pages_ref, o_ref,
    k_slots, v_slots, sems, m_ref, l_ref, acc_ref,
):  # fmt: skip
    b, head, page = pl.program_id(0), pl.program_id(1), k_slots.shape[1]
    length, most = lengths_ref[b], table_ref.shape[0] // lengths_ref.shape[0]
    n = pl.cdiv(length, page)

    def fetch(i, slot):
        # The copies of keys and values of page i of this text and of this head.
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
                *(pltpu.VMEM((group, n), jnp.float32) for n in (1, 1, H)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((B, K, group, H), q.dtype),
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), q.reshape(B, K, group, H), k_pages, v_pages)
    return o.reshape(B, N, H)


# %% [markdown]
# Still, in the reference, each text and key head begins with a bare wait for its first page.

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.pipelines._audits import overlapped
from puzzles.pipelines._paged import KEEPS, afresh, drawn, fetches_no_more


def make_inputs(key, lengths, N, K, page, P, pages, garbage, shared, H=128, dtype="float32"):
    return drawn(
        rng(key), lengths, page, P, pages, garbage, shared, heads=(K,), queries=N, H=H, dtype=dtype
    )


def audit(launch: Launch, *, args) -> None:
    K = args[1].shape[0]
    # by index map it is the pipeline that fetches, one page for an empty text
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
        N=8, K=2, page=16, P=10, pages=3,
    )


_AT = "        at = table_ref[b * most + i]\n"
_Q = "                pl.BlockSpec((None, None, group, H), lambda b, head, *_: (b, head, 0, 0)),\n"
_WAIT = """        for copy in fetch(i, slot):
            copy.wait()
"""

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
    keeps=KEEPS,
    hints=[
        "One grid step is one text and one key head. Which rows of `q` does it serve, and which page of "
        "which head does it fetch?",
        "`k_pages_ref.at[…, …]` takes the head and the page. A block (None, None, group, H) has two axes "
        "left; index maps get the program ids, then the refs of scalar prefetch.",
        "In `fetch`: the table's entry, then two copies as in the rung before, with the head in front. In "
        "the call: two axes, texts and key heads; one BlockSpec for `q` and for the output; pages stay in HBM.",
    ],
    explain="""A step of the grid is a text and a key head, and its block of q is the whole group:
    each page is fetched once and serves all of its heads. In the reference the body did not change:
    it never knew how many rows `q` had.""",
    mistakes=[
        Mistake(
            "copies the first page twice",
            old="        for copy in fetch(i, slot):\n            copy.wait()\n",
            new="""        for copy in fetch(i, slot):
            copy.wait()

            @pl.when(i == 0)
            def _(copy=copy):
                copy.start()
                copy.wait()

""",
            says="fetch each page that holds keys which count once",
            stage="work",
        ),
        Mistake(
            "takes the first head's keys for every head",
            old="k_pages_ref.at[head, at]",
            new="k_pages_ref.at[0, at]",
            says="all groups are compared with the keys of head 0: `head` says whose they are",
        ),
        Mistake(
            "takes the first head's values for every head",
            old="v_pages_ref.at[head, at]",
            new="v_pages_ref.at[0, at]",
            says="all groups average the values of head 0: `head` says whose they are",
        ),
        Mistake(
            "takes the first head's pages for every head",
            edits=(
                ("k_pages_ref.at[head, at]", "k_pages_ref.at[0, at]"),
                ("v_pages_ref.at[head, at]", "v_pages_ref.at[0, at]"),
            ),
            says="all groups get the pages of head 0: `head` says whose they are, and counts key heads already",
        ),
        Mistake(
            "names the page before the head",
            edits=(
                ("k_pages_ref.at[head, at]", "k_pages_ref.at[at, head]"),
                ("v_pages_ref.at[head, at]", "v_pages_ref.at[at, head]"),
            ),
            says="page and head have changed places: pages are (K, P, page, H), so the head comes first",
        ),
        Mistake(
            "takes keys and values from the same array",
            old="v_pages_ref.at[head, at]",
            new="k_pages_ref.at[head, at]",
            says="what is averaged are the keys: `v_pages_ref` is never read",
        ),
        Mistake(
            "does not read the table",
            old=_AT,
            new="        at = i\n",
            says="every text gets the first pages of memory: the table says which are its own",
        ),
        Mistake(
            "gives all texts the first one's pages",
            old=_AT,
            new="        at = table_ref[i]\n",
            says="text b's entries begin at number b * most",
        ),
        Mistake(
            "counts entries of the table by heads",
            old=_AT,
            new="        at = table_ref[head * most + i]\n",
            says="the table has a row for each text, not for each head: all heads of a text share it",
        ),
        Mistake(
            "serves the first group only, again and again",
            edits=(
                (_Q, _Q.replace("(b, head, 0, 0)", "(b, 0, 0, 0)")),
            ),
            says="all groups get the queries of group 0: the block of `q` is (b, head, 0, 0)",
        ),
        Mistake(
            "writes all groups to one place",
            edits=(
                (
                    "out_specs=pl.BlockSpec((None, None, group, H), lambda b, head, *_: (b, head, 0, 0))",
                    "out_specs=pl.BlockSpec((None, None, group, H), lambda b, head, *_: (b, 0, 0, 0))",
                ),
            ),
            says="only group 0 of each text is written, and holds the last group's result",
        ),
        Mistake(
            "has one step for each text",
            old="            grid=(B, K),\n",
            new="            grid=(B, 1),\n",
            says="only key head 0 is visited, and nobody writes the other groups (NaN there): the second axis "
            "has K steps",
        ),
        Mistake(
            "swaps the axes of the grid",
            old="            grid=(B, K),\n",
            new="            grid=(K, B),\n",
            says="texts and key heads are counted in the wrong order: the first axis has B steps",
        ),
        Mistake(
            "groups heads by their remainder",
            edits=(
                ("q.reshape(B, K, group, H), k_pages", "q.reshape(B, group, K, H).swapaxes(1, 2), k_pages"),
                ("return o.reshape(B, N, H)", "return o.swapaxes(1, 2).reshape(B, N, H)"),
            ),
            says="head h was given key head h % K; neighbours form a group: it is h // group",
        ),
        Mistake(
            "has a step for each query head",
            edits=(
                ("            grid=(B, K),\n", "            grid=(B, N),\n"),
                ("    b, head, page = pl.program_id(0), pl.program_id(1), k_slots.shape[1]\n",
                 "    b, page = pl.program_id(0), k_slots.shape[1]\n"
                 "    head = pl.program_id(1) // (pl.num_programs(1) // k_pages_ref.shape[0])\n"),
                (_Q, "                pl.BlockSpec((None, None, 1, H), lambda b, h, *_: (b, h, 0, 0)),\n"),
                (
                    "out_specs=pl.BlockSpec((None, None, group, H), lambda b, head, *_: (b, head, 0, 0))",
                    "out_specs=pl.BlockSpec((None, None, 1, H), lambda b, h, *_: (b, h, 0, 0))",
                ),
                ("*(pltpu.VMEM((group, n)", "*(pltpu.VMEM((1, n)"),
                ("out_shape=jax.ShapeDtypeStruct((B, K, group, H)", "out_shape=jax.ShapeDtypeStruct((B, N, 1, H)"),
                ("q.reshape(B, K, group, H), k_pages", "q.reshape(B, N, 1, H), k_pages"),
            ),
            says="80 pages are fetched, and these lengths need 20",
            stage="work",
        ),
        Mistake(
            "repeats keys and values for each query head",
            edits=(
                ("    (B, N, H), (K, _, page, _) = q.shape, k_pages.shape\n    group",
                 "    k_pages = jnp.repeat(k_pages, q.shape[1] // k_pages.shape[0], axis=0)\n"
                 "    v_pages = jnp.repeat(v_pages, q.shape[1] // v_pages.shape[0], axis=0)\n"
                 "    (B, N, H), (K, _, page, _) = q.shape, k_pages.shape\n    group"),
            ),
            says="for all that it serves, and no other",
            stage="work",
        ),
        Mistake(
            "waits for the keys only",
            old=_WAIT,
            new="        fetch(i, slot)[0].wait()\n",
            says="reads `v_slots[0]`, and the copy into it, started in `copy.start()`",
            stage="memory",
        ),
        Mistake(
            "walks as many steps for each text as the longest may need",
            code='''
def paged_grouped_attention(q, k_pages, v_pages, lengths, table):
    (B, N, H), (K, _, page, _), (_, pages) = q.shape, k_pages.shape, table.shape

    def kernel(lengths_ref, table_ref, q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
        b, i = pl.program_id(0), pl.program_id(2)
        length = lengths_ref[b]
        pl.when(i == 0)(lambda: start(m_ref, l_ref, acc_ref))

        @pl.when(i * page < length)
        def _():
            seen = i * page + jax.lax.broadcasted_iota(jnp.int32, (1, page), 1) < length
            counts = i * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0) < length
            v = jnp.where(counts, v_ref[...], 0)
            attend(q_ref[...], k_ref[...], v, seen, m_ref, l_ref, acc_ref)

        @pl.when(i == pages - 1)
        def _():
            o_ref[...] = result(l_ref, acc_ref).astype(o_ref.dtype)

    def page_of(b, head, i, lengths_ref, table_ref):
        last = jnp.maximum(pl.cdiv(lengths_ref[b], page) - 1, 0)
        return head, table_ref[b * pages + jnp.minimum(i, last)], 0, 0

    rows = pl.BlockSpec((None, None, N // K, H), lambda b, head, *_: (b, head, 0, 0))
    one_page = pl.BlockSpec((None, None, page, H), page_of)
    o = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B, K, pages),
            in_specs=[rows, one_page, one_page],
            out_specs=rows,
            scratch_shapes=[pltpu.VMEM((N // K, n), jnp.float32) for n in (1, 1, H)],
        ),
        out_shape=jax.ShapeDtypeStruct((B, K, N // K, H), q.dtype),
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), q.reshape(B, K, N // K, H), k_pages, v_pages)
    return o.reshape(B, N, H)
''',
            says="grid steps compute nothing; in the reference it is 0 of 64",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative(
            "scales the queries before the dot, and asks whether l is above 0",
            edits=(
                (
                    's = jnp.einsum("gh,sh->gs", q, k, preferred_element_type=f32) / q.shape[1] ** 0.5',
                    "q, k = q.astype(f32) * q.shape[1] ** -0.5, k.astype(f32)\n"
                    '    s = jnp.einsum("gh,sh->gs", q, k, preferred_element_type=f32)',
                ),
                (
                    "jnp.where(l_ref[...] == 0, 0, acc_ref[...] / l_ref[...])",
                    "jnp.where(l_ref[...] > 0, acc_ref[...] / l_ref[...], 0)",
                ),
            ),
        ),
        Alternative(
            "waits for values first, by name",
            old=_WAIT,
            new="        keys, values = fetch(i, slot)\n        values.wait()\n        keys.wait()\n",
        ),
        Alternative(
            "walks key heads before texts",
            edits=(
                ("            grid=(B, K),\n", "            grid=(K, B),\n"),
                ("b, head, page = pl.program_id(0), pl.program_id(1),", "b, head, page = pl.program_id(1), pl.program_id(0),"),
                (_Q, _Q.replace("lambda b, head", "lambda head, b")),
                (
                    "out_specs=pl.BlockSpec((None, None, group, H), lambda b, head, *_: (b, head, 0, 0))",
                    "out_specs=pl.BlockSpec((None, None, group, H), lambda head, b, *_: (b, head, 0, 0))",
                ),
            ),
        ),
        Alternative(
            "lets a pipeline of the length of its text do it",
            code='''
def paged_grouped_attention(q, k_pages, v_pages, lengths, table):
    (B, N, H), (K, _, page, _), (_, pages) = q.shape, k_pages.shape, table.shape

    def kernel(lengths_ref, table_ref, q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
        b, head = pl.program_id(0), pl.program_id(1)
        length = lengths_ref[b]
        start(m_ref, l_ref, acc_ref)

        def one_page(k_block, v_block):
            i = pl.program_id(0)
            seen = i * page + jax.lax.broadcasted_iota(jnp.int32, (1, page), 1) < length
            counts = i * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0) < length
            v = jnp.where(counts, v_block[0, 0], 0)
            attend(q_ref[...], k_block[0, 0], v, seen, m_ref, l_ref, acc_ref)

        spec = pl.BlockSpec((1, 1, page, H), lambda i: (head, table_ref[b * pages + i], 0, 0))
        n = pl.cdiv(length, page)
        pltpu.emit_pipeline(one_page, grid=(n,), in_specs=[spec, spec])(k_ref, v_ref)
        o_ref[...] = result(l_ref, acc_ref).astype(o_ref.dtype)

    rows = pl.BlockSpec((None, None, N // K, H), lambda b, head, *_: (b, head, 0, 0))
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    o = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B, K),
            in_specs=[rows, hbm, hbm],
            out_specs=rows,
            scratch_shapes=[pltpu.VMEM((N // K, n), jnp.float32) for n in (1, 1, H)],
        ),
        out_shape=jax.ShapeDtypeStruct((B, K, N // K, H), q.dtype),
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), q.reshape(B, K, N // K, H), k_pages, v_pages)
    return o.reshape(B, N, H)
''',
        ),
    ],
    audit=audit,
    scale=scale,
    par=par,
    tolerance={"float32": 2e-4, "bfloat16": 1e-2},
)
