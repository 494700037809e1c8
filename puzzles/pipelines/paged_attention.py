"""Rung 11: attention over pages, by index map."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## paged_attention: one query over its pages
#
# A model that writes a text asks, in each head, one **query** a token: it is compared with all keys of
# the text so far, and the values are averaged with the weights that come out.
#
# Step `(b, i)` of the grid handles page `i` of text `b`:
#
# ```text
# page = 16     lengths   i = 0          i = 1           i = 2           i = 3
# b = 0           37      16 keys        16 keys          5 keys         nothing
# b = 1            0      nothing        nothing         nothing         nothing
# b = 2           16      16 keys        nothing         nothing         nothing
# ```
#
# `attend`, in the folded cell, updates a softmax by one page. Keys that `seen` leaves out get weight 0, if any key counts.
#
# Two things are yours. **The kernel** works only where a page holds keys that count, and puts zeros for
# the values of the others: NaN may lie there. **The index map** repeats the last page past the end:
# a block whose index does not change is not fetched again. The table comes flat, as SMEM pads rows to
# 128 numbers: entry `i` of text `b` is number `b * pages + i`.

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
def paged_attention_kernel(
    lengths_ref, table_ref, q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref
):
    b, i = pl.program_id(0), pl.program_id(1)
    page, length = k_ref.shape[0], lengths_ref[b]

    @pl.when(i == 0)
    def _():
        start(m_ref, l_ref, acc_ref)

    # Only where this page has keys that count: `attend`, with `seen` of shape (1, page), and with
    # zeros for the values of keys that do not.
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

    def page_of(b, i, lengths_ref, table_ref):
        # The block index of page i of text b, or of its last page if it has fewer.
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
            scratch_shapes=[pltpu.VMEM((1, n), jnp.float32) for n in (1, 1, H)],
        ),
        out_shape=jax.ShapeDtypeStruct((B, 1, H), q.dtype),
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), q, k_pages, v_pages)


# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.pipelines._paged import KEEPS, afresh, drawn, fetches_no_more, pages_needed


def make_inputs(key, lengths, page, P, pages, garbage, shared, H=128, dtype="float32"):
    return drawn(rng(key), lengths, page, P, pages, garbage, shared, H=H, dtype=dtype)


def audit(launch: Launch, *, args) -> None:
    lengths, page = args[3], args[1].shape[1]
    fetches_no_more(launch, lengths, page, idle=1)
    run = max((int(dot.executed.sum()) for dot in launch.least.dots), default=0)
    needed = pages_needed(lengths, page) + int((lengths == 0).sum())
    assert run <= needed, (
        f"dots run in {run} steps, where {needed} pages hold keys that count, with one for each empty text: "
        f"skip what lies beyond a length; a page has {page} rows here"
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
        page=16, P=10, pages=4,
    )


_COUNTS = """        counts = i * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0) < length
        v = jnp.where(counts, v_ref[...], 0)
