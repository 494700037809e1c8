"""Rung 9: a sliding window, skipped on both sides."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## local_attention: a window has two edges
#
# In a **sliding window**, as in
# [Mistral 7B](https://arxiv.org/abs/2310.06825), attention layers look back a fixed distance: row t attends to
# column s if **t - window < s ≤ t**. Now there are blocks to skip, and not to fetch, on both sides of a band:
#
# ```text
#  bq = 128, bk = 64, window = 129
#                    columns 0-63   64-127  128-191  192-255  256-319
#  i = 0   rows   0-127       ◣        ◣        ·        ·        ·
#  i = 1   rows 128-255       ◥        ◥        ◣        ◣        ·
#  i = 2   rows 256-383       ·        ·        ◥        ◥        ◣
# ```
#
# ![A map of score blocks: a band along the diagonal is computed, blocks on both sides of it are skipped.](diagrams/splash_attention/local_attention.svg)
#
# The left edge brings a trap. Look at row 255. The first block that its row of blocks computes is block 0, and in it row
# 255 sees **nothing**: its window begins at column 127. All its scores there are `-inf`, and its maximum is still what
# `m` started from. What must that be, so that `exp(s - m_new)` is 0 and not NaN?
#
# Fill in that start, when a block is `needed`, the scale 1/√H and the mask, and the index map of `k` and `v`. Which is the
# first block that block `i` of the queries needs, and which the last?

# %%
def local_attention_spec(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"], window: int
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    scores = jnp.dot(q, k.T) / H**0.5
    t, s = jnp.arange(T)[:, None], jnp.arange(S)[None, :]
    seen = (t - window < s) & (s <= t)
    return jnp.dot(jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=1), v)


# %%
def local_attention_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref, *, window):
    i, j = pl.program_id(0), pl.program_id(1)
    (bq, H), bk = q_ref.shape, k_ref.shape[0]
    first_row, last_row = i * bq, (i + 1) * bq - 1
    first_column, last_column = j * bk, (j + 1) * bk - 1

    @pl.when(j == 0)
    def _():
        ### BEGIN SOLUTION
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        ### END SOLUTION
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    # needed: is there a score in this block that counts?
    ### BEGIN SOLUTION
    needed = (first_column <= last_row) & (last_column > first_row - window)
    ### END SOLUTION

    @pl.when(needed)
    def _():
        s = jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        row = first_row + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        column = first_column + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        # s: scaled, and masked
        ### BEGIN SOLUTION
        mask = (row - window < column) & (column <= row)
        s = jnp.where(mask, s * H**-0.5, -jnp.inf)
        ### END SOLUTION
        m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp(s - m_new)
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = alpha * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[...]


def local_attention(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"], window: int
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape  # T < S + window: every row sees something
    bq, bk = (64, 128) if T < S else (128, 64)  # for practice: both orders

    def kv_map(i, j):
        ### BEGIN SOLUTION
        first_needed = (i * bq - window + 1) // bk
        last_needed = ((i + 1) * bq - 1) // bk
        return jnp.clip(j, first_needed, last_needed), 0
        ### END SOLUTION

    return pl.pallas_call(
        functools.partial(local_attention_kernel, window=window),
        grid=(T // bq, S // bk),
        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
            pl.BlockSpec((bk, H), kv_map),
            pl.BlockSpec((bk, H), kv_map),
        ],
        out_specs=pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(q, k, v)


# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle
from puzzles.splash_attention.attention_one_block import ONES
from puzzles.splash_attention.causal_attention import dots, draw


def make_inputs(key, T, S, H, window):
    assert S + window > T, "every row has to see something"
    return (*draw(key, T, S, H, offsets=(1, -window)), window)


def scale(T=16384, S=16384, H=128, window=1025):  # a block ends just before some windows begin
    return *(jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S)), window


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=384, S=320, H=16, window=129)
    shapes = [(64, 1152, 32, 1), (640, 512, 32, 300), (512, 448, 128, 150), (256, 192, 8, 1000), (192, 512, 32, 128)]
    T, S, H, window = r.choice(shapes)
    return dict(T=int(T), S=int(S), H=int(H), window=int(window))


def dots_and_fetches(launch):
    """What the window is worth in arithmetic and in traffic."""
    often = launch.inputs[1].transfers
    return f"{dots(launch)}, k fetched {often:,} time{'' if often == 1 else 's'}"


_SKIP = "needed = (first_column <= last_row) & (last_column > first_row - window)"
_MASK = "mask = (row - window < column) & (column <= row)"
_CLIP = "return jnp.clip(j, first_needed, last_needed), 0"
_START = "m_ref[...] = jnp.full_like(m_ref, -1e30)"

PUZZLE = Puzzle(
    spec=local_attention_spec,
    solution=local_attention,
    inputs=make_inputs,
    cases=[
        dict(T=384, S=320, H=16, window=129),
        dict(T=256, S=384, H=64, window=2),
        dict(T=640, S=320, H=16, window=321),  # blocks that no edge of the window crosses; the last row sees one key
    ],
    fresh=fresh,
    keeps=dict.fromkeys("qkv", "finite"),
    scale=scale,
    par=dots_and_fetches,
    tolerance=2e-4,
    hints=[
        "The right edge is causal_attention's: it is set by the last row of block i. Which row "
        "decides where the left edge begins, the first or the last? And which column of block j must "
        "reach it?",
        "Conditions on traced numbers are joined with `&`, each in parentheses. `jnp.clip(x, low, "
        "high)` keeps an index between two others; `//` rounds down, for negative numbers too.",
        "Start: finite, and below any score. Needed: causal_attention's condition, and a second one: block j must not end "
        "before the window of the block's first row begins. Mask: two comparisons; the scaled score where they hold, -inf where not. Map: the block "
        "of the first column that the first row sees, the block of the last column that the last row sees, and j clipped "
        "between the two.",
    ],
    explain="""A block has work if it starts no later than the last row and does not end before the
    window of the first row begins. The reference's index map clips j to just those blocks, and it masks with -inf: a row that sees
    nothing in its first block has exp(-inf - m) = 0 for any finite m, and l and acc stay 0. Were both -inf, it would be NaN; were both -1e30, exp(0) = 1 would
    fill l and acc with garbage, which alpha = 0 wipes out when the first real score comes.""",
    mistakes=[
        Mistake(
            "masks with -inf and starts the maximum at -inf",
            old=_START,
            new=_START.replace("-1e30", "-jnp.inf"),
            says="a row that is masked completely in its first block computes -inf - (-inf), which is NaN",
        ),
        Mistake(
            "writes both conditions as one chain",
            old="mask = (row - window < column) & (column <= row)",
            new="mask = row - window < column <= row",
            says="An array of answers is neither true nor false. Join comparisons by `&`",
            stage="error",
        ),
        Mistake(
            "skips only above the diagonal",
            old=_SKIP,
            new="needed = first_column <= last_row",
            says="dots run in 16,512 of 32,768 steps; in the reference in 2,232",
            stage="work",
        ),
        Mistake(
            "skips only what lies before the window",
            old=_SKIP,
            new="needed = last_column > first_row - window",
            says="dots run in 18,488 of 32,768 steps; in the reference in 2,232",
            stage="work",
        ),
        Mistake(
            "skips one block too few at the left edge",
            old="(last_column > first_row - window)",
            new="(last_column >= first_row - window)",
            says="dots run in 2,351 of 32,768 steps; in the reference in 2,232",
            stage="work",
        ),
        Mistake(
            "skips one block too many at the left edge",
            old="(last_column > first_row - window)",
            new="(last_column > first_row - window + 1)",
            says="the earliest column that the block's first row sees is first_row - window + 1, and a "
            "block that ends exactly there still has work",
        ),
        Mistake(
            "skips the blocks between the edges",
            old=_SKIP,
            new="""diagonal = (first_column <= last_row) & (last_column > first_row)
    left_edge = (first_column <= last_row - window) & (last_column > first_row - window)
    needed = diagonal | left_edge""",
            says="a block that no edge of the window crosses needs no mask, and all of its scores count",
        ),
        Mistake(
            "takes the left edge from the last row",
            old="(last_column > first_row - window)",
            new="(last_column > last_row - window)",
            says="the first row of the block looks furthest back; skip a block only if that row does not "
            "reach it either",
        ),
        Mistake(
            "makes the window one column too wide",
            old="row - window < column",
            new="row - window <= column",
            says="t - window < s: the window holds `window` columns, t itself among them",
        ),
        Mistake(
            "makes the window one column too narrow",
            old="row - window < column",
            new="row - window + 1 < column",
            says="t - window < s: column t - window + 1 still counts",
        ),
        Mistake(
            "forgets the left edge in the mask",
            old=_MASK,
            new="mask = column <= row",
            says="a block that the window's edge crosses holds columns that are too far back",
        ),
        Mistake(
            "forgets the scale",
            old="s * H**-0.5, -jnp.inf)",
            new="s, -jnp.inf)",
            says="the scores are not multiplied by 1/√H",
        ),
        Mistake(
            "forgets the diagonal in the mask",
            old=_MASK,
            new="mask = row - window < column",
            says="the window ends at the diagonal: no row may look ahead",
        ),
        Mistake(
            "counts the map's blocks from the first one that is needed",
            old=_CLIP,
            new="return jnp.clip(j + jnp.maximum(first_needed, 0), 0, last_needed), 0",
            says="the kernel takes block j for columns j * bk onwards, so in a step that works the map must return j",
        ),
        Mistake(
            "starts the maximum at 0",
            old="jnp.full_like(m_ref, -1e30)",
            new="jnp.zeros_like(m_ref)",
            says="where all scores of a row lie far below 0, every exp(s - 0) is 0, and so is the sum: start below any score",
        ),
        Mistake(
            "looks ahead as far as back",
            edits=(
                (_MASK, "mask = (row - window < column) & (column < row + window)"),
                ("(first_column <= last_row)", "(first_column < last_row + window)"),
                ("last_needed = ((i + 1) * bq - 1)", "last_needed = ((i + 1) * bq - 1 + window - 1)"),
            ),
            says="this window is causal: it reaches back from t, and ends at t",
        ),
        Mistake(
            "fetches what lies before the window",
            old=_CLIP,
            new="return jnp.minimum(j, last_needed), 0",
            says="Blocks of `k_ref` are fetched 16,512 times, where 2,232 are enough",
            stage="work",
        ),
        Mistake(
            "fetches what lies above the diagonal",
            old=_CLIP,
            new="return jnp.maximum(j, first_needed), 0",
            says="Blocks of `k_ref` are fetched 18,488 times, where 2,232 are enough",
            stage="work",
        ),
        Mistake(
            "fetches from the window of the last row on",
            old="first_needed = (i * bq - window + 1) // bk",
            new="first_needed = ((i + 1) * bq - window) // bk",
            says="the first row of a block needs the earliest block; where the map has gone past it, the "
            "kernel works on the wrong keys",
        ),
        Mistake(
            "returns block numbers relative to the window",
            old=_CLIP,
            new="return jnp.clip(j - jnp.maximum(first_needed, 0), 0, last_needed), 0",
            says="the kernel takes block j for columns j * bk onwards, so in a step that works the map "
            "must return j",
        ),
        Mistake(
            "masks the diagonal, too",
            old="(column <= row)",
            new="(column < row)",
            says="s ≤ t: every row sees its own column",
        ),
        Mistake(
            "masks with zero",
            old="s * H**-0.5, -jnp.inf)",
            new="s * H**-0.5, 0.0)",
            says="a score of 0 is a score like any other: its exponential is not zero",
        ),
        Mistake(
            "starts the maximum at -10000",
            old=_START,
            new=_START.replace("-1e30", "-1e4"),
            says="all scores of a row may lie lower still: start at -1e30, below any score",
        ),
        Mistake(
            "lets one of the two edges be enough",
            old="(row - window < column) & (",
            new="(row - window < column) | (",
            says="a column counts if it is within the window and not in the future: join them by &",
        ),
        Mistake(
            "asks where a block begins at the left edge",
            old="(last_column > first_row - window)",
            new="(first_column > first_row - window)",
            says="a block that begins before the window may end in it: it is the last column that has "
            "to lie in the window of the first row",
        ),
        Mistake(
            "skips blocks that reach beyond their rows",
            old="(first_column <= last_row) &",
            new="(last_column <= last_row) &",
            says="the diagonal crosses them: it is the first column that has to lie at or before the "
            "last row",
        ),
        Mistake(
            "takes the distance for the window",
            old="mask = (row - window < column) & (column <= row)",
            new="mask = jnp.abs(row - column) < window",
            says="`jnp.abs` looks ahead as far as back: a row sees columns up to its own number",
        ),
        Mistake(
            "rounds the first block up",
            old="first_needed = (i * bq - window + 1) // bk",
            new="first_needed = pl.cdiv(i * bq - window + 1, bk)",
            says="the first column that is seen may lie inside a block: subtract, row - window + 1, then divide once, and round down",
        ),
        Mistake(
            "divides row and window apart",
            old="first_needed = (i * bq - window + 1) // bk",
            new="first_needed = i * bq // bk - window // bk",
            says="two divisions that are rounded down do not give the block of the difference: "
            "subtract first, row - window + 1, then divide once",
        ),
        Mistake(
            "counts i in blocks of keys",
            old="first_needed = (i * bq - window + 1) // bk",
            new="first_needed = i - window // bk",
            says="block i begins at row i · bq: compute the first column that this row sees, then "
            "divide by bk",
        ),
        Mistake(
            "multiplies by √H",
            old="mask, s * H**-0.5, -jnp.inf)",
            new="mask, s, -jnp.inf) * H**0.5",
            says="the scores grow by √H where they should shrink by it",
        ),
    ],
    alternatives=[
        ONES,
        Alternative(
            "masks only the blocks that an edge of the window crosses",
            edits=(
                (
                    "    @pl.when(needed)\n    def _():\n        s = jax",
                    "    whole = (last_column <= first_row) & (first_column > last_row - window)\n\n"
                    "    def attend(masked):\n        s = jax",
                ),
                (
                    "s = jnp.where(mask, s * H**-0.5, -jnp.inf)",
                    "s = s * H**-0.5\n        if masked:\n            s = jnp.where(mask, s, -jnp.inf)",
                ),
                (
                    "    @pl.when(j == pl.num_programs(1) - 1)",
                    "    pl.when(needed & whole)(lambda: attend(masked=False))\n"
                    "    pl.when(needed & ~whole)(lambda: attend(masked=True))\n\n"
                    "    @pl.when(j == pl.num_programs(1) - 1)",
                ),
            ),
        ),
        Alternative(
            "asks first and last block in the kernel, too",
            old=_SKIP,
            new="""first = (jnp.maximum(first_row - window + 1, 0)) // bk
    last = last_row // bk
    needed = (first <= j) & (j <= last)""",
        ),
        Alternative(
            "masks the exponentials, so that there is no garbage to wipe",
            old="p = jnp.exp(s - m_new)",
            new="p = jnp.where(mask, jnp.exp(s - m_new), 0.0)",
        ),
        Alternative(
            "masks with -1e30, too: garbage collects, and the first real score wipes it out",
            old="s * H**-0.5, -jnp.inf)",
            new="s * H**-0.5, -1e30)",
        ),
        Alternative(
            "visits the blocks from right to left",
            code="""
