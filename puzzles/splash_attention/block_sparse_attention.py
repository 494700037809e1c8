"""Rung 13: one kernel for every mask, steered by tables in SMEM."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## block_sparse_attention: a kernel that reads its orders
#
# At step (i, j) the kernel looks up a kind: 0, skip; 1, mask by the block's pattern; 2, take the scores as they are.
#
# What decides about fetches must be there before the first block is fetched.
# **Scalar prefetch** does that: the first operands of the call are copied whole into SMEM, the memory of the scalar
# unit, before the grid starts. `grid_spec=` says how many, in a
# `pltpu.PrefetchScalarGridSpec`: `num_scalar_prefetch=2`. They reach:
#
# * the **kernel**, as its first two refs, to be read one number at a time;
# * every **index map**, after `i` and `j`. So a map can look up *which pattern* block (i, j) needs.
#
# ```text
#    SMEM   mask_index_ref   0 0 0 1 0 0 0 2 ...      HBM   partial_masks  (P, bq, bk)
#                                  │                               ┌────┐┌────┐┌────┐
#           mask_map(i, j, ...) ───┘ = (1, 0, 0) ────────────────→ │ 0  ││ 1  ││ 2  │
#                                                                  └────┘└────┘└────┘
# ```
#
# In SMEM a 2-D array has its rows padded to a multiple of 128 numbers. So both tables come flat, row by row. `pl.num_programs(1)` is
# J, the number of columns.
#
# Fill in the kernel's look-up, whether work is `needed`, which scores count, and the index map of the patterns.

# %%
def block_sparse_attention_spec(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    block_mask: Int[np.ndarray, "I J"],
    mask_index: Int[np.ndarray, "I J"],
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> Float[Array, "T H"]:
    kinds = block_mask[:, :, None, None]
    blocks = np.where(kinds == 1, partial_masks[mask_index], kinds == 2)  # (I, J, bq, bk)
    mask = blocks.swapaxes(1, 2).reshape(len(q), len(k))
    scores = jnp.where(mask, jnp.dot(q, k.T) / q.shape[1] ** 0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=1)
    return jnp.dot(jnp.where(mask, weights, 0.0), v)  # a row of NaNs becomes a row of zeros


# %%
def block_sparse_attention_kernel(
    block_mask_ref, mask_index_ref, q_ref, k_ref, v_ref, mask_ref, o_ref, m_ref, l_ref, acc_ref
):
    i, j = pl.program_id(0), pl.program_id(1)
    # kind: the number in the table; needed: is there work?
    ### BEGIN SOLUTION
    kind = block_mask_ref[i * pl.num_programs(1) + j]
    needed = kind > 0
    ### END SOLUTION

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(needed)
    def _():
        s = jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        s *= q_ref.shape[1] ** -0.5
        ### BEGIN SOLUTION
        mask = mask_ref[...] | (kind == 2)
        s = jnp.where(mask, s, -jnp.inf)
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
        l = l_ref[...]
        o_ref[...] = acc_ref[...] / jnp.where(l == 0.0, 1.0, l)


def block_sparse_attention(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    block_mask: Int[np.ndarray, "I J"],
    mask_index: Int[np.ndarray, "I J"],
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> Float[Array, "T H"]:
    (T, H), (I, J), (_, bq, bk) = q.shape, block_mask.shape, partial_masks.shape

    def mask_map(i, j, block_mask_ref, mask_index_ref):
        ### BEGIN SOLUTION
        return mask_index_ref[i * J + j], 0, 0
        ### END SOLUTION

    return pl.pallas_call(
        block_sparse_attention_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(I, J),
            in_specs=[
                pl.BlockSpec((bq, H), lambda i, j, *tables: (i, 0)),
                pl.BlockSpec((bk, H), lambda i, j, *tables: (j, 0)),
                pl.BlockSpec((bk, H), lambda i, j, *tables: (j, 0)),
                pl.BlockSpec((None, bq, bk), mask_map),
            ],
            out_specs=pl.BlockSpec((bq, H), lambda i, j, *tables: (i, 0)),
            scratch_shapes=[
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, H), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(block_mask.reshape(-1), mask_index.reshape(-1), q, k, v, partial_masks)


# %% [markdown]
# One kernel, any mask. What does it save, and what not? The dots are those that the mask needs,
# and not one more. But the grid still has a step for each block of scores, and each of them fetches keys
# and values, needed or not. Index maps that repeat the last needed block, as in `causal_prefetch`,
# would save the fetches. Something better is ahead, which saves the steps themselves.

# %% active="ipynb"
# t, s = np.arange(2048)[:, None], np.arange(2048)[None, :]
# masks = {
#     "causal": s <= t,
#     "window of 300, both sides": abs(t - s) < 300,
#     "seven documents": t // 300 == s // 300,
# }
# x = jax.ShapeDtypeStruct((2048, 128), jnp.float32)
# print("mask                        grid steps   with dots   blocks of k fetched")
# for name, mask in masks.items():
#     tables = find("classify_blocks").solution(mask, 128, 128)
#     (launch,) = trace(find("block_sparse_attention").solution, x, x, x, *tables)
#     busy = (launch.dots[0].executed > 0).sum()
#     print(f"{name:27}{launch.steps:11}{busy:12}{launch.inputs[1].transfers:22}")

# %% tags=["author"]
import functools

from puzzles import Alternative, Mistake, Puzzle, array, rng
from puzzles.splash_attention.attention import root
from puzzles.splash_attention.attention_one_block import ONES
from puzzles.splash_attention.causal_attention import dots
from puzzles.splash_attention.classify_blocks import classify_blocks, make_mask


def draw(r, mask, H):
    """q, k, v for any mask, all exact in f32 even where a dot rounds to bf16.

    q and k are eighths of small integers. Every other query is 32 times
    larger than the rest; of those, every other one loves a key that the mask hides from it: its
    score, about 32 √H, would be the row's maximum by far. Where q[t, 0] is far below 0, so are all of
    the row's scores; a few have scores up to ±2^21 or more, alike or hundreds apart.
    """
    T, S = mask.shape
    q, k = (np.round(8 * r.normal(size=(n, H))) / 8 for n in (T, S))
    for t in range(1, T, 4):
        hidden = np.flatnonzero(~mask[t])
        if hidden.size:
            k[r.choice(hidden)] = q[t]
    q[1::2] *= 32
    k[:, 0] = root(H)  # every other of the small queries lies far above 0, or far below
    q[::4, 0] = r.integers(-150, 151, len(q[::4]))
    for n, (size, column) in enumerate(((2**21, 0), (-(2**21), 0), (2**21, 1))):
        q[8 * n + 8 :: 32] = 0
        q[8 * n + 8 :: 32, column] = size
    v = r.normal(0.5, 1, (S, H))
    return tuple(array(x, jnp.float32) for x in (q, k, v))


def make_inputs(key, T, S, H, bq, bk, kind):
    r = rng(key)
    mask = make_mask(r, kind, T, S, bq, bk)
    if kind == "blocks":
        mask[2 * bq : 3 * bq] = True  # a row of full blocks
    kinds, index, patterns = classify_blocks(mask, bq, bk)
    anything = r.integers(len(patterns), size=index.shape)
    return *draw(r, mask, H), kinds, np.where(kinds == 1, index, anything).astype(np.int32), patterns


@functools.cache
def packed(T, S, bq, bk, document):
    """Tables of a causal mask within documents, as `classify_blocks` would make them of the dense one."""
    block_mask, mask_index = np.zeros((2, T // bq, S // bk), np.int32)
    numbers = {}
    for i, j in np.argwhere(block_mask == 0):
        if j * bk >= (i + 1) * bq or (j + 1) * bk <= i * bq // document * document:
            continue  # in the future, or in documents before
        row, col = i * bq + np.arange(bq)[:, None], j * bk + np.arange(bk)
        seen = (col <= row) & (row // document == col // document)
        block_mask[i, j] = int(seen.any()) + int(seen.all())
        if block_mask[i, j] == 1:
            mask_index[i, j] = numbers.setdefault(seen.tobytes(), len(numbers))
    patterns = [np.frombuffer(pattern, bool).reshape(bq, bk) for pattern in numbers]
    return block_mask, mask_index, np.stack(patterns)


def scale(T=17152, S=16384, H=128, bq=256, bk=512, document=1500):
    arrays = (jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))
    return *arrays, *packed(T, S, bq, bk, document)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=640, S=320, H=16, bq=128, bk=64, kind="blocks")
    shapes = [
        (320, 256, 128, 64, 128, "causal"),
        (256, 384, 32, 128, 128, "window"),
        (192, 1024, 8, 64, 128, "documents"),
        (512, 320, 32, 64, 64, "blocks"),
        (128, 256, 128, 64, 128, "whole blocks"),
    ]
    return dict(zip(("T", "S", "H", "bq", "bk", "kind"), shapes[r.integers(len(shapes))], strict=True))


_KIND = "kind = block_mask_ref[i * pl.num_programs(1) + j]"
_WORK = "needed = kind > 0"
_MASK = "mask = mask_ref[...] | (kind == 2)"
_SCORES = "s = jnp.where(mask, s, -jnp.inf)"
_MAP = "return mask_index_ref[i * J + j], 0, 0"
_GUARD = "acc_ref[...] / jnp.where(l == 0.0, 1.0, l)"
_KEYS = "                pl.BlockSpec((bk, H), lambda i, j, *tables: (j, 0)),\n"
_CALL = ")(block_mask.reshape(-1), mask_index.reshape(-1), q, k, v, partial_masks)"

PUZZLE = Puzzle(
    spec=block_sparse_attention_spec,
    solution=block_sparse_attention,
    inputs=make_inputs,
    cases=[
        dict(T=640, S=320, H=16, bq=128, bk=64, kind="blocks"),
        dict(T=256, S=128, H=64, bq=64, bk=128, kind="documents"),
    ],
    fresh=fresh,
    keeps=dict.fromkeys("qkv", "finite"),
    scale=scale,
    par=dots,
    slack={"outside": 4.0},  # patterns of 32-bit numbers, for those of bytes
    tolerance=2e-4,
    hints=[
        "What decides whether a block is computed is one number from a table, and so is what decides whether its pattern "
        "counts. Where in a flat table does row i begin?",
        "`ref[n]` reads one number from SMEM, in the kernel as in an index map; `pl.num_programs(1)` is the "
        "number of columns of the table. A truth about the block and a block of booleans broadcast: `|` and `&` between "
        "them work. In Python `|` binds tighter than a comparison: use parentheses.",
        "Kernel: the kind, from place i · J + j; needed, if it is not 0; a score counts if the pattern says so or the kind is 2, "
        "and is -inf otherwise. Map: the number of the pattern, looked up in the same place of the other table, and two zeros.",
    ],
    explain="""The kernel's branches and the patterns' index map both read tables in SMEM, so the mask
    is data, and one kernel serves them all. A full block ignores the pattern that happens to lie in VMEM;
    a skipped one ignores everything.""",
    mistakes=[
        Mistake(
            "takes the first pattern for every block",
            old=_MAP,
            new="return 0, 0, 0",
            says="the index map has to look up which pattern a block needs",
        ),
        Mistake(
            "takes a block's own number for its pattern's",
            old=_MAP,
            new="return i * J + j, 0, 0",
            says="patterns are stored once each: `mask_index_ref` says where",
        ),
        Mistake(
            "reads the pattern's number from the wrong table",
            old=_MAP,
            new="return block_mask_ref[i * J + j], 0, 0",
            says="`block_mask_ref` holds kinds; the numbers of patterns are in `mask_index_ref`",
        ),
        Mistake(
            "looks in the pattern's table at (j, i)",
            old=_MAP,
            new="return mask_index_ref[j * I + i], 0, 0",
            says="the tables lie row by row: block (i, j) is number i · J + j",
        ),
        Mistake(
            "looks in the table of kinds at (j, i)",
            old=_KIND,
            new="kind = block_mask_ref[j * pl.num_programs(0) + i]",
            says="the tables lie row by row: block (i, j) is number i · J + j, and J is `pl.num_programs(1)`",
        ),
        Mistake(
            "looks in both tables at (j, i)",
            edits=(
                (_KIND, "kind = block_mask_ref[j * pl.num_programs(0) + i]"),
                (_MAP, "return mask_index_ref[j * I + i], 0, 0"),
            ),
            says="the tables lie row by row: block (i, j) is number i · J + j, in the kernel as in the map",
        ),
        Mistake(
            "multiplies i by the number of rows for both tables",
            edits=(
                (_KIND, "kind = block_mask_ref[i * pl.num_programs(0) + j]"),
                (_MAP, "return mask_index_ref[i * I + j], 0, 0"),
            ),
            says="to get past a row of a table, step over as many numbers as it has columns: i · J + j, in the kernel as "
            "in the map",
        ),
        Mistake(
            "multiplies i by the number of rows for the patterns",
            old=_MAP,
            new="return mask_index_ref[i * I + j], 0, 0",
            says="to get past a row of the table, step over as many numbers as it has columns: the map needs J",
        ),
        Mistake(
            "multiplies i by the number of rows",
            old=_KIND,
            new="kind = block_mask_ref[i * pl.num_programs(0) + j]",
            says="to get past a row of the table, step over as many numbers as it has columns",
        ),
        Mistake(
            "forgets that | binds tighter than ==",
            old=_MASK,
            new="mask = mask_ref[...] | kind == 2",
            says="`a | b == c` is `(a | b) == c`: put the comparison into parentheses",
        ),
        Mistake(
            "masks full blocks, too",
            old=_MASK,
            new="mask = mask_ref[...]",
            says="the pattern that lies in VMEM at a full block is not its own: where the kind is 2, "
            "everything counts",
        ),
        Mistake(
            "does not mask partial blocks",
            edits=((_MASK, "mask = mask_ref[...] | (kind > 0)"),),
            says="blocks of kind 1 hold scores that must not count",
        ),
        Mistake(
            "computes skipped blocks like partial ones",
            old=_WORK,
            new="needed = kind >= 0",
            says="the pattern that lies in VMEM at a block of kind 0 is not its own, and none of it counts: skip it",
        ),
        Mistake(
            "computes only full blocks",
            old=_WORK,
            new="needed = kind == 2",
            says="blocks of kind 1 have work, too",
        ),
        Mistake(
            "computes only partial blocks",
            old=_WORK,
            new="needed = kind == 1",
            says="blocks of kind 2 have work, too",
        ),
        Mistake(
            "leaves garbage in rows that attend to nothing",
            old=_SCORES,
            new=_SCORES.replace("-jnp.inf", "-1e30"),
            says="where all scores of a row are -1e30, each exponential is 1: mask with -inf",
        ),
        Mistake(
            "masks with -10000",
            old=_SCORES,
            new=_SCORES.replace("-jnp.inf", "-1e4"),
            says="a score that counts may lie lower, and then a masked one is the maximum: take -inf, below any score",
        ),
        Mistake(
            "masks skipped blocks instead of skipping them",
            edits=(
                (_WORK, "needed = kind >= 0"),
                (_MASK, "mask = (mask_ref[...] & (kind == 1)) | (kind == 2)"),
            ),
            says="dots run in 2,144 of 2,144 steps; in the reference in 178",
            stage="work",
        ),
        Mistake(
            "puts a dense mask together outside",
            edits=(
                (_MAP, "return i * J + j, 0, 0"),
                (_CALL, _CALL.replace("partial_masks)", "partial_masks[mask_index.reshape(-1)])")),
            ),
            says="arrays of 268 MiB are made outside of the kernel",
            stage="work",
        ),
        Mistake(
            "asks for pattern -1 where a block needs none",
            old=_MAP,
            new="return jnp.where(block_mask_ref[i * J + j] == 1, mask_index_ref[i * J + j], -1), 0, 0",
            says="block (-1, 0, 0) is out of bounds",
            stage="memory",
        ),
        Mistake(
            "reads a flat table with two indices",
            old=_KIND,
            new="kind = block_mask_ref[i, j]",
            says="must not be longer than `shape`",
            stage="error",
        ),
        Mistake(
            "masks with zero",
            old=_SCORES,
            new=_SCORES.replace("-jnp.inf", "0.0"),
            says="a score of 0 is a score like any other: its exponential is not zero",
        ),
        Mistake(
            "keeps what the pattern hides",
            old=_SCORES,
            new="s = jnp.where(mask, -jnp.inf, s)",
            says="True in a pattern means that the score counts: `jnp.where(mask, score, -inf)`",
        ),
        Mistake(
            "looks up the column alone",
            old=_KIND,
            new="kind = block_mask_ref[j]",
            says="that is always the first row of the table: step over the rows before, i · J + j",
        ),
        Mistake(
            "adds i and j",
            old=_KIND,
            new="kind = block_mask_ref[i + j]",
            says="a row of the table has J numbers: to get past i rows, step over i · J of them",
        ),
        Mistake(
            "looks up the pattern of the column alone",
            old=_MAP,
            new="return mask_index_ref[j], 0, 0",
            says="the map is right for the first row of blocks only: it needs i · J + j",
        ),
        Mistake(
            "reads the table with Python's if",
            old=_WORK,
            new="needed = True if kind > 0 else False",
            says="The value is not known while Python runs",
            stage="error",
        ),
        Mistake(
            "takes the pattern's number for the kind",
            old=_KIND,
            new=_KIND.replace("block_mask_ref", "mask_index_ref"),
            says="`mask_index_ref` holds numbers of patterns; the kinds are in `block_mask_ref`",
        ),
        Mistake(
            "adds i and j in the map",
            old=_MAP,
            new="return mask_index_ref[i + j], 0, 0",
            says="the patterns' table, too, has J numbers a row: the map needs i · J + j",
        ),
        Mistake(
            "multiplies i by the rows of a block",
            old="kind = block_mask_ref[i * pl.num_programs(1) + j]",
            new="kind = block_mask_ref[i * q_ref.shape[0] + j]",
            says="the flat table has one entry for each block: row i begins at entry i times the "
            "number of columns of blocks, `pl.num_programs(1)`",
        ),
        Mistake(
            "reads the pattern in full blocks alone",
            old="mask = mask_ref[...] | (kind == 2)",
            new="mask = mask_ref[...] & (kind == 2)",
            says="& asks for both: a block shows what its pattern shows, or, if it is full, everything",
        ),
        Mistake(
            "hides full blocks",
            old=_MASK,
            new="mask = mask_ref[...] & (kind == 1)",
            says="& asks for both: where the kind is 2 everything counts, whatever the pattern in VMEM says: `mask_ref[...] | (kind == 2)`",
        ),
        Mistake(
            "swaps partial and full",
            old="mask = mask_ref[...] | (kind == 2)",
            new="mask = mask_ref[...] | (kind == 1)",
            says="kind 2 shows everything, kind 1 what its pattern shows",
        ),
    ],
    alternatives=[
        ONES,
        Alternative(
            "has a branch for each kind, and masks as int32",
            old=_CALL,
            new=_CALL.replace("partial_masks)", "partial_masks.astype(np.int32))"),
            code="""
