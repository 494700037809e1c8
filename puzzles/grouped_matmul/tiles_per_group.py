"""Puzzle 3: how many row tiles each group touches."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from puzzles import find

# %% [markdown]
# ## tiles_per_group: which tiles a group touches
#
# A matmul kernel cuts its rows into tiles of `bm`, regardless of where groups begin. Here is
# the example again, with `bm` = 128:
#
# ```text
# tile        0              1              2              3
#        |──────────────|──────────────|──────────────|──────────────|
# rows   0              128            256            384            512
#        |─── g=0 ──|───────── g=2 ────|──────── g=3 ────────|─ g=4 ─|
#        0         100                256                   456     512
#
# touches      1    0        2                  2               1         tiles
# ```
#
# Each touch is a piece of work: one tile, multiplied by one expert's weights. In all there are 6
# touches for 4 tiles.
#
# How many tiles does a group touch? **Not** its size divided by `bm`, rounded up: 60 rows fit into
# one tile, but if they start at row 100 they touch two. And a group without rows touches nothing, even
# in the middle of a tile: group 1 starts and ends at row 100, inside tile 0.
#
# Compute all counts at once, as int32, under `jit`. The first two lines are given.


# %%
def tiles_per_group_spec(group_sizes: Int[Array, " E"], bm: int) -> Int[Array, " E"]:
    counts, end = [], 0
    for size in np.asarray(group_sizes).tolist():
        start, end = end, end + size
        tiles = [(tile * bm, (tile + 1) * bm) for tile in range(end // bm + 1)]
        counts.append(sum(max(start, first) < min(end, behind) for first, behind in tiles))
    return np.array(counts, np.int32)


# %%
def tiles_per_group(group_sizes: Int[Array, " E"], bm: int) -> Int[Array, " E"]:
    offsets = find("group_offsets").solution(group_sizes)
    starts, ends = offsets[:-1], offsets[1:]
    ### BEGIN SOLUTION
    first = starts // bm
    last = (ends - 1) // bm
    return jnp.where(group_sizes > 0, last - first + 1, 0)
    ### END SOLUTION


# %% tags=["author"]
from puzzles import Puzzle, array
from puzzles.grouped_matmul.group_offsets import draw_sizes


def make_inputs(key, bm, sizes=None, **random):
    return array(sizes, jnp.int32) if sizes else draw_sizes(key, **random), bm


def fresh(r):
    bm, E, total = (int(r.choice(n)) for n in ((16, 96), (9, 20), (700, 1536)))
    return dict(bm=bm, E=E, total=total, empty=3)


PUZZLE = Puzzle(
    spec=tiles_per_group_spec,
    solution=tiles_per_group,
    inputs=make_inputs,
    cases=[
        dict(bm=64, sizes=(0, 64, 0, 128, 30, 60, 0, 1, 166, 63, 192, 0)),
        dict(bm=48, E=11, total=1000, empty=2),
        # more tiles than int16 counts; ends that f32 cannot count, beside a tile's end
        dict(bm=256, sizes=(4097, 0, 16_775_167, 2047, 2, 3, 40_000)),
    ],
    hints=[
        "Which tile holds a group's first row, and which its last row? What do these two tiles "
        "look like for a group without rows?",
        "Integer division finds the tile of a row. The last row comes right before `ends`. "
        "`jnp.where(condition, a, b)` chooses element by element.",
        "Three lines: the tile of the first row; the tile of the last row; the count between "
        "them, both included, and zero if the size is zero.",
    ],
    explain="""A group touches all tiles from the one with its first row to the one with its
    last row. A group without rows has neither: the reference treats it as an exception.""",
    kernel=False,
    jit=True,
    fresh=fresh,
)