def local_attention_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref, *, window):
    i, step, steps = pl.program_id(0), pl.program_id(1), pl.num_programs(1)
    (bq, H), (bk, _) = q_ref.shape, k_ref.shape
    j = steps - 1 - step

    @pl.when(step == 0)
    def _():
        m_ref[...] = jnp.full(m_ref.shape, -1e30)
        l_ref[...] = jnp.zeros(l_ref.shape)
        acc_ref[...] = jnp.zeros(acc_ref.shape)

    @pl.when(((j + 1) * bk + window > i * bq + 1) & (j * bk < (i + 1) * bq))
    def _():
        back = jax.lax.broadcasted_iota(jnp.int32, (bq, bk), 0) + i * bq - j * bk
        back = back - jax.lax.broadcasted_iota(jnp.int32, (bq, bk), 1)
        s = jnp.dot(q_ref[...], k_ref[...].T) * H**-0.5
        s = s + jnp.where((back >= 0) & (back < window), 0.0, -1e30)
        old, m = m_ref[...], jnp.maximum(m_ref[...], s.max(axis=1, keepdims=True))
        p = jnp.exp(s - m)
        m_ref[...] = m
        l_ref[...] = l_ref[...] * jnp.exp(old - m) + p.sum(axis=1, keepdims=True)
        acc_ref[...] = acc_ref[...] * jnp.exp(old - m) + jnp.dot(p, v_ref[...])

    @pl.when(step == steps - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[...]
""",
            edits=(
                (_CLIP, "return jnp.clip(S // bk - 1 - j, first_needed, last_needed), 0"),
                ("            pl.BlockSpec((bk, H), kv_map),\n" * 2, "            *[pl.BlockSpec((bk, H), kv_map)] * 2,\n"),
            ),
        ),
        Alternative(
            "clips with a minimum and a maximum",
            old=_CLIP,
            new="return jnp.minimum(jnp.maximum(j, first_needed), last_needed), 0",
        ),
        Alternative("takes other blocks", old="else (128, 64)", new="else (64, 64)"),
    ],
)
