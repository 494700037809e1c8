"""Puzzle 15: a grid that visits only what counts."""

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
# Steps are not free: in each, index maps are evaluated and branches are taken. So the grid gets **one axis, along
# the list** of `active_tiles`, which gives the place of each step in the table:
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
# Six steps instead of the dense grid's twelve. The four lists are prefetched into SMEM, and both sides read them:
#
# * **the index maps** look up which blocks step `t` needs: `lambda t, rows, cols, masks, flags: ...`;
# * **the kernel** looks up what to do with them. `j == 0` meant "my row begins" and `j == last` meant "my row ends"; both are
#   now bits of `flags`, next to the kind.
#
# ![Six steps along the list: queries and outputs go down row by row, keys and values go where the list says, and a dead visit writes the row that has no tile.](diagrams/splash_attention/splash_attention.svg)
#
# Why is one set of scratch still enough?
#
# Fill in the look-ups in the list and the mask, then the grid and all the specs.


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
        kind = flag & 3  # 0: no score counts
        if kind == 1:
            seen[row, :, col] = partial_masks[mask]
        elif kind == 2:
            seen[row, :, col] = True
    seen = seen.reshape(T, S)
    scores = jnp.where(seen, jnp.dot(q, k.T) / H**0.5, -jnp.inf)
    return jnp.dot(jnp.where(seen, jax.nn.softmax(scores, axis=1), 0.0), v)


# %%
from puzzles.splash_attention.flash_attention import spread


def splash_attention_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref,  # in SMEM, the whole lists
    q_ref, k_ref, v_ref, mask_ref, o_ref, m_ref, l_ref, acc_ref,
):  # fmt: skip
    # flags, kind; first: does a row begin? last: does it end? needed: is there work?
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
        p = jnp.exp(s - spread(m_new, s))
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(last)
    def _():
        l = l_ref[:, :1]
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
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, H), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=INTERPRET,
    )(*tiles, q, k, v, partial_masks)


# %% [markdown]
# **Three things can be skipped, and you have skipped them one after another:** the arithmetic, with `pl.when`;
# the traffic, with an index that does not change; and now the steps, with a list. How much each saves depends
# on the mask. Below is the reference on a window of 1024 keys, at a length where a dense mask would take 16
# GiB. You do not need that mask: a mask of 4 × 4 blocks contains every kind of tile. The kind of a tile depends only on the
# distance between its row and its column.
#
# The price: the list grows with the work, 16 bytes per tile, and it has to fit into SMEM, 1 MiB. That is why flags are
# packed into one number, and why long sequences need large blocks. There is a second price: the grid's one axis is `arbitrary`.
# On a chip with two cores that share a grid, the cores cannot divide the list. They can divide heads, as a later puzzle,
# `splash_multi_head`, shows.

# %% active="ipynb"
# T, H, b, window = 131_072, 128, 512, 1024
# i, j = np.indices((4 * b, 4 * b))
# kinds, index, partial_masks = find("classify_blocks").solution((j <= i) & (j > i - window), b, b)
# behind = window // b  # blocks that a row needs besides its own; row 3 of four shows every distance
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
from puzzles import Puzzle
from puzzles.splash_attention.block_sparse_attention import packed
from puzzles.splash_attention.causal_attention import dots, draw


def make_mask(T, S, bq, bk, first):
    """Rows of seven kinds, from `first` on, one without any tile; all kinds of tiles, and gaps.

    Rows 1 and 4 share a partial block, and have rows of the mask that see nothing at all; row 3 begins
    with a tile in which half of its rows see nothing; rows 5 and 6 have a single tile.
    """
    i, j = np.indices((T, S))
    row, col, last, turn = (i // bq + first) % 7, j // bk, S // bk - 1, i // bq // 7
    i, j = i % bq, j % bk + turn  # other patterns at each turn
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
    shapes = [
        (5, 512, 32, 128, 128, 1),
        (7, 384, 8, 64, 128, 3),
        (9, 256, 128, 32, 128, 0),
        (6, 512, 32, 64, 256, 4),
    ]
    return dict(zip(("R", "S", "H", "bq", "bk", "first"), map(int, r.choice(shapes)), strict=True))


PUZZLE = Puzzle(
    spec=splash_attention_spec,
    solution=splash_attention,
    inputs=make_inputs,
    cases=[
        dict(R=7, S=768, H=64, bq=64, bk=256, first=0),
        dict(R=6, S=512, H=16, bq=256, bk=128, first=2),
        dict(R=28, S=17 * 128, H=16, bq=64, bk=128, first=0),  # long lists, and more patterns
    ],
    fresh=fresh,
    scale=scale,
    par=dots,
    tolerance=2e-4,
    hints=[
        "The dense kernel got everything from i, j and block_mask[i, j]. Now it is entry t of a "
        "list. Which list answers which question, and which side reads it: an index map, or the "
        "kernel?",
        "`pl.program_id(0)` is t, and `flags_ref[t]` one packed number: `& 3` is the kind, `& "
        "4` and `& 8` are not zero if it is the first or the last visit of its row. A boolean "
        "block `|` a scalar condition is a boolean block. `len(tiles[0])` is a Python int, as a "
        "grid needs it.",
        "In the kernel: flags, the kind, two bits, and whether there is work; a score counts if "
        "the mask's block says so or the tile is full, and is -inf otherwise. In the launch: a "
        "grid of one axis, and five maps: rows for q and the output, cols for k and v, masks "
        "for the mask, whose block has `None` in front.",
    ],
    explain="""The list holds what the grid's axes used to give, so a step can be anywhere in
    the table, and the grid is as long as the work. The list goes row by row, so nothing comes
    between a row's first visit and its last, and one set of scratch is enough. A dead visit
    writes the zeros of a row without tiles: an output block that no step visits keeps what was
    in memory.""",
)