def block_sparse_attention_kernel(kinds, _, q_ref, k_ref, v_ref, mask_ref, o_ref, m_ref, l_ref, acc_ref):
    step = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1)

    @pl.when(pl.program_id(1) == 0)
    def _():
        m_ref[...] = jnp.full(m_ref.shape, -1e30)
        l_ref[...] = jnp.zeros(l_ref.shape)
        acc_ref[...] = jnp.zeros(acc_ref.shape)

    def work(masked):
        s = jnp.dot(q_ref[...] * q_ref.shape[1] ** -0.5, k_ref[...].T)
        if masked:
            s = jnp.where(mask_ref[...] != 0, s, -1e30)
        old, m = m_ref[...], jnp.maximum(m_ref[...], s.max(axis=1, keepdims=True))
        p = jnp.exp(s - m)
        if masked:
            p = jnp.where(mask_ref[...] != 0, p, 0.0)
        m_ref[...] = m
        l_ref[...] = l_ref[...] * jnp.exp(old - m) + p.sum(axis=1, keepdims=True)
        acc_ref[...] = acc_ref[...] * jnp.exp(old - m) + jnp.dot(p, v_ref[...])

    pl.when(kinds[step] == 1)(lambda: work(masked=True))
    pl.when(kinds[step] == 2)(lambda: work(masked=False))

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        l = l_ref[...]
        o_ref[...] = jnp.where(l > 0, acc_ref[...] / jnp.maximum(l, 1e-30), 0.0)
