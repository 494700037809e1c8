"""Rung 15: a grid that visits only what counts."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float

from puzzles import INTERPRET, find

# %% [markdown]
# ## splash_attention: a grid that visits only what counts
#
# Steps are not free: each has its index maps to evaluate and its branches to decide. So the grid gets **one axis, along
# the list** of `active_tiles`, which says where a step stands:
#
# ```text
#   block_mask             t     = 0  1  2  3  4  5      kind   0 dead, 1 partial, 2 full
#     k₀ k₁ k₂             rows    0  0  1  2  3  3      + 4    the first visit of its row
# q₀   2  1  ·             cols    0  1  1  0  1  2      + 8    the last visit of its row
# q₁   ·  1  ·             masks   0  0  1  1  1  0
# q₂   ·  ·  ·             flags   6  9 13 12  6  9      6 = 2 + 4: full, and the first
# q₃   ·  2  1                                          12 = 0 + 4 + 8: dead, first and last
# ```
#
# Six steps where the dense grid takes twelve. The four lists are prefetched into SMEM, and both sides read them:
#
# * **the index maps** look up which blocks step `t` wants: `lambda t, rows, cols, masks, flags: ...`;
# * **the kernel** looks up what to do with them. `j == 0` was "my row begins" and `j == last` was "my row ends"; both are
#   bits of `flags` now, beside the kind.
#
# ![Six steps along the list: queries and outputs go down row by row, keys and values go where the list says, and a dead visit writes the row that has no tile.](diagrams/splash_attention/splash_attention.svg)
#
# Why is one set of scratch still enough?
#
# Fill in what the kernel reads from the list and which scores count, then the grid and all the specs.

# %%
def splash_attention_spec(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    tiles: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> Float[Array, "T H"]:
    (T, H), (S, _), (_, bq, bk) = q.shape, k.shape, partial_masks.shape
    seen = np.zeros((T // bq, bq, S // bk, bk), bool)
    for row, col, mask, flag in zip(*tiles, strict=True):
        kind = flag & 3  # 0: nothing is seen
        if kind == 1:
            seen[row, :, col] = partial_masks[mask]
        elif kind == 2:
            seen[row, :, col] = True
    seen = seen.reshape(T, S)
    scores = jnp.where(seen, jnp.dot(q, k.T) / H**0.5, -jnp.inf)
    return jnp.dot(jnp.where(seen, jax.nn.softmax(scores, axis=1), 0.0), v)


# %%
def splash_attention_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref,  # in SMEM, the whole lists
    q_ref, k_ref, v_ref, mask_ref, o_ref, m_ref, l_ref, acc_ref,
):  # fmt: skip
    # flags, kind; first, last: the row begins, ends; needed: is there work?
    ### BEGIN SOLUTION
    flags = flags_ref[pl.program_id(0)]
    kind = flags & 3
    first = flags & 4 != 0
    last = flags & 8 != 0
    needed = kind != 0
    ### END SOLUTION

    @pl.when(first)
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
        seen = mask_ref[...] | (kind == 2)
        s = jnp.where(seen, s, -jnp.inf)
        ### END SOLUTION
        m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp(s - m_new)
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = alpha * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(last)
    def _():
        l = l_ref[...]
        o_ref[...] = acc_ref[...] / jnp.where(l == 0.0, 1.0, l)


def splash_attention(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    tiles: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> Float[Array, "T H"]:
    (T, H), (_, bq, bk) = q.shape, partial_masks.shape
    return pl.pallas_call(
        splash_attention_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            ### BEGIN SOLUTION
            grid=(len(tiles[0]),),
            in_specs=[
                pl.BlockSpec((bq, H), lambda t, rows, cols, masks, flags: (rows[t], 0)),
                pl.BlockSpec((bk, H), lambda t, rows, cols, masks, flags: (cols[t], 0)),
                pl.BlockSpec((bk, H), lambda t, rows, cols, masks, flags: (cols[t], 0)),
                pl.BlockSpec((None, bq, bk), lambda t, rows, cols, masks, flags: (masks[t], 0, 0)),
            ],
            out_specs=pl.BlockSpec((bq, H), lambda t, rows, cols, masks, flags: (rows[t], 0)),
            ### END SOLUTION
            scratch_shapes=[
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, H), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=INTERPRET,
    )(*tiles, q, k, v, partial_masks)


# %% [markdown]
# **Three things can be skipped, and you have skipped them one after another:** the arithmetic, with `pl.when`;
# the traffic, with an index map that stays; and now the steps, with a list. What each is worth depends
# on the mask. Below is the reference on a window of 1024 keys, at a length where a dense mask would have
# 16 GiB. None is needed: four rows of blocks tell what every tile looks like, and the list is
# made from block numbers.
#
# The price: the list is as long as the work, 16 bytes a tile, and it has to fit into SMEM, 1 MiB. That
# is why flags are packed into one number, and why long sequences need large blocks. And its one axis is
# `arbitrary`: on a chip with two cores that share a grid, a list cannot be shared out. Heads can; they come next.

# %% active="ipynb"
# T, H, b, window = 131_072, 128, 512, 1024
# i, j = np.indices((4 * b, 4 * b))
# kinds, index, partial_masks = find("classify_blocks").solution((j <= i) & (j > i - window), b, b)
# behind = window // b  # how many blocks a row sees beside its own; the last row of four sees them all
# row, col = np.indices((T // b, T // b))
# distance = np.minimum(row - col, behind + 1)
# block_mask = np.where(distance < 0, 0, kinds[3, 3 - np.maximum(distance, 0)])
# mask_index = np.where(distance < 0, 0, index[3, 3 - np.maximum(distance, 0)])
# tiles = find("active_tiles").solution(block_mask.astype(np.int32), mask_index.astype(np.int32))
# x = jax.ShapeDtypeStruct((T, H), jnp.float32)
# padded = len(block_mask) * (block_mask > 0).sum(axis=1).max()  # as in JAX's kernel
# print(f"a dense grid has {block_mask.size:,} steps, one with padded rows {padded:,}, and the list {len(tiles[0]):,}")
# receipt(lambda q, k, v: find("splash_attention").solution(q, k, v, tiles, partial_masks), x, x, x)

# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle
from puzzles.splash_attention.attention_one_block import ONES
from puzzles.splash_attention.block_sparse_attention import packed
from puzzles.splash_attention.causal_attention import dots, draw


def make_mask(T, S, bq, bk, first):
    """Rows of seven kinds, from `first` on, one without any tile; all kinds of tiles, and gaps.

    Rows 1 and 4 share a partial block, and have rows of the mask that see nothing at all; row 3 begins
    with a tile in which half of its rows see nothing; rows 5 and 6 have a single tile.
    """
    i, j = np.indices((T, S))
    row, col, last = (i // bq + first) % 7, j // bk, S // bk - 1
    i, j = i % bq, j % bk
    mask = (row == 0) & (col <= 1)
    mask |= (row == 1) & (col == 1) & ((j - i) % 3 == 0)
    mask |= (row == 1) & (col == last) & (j < i + 9)
    mask |= (row == 3) & (col == 0) & (i >= bq // 2) & (j < 99)
    mask |= (row == 3) & (col == 1)
    mask |= (row == 3) & (col == last) & (i >= bq // 4)
    mask |= (row == 4) & (col == 1) & ((j - i) % 3 == 0)
    mask |= (row == 4) & (col == last) & (i % 2 == 1)
    mask |= (row == 5) & (col == 1)
    mask |= (row == 6) & (col == last) & (j < i + 9)
    return mask & ~((row % 3 == 1) & (i % 32 == 7))


def make_inputs(key, R, S, H, bq, bk, first):
    T = R * bq
    q, k, v = draw(key, T, S, H, offsets=(1, -64, 9))
    mask = make_mask(T, S, bq, bk, first)
    block_mask, mask_index, partial_masks = find("classify_blocks").solution(mask, bq, bk)
    return q, k, v, find("active_tiles").solution(block_mask, mask_index), partial_masks


def scale(T=17152, S=16384, H=128, bq=256, bk=512, document=1500):
    *tables, partial_masks = packed(T, S, bq, bk, document)
    arrays = (jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))
    return *arrays, find("active_tiles").solution(*tables), partial_masks


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(R=7, S=768, H=64, bq=64, bk=256, first=0)
    shapes = [(5, 512, 32, 128, 128, 1), (7, 384, 8, 64, 128, 3), (9, 256, 128, 32, 128, 0), (6, 512, 32, 64, 256, 4)]
    return dict(zip(("R", "S", "H", "bq", "bk", "first"), map(int, r.choice(shapes)), strict=True))


_Q = "                pl.BlockSpec((bq, H), lambda t, rows, cols, masks, flags: (rows[t], 0)),\n"
_K = "                pl.BlockSpec((bk, H), lambda t, rows, cols, masks, flags: (cols[t], 0)),\n"
_MASKS = "(None, bq, bk), lambda t, rows, cols, masks, flags: (masks[t], 0, 0)"
_OUT = "out_specs=pl.BlockSpec((bq, H), lambda t, rows, cols, masks, flags: (rows[t], 0))"
_FLAGS = "first = flags & 4 != 0\n    last = flags & 8 != 0"
_ALIVE = "needed = kind != 0"
_SCORES = "s = jnp.where(seen, s, -jnp.inf)"
_SEEN = "seen = mask_ref[...] | (kind == 2)"
_STORE = "o_ref[...] = acc_ref[...] / jnp.where(l == 0.0, 1.0, l)"
_LISTS = "    (T, H), (_, bq, bk) = q.shape, partial_masks.shape\n    return"

PUZZLE = Puzzle(
    spec=splash_attention_spec,
    solution=splash_attention,
    inputs=make_inputs,
    cases=[
        dict(R=7, S=768, H=64, bq=64, bk=256, first=0),
        dict(R=6, S=512, H=16, bq=256, bk=128, first=2),
    ],
    fresh=fresh,
    keeps=dict.fromkeys("qkv", "finite"),
    scale=scale,
    par=dots,
    tolerance=2e-4,
    hints=[
        "Everything that i, j and block_mask[i, j] told the dense kernel now stands at place t of a list. "
        "Which list answers which question, and who asks it: an index map, or the kernel?",
        "`pl.program_id(0)` is t, and `flags_ref[t]` one packed number: `& 3` is the kind, `& 4` and `& 8` are not zero "
        "if it is the first or the last visit of its row. A boolean block `|` a scalar condition is a boolean "
        "block. `len(tiles[0])` is a Python int, as a grid needs it.",
        "In the kernel: flags, the kind, two bits, and whether there is work; a score is seen if the mask's block "
        "says so or the tile is full, and is -inf otherwise. In the launch, a grid of one axis, "
        "and five maps: rows for q and the output, cols for k and v, masks for the mask, whose block has `None` in "
        "front.",
    ],
    explain="""The list holds what the grid's axes used to say, so a step can stand anywhere, and the grid is as
    long as the work. It goes row by row, so nothing comes between a row's first visit and its last, and one set of scratch
    is enough. A dead visit writes the zeros of a row without tiles: an output block that no step visits keeps what was in memory.""",
    mistakes=[
        Mistake(
            "takes block t of keys and values at step t",
            old=_K * 2,
            new=_K.replace("cols[t]", "t") * 2,
            says="t counts visits, not blocks of keys: cols[t] says which one this visit needs",
        ),
        Mistake(
            "takes the first block of keys and values for every tile",
            old=_K * 2,
            new=_K.replace("cols[t]", "0") * 2,
            says="`cols` is not used: every tile gets the same keys",
        ),
        Mistake(
            "chooses the values by their row",
            old=_K * 2,
            new=_K + _K.replace("cols[t]", "rows[t]"),
            says="values stand beside their keys: both follow cols",
        ),
        Mistake(
            "takes 128 keys a tile",
            edits=((_K * 2, 2 * _K.replace("bk", "128")), (_MASKS, _MASKS.replace("bq, bk", "bq, 128"))),
            says="a tile has bk keys, which the masks' shape tells: with 128 the list's columns are other keys",
        ),
        Mistake(
            "takes the first mask for every partial tile",
            old=_MASKS,
            new=_MASKS.replace("masks[t], 0", "0, 0"),
            says="`masks` is not used, and partial tiles differ: masks[t] says which block of the mask is theirs",
        ),
        Mistake(
            "chooses the mask by the step",
            old=_MASKS,
            new=_MASKS.replace("masks[t], 0", "t, 0"),
            says="there are as many masks as different partial tiles, not as steps: look up masks[t]",
        ),
        Mistake(
            "ignores the masks",
            old=_SEEN,
            new="seen = mask_ref[...] | (kind >= 1)",
            says="a partial tile is treated like a full one, and rows see what the mask hides",
        ),
        Mistake(
            "masks full tiles, too",
            old=_SEEN,
            new="seen = mask_ref[...]",
            says="the block in mask_ref says nothing about a full tile: all of its scores count",
        ),
        Mistake(
            "compares all of flags with 2",
            old=_SEEN,
            new="seen = mask_ref[...] | (flags == 2)",
            says="a full tile that is the first or last of its row has 4 or 8 added: take the kind out, flags & 3",
        ),
        Mistake(
            "takes flags & 2 for the kind",
            old="kind = flags & 3",
            new="kind = flags & 2",
            says="that is 0 for a partial tile, whose kind is 1: take both bits, flags & 3",
        ),
        Mistake(
            "fetches the queries by the column",
            old=_Q,
            new=_Q.replace("rows[t]", "cols[t]"),
            says="q stands beside its output: both follow rows, and only keys and values follow cols",
        ),
        Mistake(
            "gives NaN everywhere",
            old=_FLAGS,
            new="first, last = flags == 4, flags & 8 != 0",
            says="m, l and acc are never started, or nothing is ever stored. flags holds the kind, too, so a first visit has "
            "5, 6 or more there, and a last one 9 or more: ask for the bit alone, `flags & 4 != 0` and `flags & 8 != 0`",
        ),
        Mistake(
            "starts only at the first step of all",
            old=_FLAGS,
            new="first, last = pl.program_id(0) == 0, flags & 8 != 0",
            says="each row needs fresh m, l and acc, and its first visit can be any t",
        ),
        Mistake(
            "starts at every visit",
            old=_FLAGS,
            new="first, last = flags >= 0, flags & 8 != 0",
            says="only the last tile of each row is left",
        ),
        Mistake(
            "starts where the column is 0",
            old=_FLAGS,
            new="first, last = cols_ref[pl.program_id(0)] == 0, flags & 8 != 0",
            says="a row's first tile may lie in any column; ask for `flags & 4`",
        ),
        Mistake(
            "mixes up first and last",
            old=_FLAGS,
            new="first, last = flags & 8 != 0, flags & 4 != 0",
            says="4 marks the first visit of a row and 8 the last",
        ),
        Mistake(
            "stores only at the last step of all",
            old=_FLAGS,
            new="first, last = flags & 4 != 0, pl.program_id(0) == pl.num_programs(0) - 1",
            says="only the last row's block is written: every row ends with a visit where `flags & 8` is set",
        ),
        Mistake(
            "starts and stores once for the whole list",
            old=_FLAGS,
            new="first = pl.program_id(0) == 0\n    last = pl.program_id(0) == pl.num_programs(0) - 1",
            says="each row has a first and a last visit: bits 4 and 8 of flags say which",
        ),
        Mistake(
            "starts and stores in live tiles only",
            old=_FLAGS,
            new="first, last = (flags & 4 != 0) & (kind != 0), (flags & 8 != 0) & (kind != 0)",
            says="nobody writes a row that has no tiles: its one visit is dead, and first and last all the same",
        ),
        Mistake(
            "starts in live tiles only",
            old=_FLAGS,
            new="first, last = (flags & 4 != 0) & (kind != 0), flags & 8 != 0",
            says="a row without tiles stores what the row before it left in acc",
        ),
        Mistake(
            "computes dead visits like partial tiles",
            old=_ALIVE,
            new="needed = kind >= 0",
            says="a row without tiles attends to nothing, whatever block of keys and of the mask lies in VMEM",
        ),
        Mistake(
            "leaves garbage in rows that attend to nothing",
            old=_SCORES,
            new=_SCORES.replace("-jnp.inf", "-1e30"),
            says="where all scores are -1e30, each exponential is 1, and a row that sees nothing becomes a mean: mask with -inf",
        ),
        Mistake(
            "writes the output by the column",
            old=_OUT,
            new=_OUT.replace("rows[t]", "cols[t]"),
            says="the output stands beside its queries: both follow rows",
        ),
        Mistake(
            "masks dead visits and skips none",
            edits=((_ALIVE, "needed = kind >= 0"), (_SEEN, "seen = (mask_ref[...] | (kind == 2)) & (kind != 0)")),
            says="dots run in 180 of 180 steps; in the reference in 178",
            stage="work",
        ),
        Mistake(
            "pads the list to the length of the dense grid",
            old=_LISTS,
            new="""    (T, H), (_, bq, bk) = q.shape, partial_masks.shape
    padding = (0, (T // bq) * (len(k) // bk) - len(tiles[0]))
    tiles = [np.pad(x, padding, mode="edge") for x in tiles[:3]] + [np.pad(tiles[3], padding)]
    return""",
            says="grid steps compute nothing; in the reference it is 0 of 180",
            stage="work",
        ),
        Mistake(
            "keeps all masks in VMEM and chooses in the kernel",
            edits=(
                (_MASKS, "partial_masks.shape, lambda t, rows, cols, masks, flags: (0, 0, 0)"),
                ("kind = flags & 3\n", "kind, mask = flags & 3, masks_ref[pl.program_id(0)]\n"),
                ("mask_ref[...] |", "mask_ref[mask] |"),
            ),
            says="`mask_ref` takes 23 MiB, all of it as one block",
            stage="work",
        ),
        Mistake(
            "promises that visits are independent",
            old='dimension_semantics=("arbitrary",)',
            new='dimension_semantics=("parallel",)',
            says="which differ along axis 0, marked 'parallel'",
            stage="memory",
        ),
        Mistake(
            "looks up the lists from outside",
            old=_Q,
            new="                pl.BlockSpec((bq, H), lambda t, *_: (tiles[0][t], 0)),\n",
            says="The value is not known while Python runs",
            stage="error",
        ),
        Mistake(
            "gives index maps the program id alone",
            old=_Q,
            new="                pl.BlockSpec((bq, H), lambda t: (t, 0)),\n",
            says="an index map receives one program id for each axis",
            stage="error",
        ),
        Mistake(
            "masks with zero",
            old=_SCORES,
            new=_SCORES.replace("-jnp.inf", "0.0"),
            says="a score of 0 is a score like any other: its exponential is not zero",
        ),
        Mistake(
            "computes only partial tiles",
            old=_ALIVE,
            new="needed = kind == 1",
            says="full tiles, of kind 2, have work, too",
        ),
        Mistake(
            "computes only full tiles",
            old=_ALIVE,
            new="needed = kind == 2",
            says="partial tiles, of kind 1, have work, too",
        ),
        Mistake(
            "reads the flags of the row",
            old="flags_ref[pl.program_id(0)]",
            new="flags_ref[rows_ref[pl.program_id(0)]]",
            says="flags has an entry for each visit: read it at t, the program id",
        ),
        Mistake(
            "keeps what the mask hides",
            old=_SCORES,
            new="s = jnp.where(seen, -jnp.inf, s)",
            says="`seen` says which scores count: `jnp.where(seen, score, -inf)`",
        ),
        Mistake(
            "stores where flags are 8",
            old="last = flags & 8 != 0",
            new="last = flags == 8",
            says="other bits are set in flags, too: `flags & 8 != 0` asks for this one alone",
        ),
        Mistake(
            "compares flags with 4 and 8",
            old="""    first = flags & 4 != 0
    last = flags & 8 != 0""",
            new="""    first = flags >= 4
    last = flags >= 8""",
            says="flags hold several bits: a last visit that is no first has 8, which is more than 4. "
            "Ask for one bit, `flags & 4 != 0`",
        ),
        Mistake(
            "takes the upper bits for the kind",
            old="kind = flags & 3",
            new="kind = flags >> 2",
            says="the kind is in the lowest two, flags & 3; 4 and 8 say first and last",
        ),
        Mistake(
            "computes wherever flags are not 0",
            old="needed = kind != 0",
            new="needed = flags != 0",
            says="a dead visit has flags, too, 4 and 8: it is the kind that says whether there is work",
        ),
        Mistake(
            "masks full tiles away",
            old="seen = mask_ref[...] | (kind == 2)",
            new="seen = mask_ref[...] & (kind == 1)",
            says="a full tile shows everything, whatever pattern lies in its buffer: `mask_ref[...] | "
            "(kind == 2)`",
        ),
        Mistake(
            "forgets that | binds tighter than ==",
            old="seen = mask_ref[...] | (kind == 2)",
            new="seen = mask_ref[...] | kind == 2",
            says="it compares the pattern and the kind together with 2: write "
            "(kind == 2) in parentheses",
        ),
        Mistake(
            "moves keys and values with the row",
            old="""                pl.BlockSpec((bk, H), lambda t, rows, cols, masks, flags: (cols[t], 0)),
                pl.BlockSpec((bk, H), lambda t, rows, cols, masks, flags: (cols[t], 0)),""",
            new="""                pl.BlockSpec((bk, H), lambda t, rows, cols, masks, flags: (rows[t], 0)),
                pl.BlockSpec((bk, H), lambda t, rows, cols, masks, flags: (rows[t], 0)),""",
            says="keys and values stand in cols, queries and output in rows",
        ),
        Mistake(
            "names the lists in another order in its index maps",
            edits=((_Q + _K * 2, (_Q + _K * 2).replace("rows, cols,", "cols, rows,")), (_OUT, _OUT.replace("rows, cols,", "cols, rows,"))),
            says="a map gets them as the call has them, rows, cols, masks, flags, whatever it calls them",
        ),
        Mistake(
            "writes the output at block t",
            old="out_specs=pl.BlockSpec((bq, H), lambda t, rows, cols, masks, flags: (rows[t], 0))",
            new="out_specs=pl.BlockSpec((bq, H), lambda t, rows, cols, masks, flags: (t, 0))",
            says="a row has several visits: its block is the one that rows names",
        ),
    ],
    alternatives=[
        ONES,
        Alternative(
            "masks partial tiles only, each kind in its own branch",
            code="""
def splash_attention_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref, q_ref, k_ref, v_ref, mask_ref, o_ref, m_ref, l_ref, acc_ref
):
    packed = flags_ref[pl.program_id(0)]
    kind, first, last = packed & 3, (packed >> 2) & 1, packed >> 3

    @pl.when(first == 1)
    def _():
        m_ref[...] = jnp.full(m_ref.shape, -1e30, jnp.float32)
        l_ref[...] = jnp.zeros(l_ref.shape, jnp.float32)
        acc_ref[...] = jnp.zeros(acc_ref.shape, jnp.float32)

    def tile(seen=None):
        q = q_ref[...] * q_ref.shape[1] ** -0.5
        s = jnp.dot(q, k_ref[...].T, preferred_element_type=jnp.float32)
        if seen is not None:
            s = jnp.where(seen, s, -1e30)
        old, m = m_ref[...], jnp.maximum(m_ref[...], s.max(axis=1, keepdims=True))
        p = jnp.exp(s - m)
        if seen is not None:
            p = jnp.where(seen, p, 0.0)
        m_ref[...] = m
        l_ref[...] = l_ref[...] * jnp.exp(old - m) + p.sum(axis=1, keepdims=True)
        acc_ref[...] = acc_ref[...] * jnp.exp(old - m) + jnp.dot(p, v_ref[...])

    pl.when(kind == 1)(lambda: tile(mask_ref[...]))
    pl.when(kind == 2)(lambda: tile())

    @pl.when(last == 1)
    def _():
        o_ref[...] = acc_ref[...] / jnp.maximum(l_ref[...], 1e-30)
""",
        ),
        Alternative(
            "compares a row with its neighbours in the list",
            edits=(
                (
                    _FLAGS,
                    "t, end = pl.program_id(0), pl.num_programs(0) - 1\n"
                    "    row, before, after = rows_ref[t], rows_ref[jnp.maximum(t - 1, 0)], rows_ref[jnp.minimum(t + 1, end)]\n"
                    "    first, last = (t == 0) | (before != row), (t == end) | (after != row)",
                ),
            ),
        ),
        Alternative(
            "names its index maps, and asks the maximum at the end",
            edits=(
                (_LISTS, _LISTS.replace("    return", """
    def by_row(t, rows, *_):
        return rows[t], 0

    def by_column(t, _, cols, *others):
        return cols[t], 0

    return""")),
                (_Q + _K * 2, """                pl.BlockSpec((bq, H), by_row),
                pl.BlockSpec((bk, H), by_column),
                pl.BlockSpec((bk, H), by_column),
"""),
                (_OUT, "out_specs=pl.BlockSpec((bq, H), by_row)"),
                (_SCORES, _SCORES.replace("-jnp.inf", "-1e30")),
                (_STORE, "o_ref[...] = jnp.where(m_ref[...] > -1e29, acc_ref[...] / l, 0.0)"),
            ),
        ),
    ],
)