"""
_GUARD = "@pl.when(i * page < length)"
_SEEN = "seen = i * page + jax.lax.broadcasted_iota(jnp.int32, (1, page), 1) < length"
_LAST = "        last = jnp.maximum(pl.cdiv(lengths_ref[b], page) - 1, 0)\n"
_PAGE = "return table_ref[b * pages + jnp.minimum(i, last)], 0, 0"

PUZZLE = Puzzle(
    spec=paged_attention_spec,
    solution=paged_attention,
    inputs=make_inputs,
    cases=[
        dict(lengths=(37, 16, 0, 1), page=16, P=10, pages=4, garbage=1.0, shared=False),
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
    keeps=KEEPS,
    hints=[
        "When does page `i` hold a key that counts? In the last such page, which keys count? And which "
        "block must a step past a text's last page name, so that nothing is fetched?",
        "`jax.lax.broadcasted_iota(jnp.int32, (1, page), 1)` numbers the keys of a page along a row, "
        "`(page, 1), 0` along a column; `pl.cdiv` counts the pages of a length; `jnp.minimum` and `jnp.maximum` "
        "keep an index in its bounds.",
        "In the kernel: under `pl.when`, compare the keys' numbers in the text with the length, once as a row "
        "for `seen`, once as a column that chooses between a value and 0; call `attend`. In the map: the "
        "number of the last page, at least 0; then the entry of the smaller of `i` and it.",
    ],
    explain="""In the reference the guard saves the work on pages that hold no key of the text, and
    the repeated index saves their copies, but for one page of a text without keys. The masks matter
    in the last page only, and a text without keys gives zeros.""",
    mistakes=[
        Mistake(
            "takes each page for one of 16 rows",
            old="@pl.when(i * page < length)",
            new="@pl.when(i * 16 < length)",
            says="a page has 32 rows here",
            stage="work",
        ),
        Mistake(
            "does not read the table",
            old=_PAGE,
            new="return jnp.minimum(i, last), 0, 0",
            says="every text gets the first pages of memory: the table says which are its own",
        ),
        Mistake(
            "gives all texts the first one's pages",
            old="table_ref[b * pages + jnp",
            new="table_ref[jnp",
            says="text b's entries begin at number b * pages",
        ),
        Mistake(
            "counts a text's entries by its length",
            old="table_ref[b * pages + jnp",
            new="table_ref[b * page + jnp",
            says="a row of the table has `pages` entries, not `page`",
        ),
        Mistake(
            "does not mask the last page",
            old=_SEEN,
            new="seen = jnp.full((1, page), True)",
            says="the last page's tail is attended to: those keys are not of this text",
        ),
        Mistake(
            "leaves NaN among the values behind the last key",
            old=_COUNTS,
            new="        v = v_ref[...]\n",
            says="behind a text's last key lies NaN, and 0 times NaN is NaN: put zeros there, by `jnp.where`",
        ),
        Mistake(
            "returns f32, whatever q is",
            old="jax.ShapeDtypeStruct((B, 1, H), q.dtype)",
            new="jax.ShapeDtypeStruct((B, 1, H), jnp.float32)",
            says="wrong dtype: expected bfloat16, got float32",
        ),
        Mistake(
            "masks one key too late",
            old="(1, page), 1) < length",
            new="(1, page), 1) <= length",
            says="key number `length` is the first that does not count",
        ),
        Mistake(
            "masks one key too early",
            old="(1, page), 1) < length",
            new="(1, page), 1) < jnp.maximum(length - 1, 1)",
            says="the newest key is left out: its number is length - 1",
        ),
        Mistake(
            "numbers the keys of every page from 0",
            old="seen = i * page + jax",
            new="seen = jax",
            says="each page is masked as if it were the first: page i begins at key i * page",
        ),
        Mistake(
            "numbers the keys and values of every page from 0",
            edits=(("seen = i * page + jax", "seen = jax"), ("counts = i * page + jax", "counts = jax")),
            says="page i begins at key i * page, for `seen` and for the values: each is masked as if it were the first",
        ),
        Mistake(
            "lets one key and its value too many in",
            edits=(("(1, page), 1) < length", "(1, page), 1) <= length"), ("(page, 1), 0) < length", "(page, 1), 0) <= length")),
            says="keys are numbered from 0, so number `length` is the first that does not count, nor does its value",
        ),
        Mistake(
            "takes the first length for every text",
            old="page, length = k_ref.shape[0], lengths_ref[b]",
            new="page, length = k_ref.shape[0], lengths_ref[0]",
            says="all texts are as long as the first: `b` says whose length it is",
        ),
        Mistake(
            "averages the keys",
            old="attend(q_ref[...], k_ref[...], v, seen,",
            new="attend(q_ref[...], v, k_ref[...], seen,",
            says="keys and values have changed places: the query meets keys, and values are averaged",
        ),
        Mistake(
            "skips a page that is not full",
            old=_GUARD,
            new="@pl.when((i + 1) * page <= length)",
            says="the keys in a page that is not full are lost: one key is reason enough to work",
        ),
        Mistake(
            "works on a text without keys",
            old=_GUARD,
            new="@pl.when((i * page < length) | (i == 0))",
            says="dots run in 264 of 512 steps",
            stage="work",
        ),
        Mistake(
            "computes every page, and masks the rest",
            old="    " + _GUARD + "\n    def _():\n        " + _SEEN,
            new="    pl.when(i < 0)(lambda: None)\n\n    @pl.when(length > 0)\n    def _():\n        " + _SEEN,
            says="dots run in",
            stage="work",
        ),
        Mistake(
            "fetches the pages beyond a length",
            old=_LAST,
            new="        last = pages - 1\n",
            says="fetch each page that holds keys which count once",
            stage="work",
        ),
        Mistake(
            "stops at the last full page",
            old="pl.cdiv(lengths_ref[b], page) - 1, 0)",
            new="lengths_ref[b] // page - 1, 0)",
            says="where the last page is not full, the one before it is read twice",
        ),
        Mistake(
            "names a page before the first for a text without keys",
            old=_LAST,
            new="        last = pl.cdiv(lengths_ref[b], page) - 1\n",
            says="`table_ref[-1]` is read at grid step (0, 0), and there is no such entry",
            stage="memory",
        ),
        Mistake(
            "gives an empty text 0 / 0",
            old="return jnp.where(l_ref[...] == 0, 0, acc_ref[...] / l_ref[...])",
            new="return acc_ref[...] / l_ref[...]",
            says="a text without keys has no weights, and 0 / 0 is NaN: it gives zeros",
        ),
        Mistake(
            "goes on with the softmax of the text before",
            old="    @pl.when(i == 0)\n    def _():\n        start",
            new="    @pl.when((i == 0) & (b == 0))\n    def _():\n        start",
            says="the sums of one text run into the next: each starts anew",
        ),
        Mistake(
            "skips a last page, full or not",
            old="@pl.when(i * page < length)",
            new="@pl.when((i + 1) * page < length)",
            says="a page has work if its first key counts, i * page < length",
        ),
        Mistake(
            "takes the number of the page for that of the text",
            old="table_ref[b * pages +",
            new="table_ref[i * pages +",
            says="text b has its entries from b * pages on",
        ),
        Mistake(
            "takes the later of page and last page",
            old="jnp.minimum(i, last)",
            new="jnp.maximum(i, last)",
            says="up to the last page each comes in its turn, and no page comes after it: "
            "`jnp.minimum`",
        ),
        Mistake(
            "takes the first length for all in the map",
            old="pl.cdiv(lengths_ref[b], page)",
            new="pl.cdiv(lengths_ref[0], page)",
            says="which page is a text's last, its own length says: `lengths_ref[b]`",
        ),
    ],
    alternatives=[
        Alternative(
            "numbers the values one by one, and masks them in f32",
            old=_COUNTS,
            new="""        number = i * page + jax.lax.broadcasted_iota(jnp.int32, v_ref.shape, 0)
        v = jnp.where(number < length, v_ref[...].astype(jnp.float32), 0)
