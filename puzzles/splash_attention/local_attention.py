"""Puzzle 9: a sliding window, skipped on both sides."""

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
# column s if **t - window < s ≤ t**. Now blocks on both sides of a band can be skipped, and need not be fetched:
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
# The left edge brings a trap. Look at row 255. It belongs to i = 1, whose first block with work is block 0. There row 255
# attends to **nothing**: its window begins at column 127. All its scores in this block are `-inf`, and its maximum is
# still the start of `m`. What must that start be, so that `exp(s - m_new)` is 0 and not NaN?
#
# Fill in this start, the condition `needed`, the scale 1/√H and the mask, and the index map of `k` and `v`. Which is the
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
from puzzles.splash_attention.flash_attention import spread


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
        p = jnp.exp(s - spread(m_new, s))
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[:, :1]


def local_attention(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"], window: int
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape  # T < S + window: every row attends to something
    bq, bk = (64, 128) if T < S else (128, 64)  # for practice: bq < bk, and bq > bk

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
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(q, k, v)


# %% tags=["author"]
from puzzles import Puzzle
from puzzles.splash_attention.causal_attention import dots, draw


def make_inputs(key, T, S, H, window):
    assert S + window > T, "every row has to see something"
    return (*draw(key, T, S, H, offsets=(1, -window)), window)


def scale(T=16384, S=16384, H=128, window=1025):  # a block ends just before some windows begin
    return *(jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S)), window


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=384, S=320, H=16, window=129)
    shapes = [
        (64, 1152, 32, 1),
        (640, 512, 32, 300),
        (512, 448, 128, 150),
        (256, 192, 8, 1000),
        (192, 512, 32, 128),
    ]
    T, S, H, window = r.choice(shapes)
    return dict(T=int(T), S=int(S), H=int(H), window=int(window))


def dots_and_fetches(launch):
    """What the window is worth in arithmetic and in traffic."""
    often = launch.inputs[1].transfers
    return f"{dots(launch)}, k fetched {often:,} time{'' if often == 1 else 's'}"


PUZZLE = Puzzle(
    spec=local_attention_spec,
    solution=local_attention,
    inputs=make_inputs,
    cases=[
        dict(T=384, S=320, H=16, window=129),
        dict(T=256, S=384, H=64, window=2),
        dict(
            T=640, S=320, H=16, window=321
        ),  # blocks that no edge of the window crosses; the last row sees one key
    ],
    fresh=fresh,
    scale=scale,
    par=dots_and_fetches,
    tolerance=2e-4,
    hints=[
        "The right edge is causal_attention's: the last row of block i sets it. Which row "
        "decides where the left edge begins, the first or the last? And which column of block j "
        "must reach it?",
        "Join conditions on traced numbers with `&`, each in parentheses. `jnp.clip(x, low, "
        "high)` keeps an index between two others; `//` rounds down, for negative numbers too.",
        "Start: finite, and below any score. Needed: causal_attention's condition, and a second "
        "one: block j must not end before the window of block i's first row begins. Mask: two "
        "comparisons; take the scaled score if both hold, and -inf otherwise. Map: find the "
        "block of the first column that the first row attends to, and the block of the last "
        "column that the last row attends to; clip j between the two.",
    ],
    explain="""A block has work if it starts no later than the last row and does not end before
    the window of the first row begins. The reference's index map clips j to just those blocks.
    It masks with -inf. If a row attends to nothing in its first block, exp(-inf - m) is 0 for
    any finite m, and l and acc stay 0. If both were -inf, the result would be NaN. If both were
    -1e30, exp(0) = 1 would fill l and acc with garbage, until alpha = 0 wipes it out when the
    first real score comes.""",
)