""",
        ),
        Alternative(
            "chooses with where, and asks the maximum at the end",
            edits=(
                (_MASK, "mask = jnp.where(kind == 2, 1, mask_ref[...].astype(jnp.int32)) > 0"),
                (_SCORES, _SCORES.replace("-jnp.inf", "-1e30")),
                (_GUARD, "jnp.where(m_ref[...] > -1e29, acc_ref[...] / l, 0.0)"),
            ),
        ),
        Alternative(
            "fetches block 0 where it needs none",
            edits=(
                (
                    _KEYS * 2,
                    _KEYS.replace("lambda i, j, *tables: (j, 0)", "kv_map") * 2,
                ),
                (
                    "    return pl.pallas_call(",
                    """    def kv_map(i, j, block_mask_ref, mask_index_ref):
        return jnp.where(block_mask_ref[i * J + j] > 0, j, 0), 0

    return pl.pallas_call(""",
                ),
            ),
        ),
        Alternative(
            "packs both tables into one number",
            edits=(
                ("            num_scalar_prefetch=2", "            num_scalar_prefetch=1"),
                ("    block_mask_ref, mask_index_ref, q_ref,", "    table_ref, q_ref,"),
                (_KIND, "kind = table_ref[i * pl.num_programs(1) + j] & 3"),
                ("def mask_map(i, j, block_mask_ref, mask_index_ref):", "def mask_map(i, j, table_ref):"),
                (_MAP, "return table_ref[i * J + j] >> 2, 0, 0"),
                (_CALL, ")((block_mask + 4 * mask_index).reshape(-1), q, k, v, partial_masks)"),
            ),
        ),
    ],
)