""",
        ),
        Alternative(
            "masks in the last page only",
            old=_COUNTS,
            new="""        v = jax.lax.cond(
            (i + 1) * page <= length,
            lambda: v_ref[...],
            lambda: jnp.where(
                jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0) < length - i * page, v_ref[...], 0
            ),
        )
""",
        ),
        Alternative(
            "compares with what is left of the text",
            edits=(
                (_GUARD, "@pl.when(length - i * page > 0)"),
                (_SEEN, "seen = jax.lax.broadcasted_iota(jnp.int32, (1, page), 1) < length - i * page"),
            ),
        ),
        Alternative(
            "clamps the key instead of the page",
            edits=(
                (_LAST, "        last = jnp.maximum(lengths_ref[b] - 1, 0)\n"),
                ("jnp.minimum(i, last)]", "jnp.minimum(i * page, last) // page]"),
            ),
        ),
        Alternative(
            "loops over the pages itself, with copies by hand",
            code='''
def paged_attention(q, k_pages, v_pages, lengths, table):
    (B, _, H), (_, page, _), (_, pages) = q.shape, k_pages.shape, table.shape

    def kernel(lengths_ref, table_ref, q_ref, k_ref, v_ref, o_ref, slots, m_ref, l_ref, acc_ref, sems):
        b = pl.program_id(0)
        length = lengths_ref[b]
        n = pl.cdiv(length, page)

        def fetch(i):
            at = table_ref[b * pages + i]
            return [
                pltpu.make_async_copy(one.at[at], slots.at[which, i % 2], sems.at[which, i % 2])
                for which, one in enumerate((k_ref, v_ref))
            ]

        start(m_ref, l_ref, acc_ref)

        @pl.when(n > 0)
        def _():
            for copy in fetch(0):
                copy.start()

        def step(i, _):
            @pl.when(i + 1 < n)
            def _():
                for copy in fetch(i + 1):
                    copy.start()

            for copy in fetch(i):
                copy.wait()
            seen = i * page + jax.lax.broadcasted_iota(jnp.int32, (1, page), 1) < length
            counts = i * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0) < length
            k, v = slots[0, i % 2], jnp.where(counts, slots[1, i % 2], 0)
            attend(q_ref[...], k, v, seen, m_ref, l_ref, acc_ref)

        jax.lax.fori_loop(0, n, step, None)
        o_ref[...] = result(l_ref, acc_ref).astype(o_ref.dtype)

    query = pl.BlockSpec((None, 1, H), lambda b, *_: (b, 0, 0))
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B,),
            in_specs=[query, hbm, hbm],
            out_specs=query,
            scratch_shapes=[
                pltpu.VMEM((2, 2, page, H), k_pages.dtype),
                *(pltpu.VMEM((1, n), jnp.float32) for n in (1, 1, H)),
                pltpu.SemaphoreType.DMA((2, 2)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((B, 1, H), q.dtype),
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), q, k_pages, v_pages)
''',
        ),
    ],
    audit=audit,
    scale=scale,
    par=par,
    tolerance={"float32": 2e-4, "bfloat16": 1e-2},
)
