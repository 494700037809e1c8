"""Rung 3: how many row tiles each group touches."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from puzzles import find

# %% [markdown]
# ## tiles_per_group: who touches what
#
# A matmul kernel cuts its rows into tiles of `bm`, and the tiles do not ask where groups begin. Here is
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
# one tile, but from row 100 on they touch two. And a group without rows touches nothing, wherever it
# lies: group 1 starts and ends at row 100, in the middle of tile 0.
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
from puzzles import Alternative, Mistake, Puzzle, array
from puzzles.grouped_matmul.group_offsets import draw_sizes


def make_inputs(key, bm, sizes=None, **random):
    return array(sizes, jnp.int32) if sizes else draw_sizes(key, **random), bm


def fresh(r):
    bm, E, total = (int(r.choice(n)) for n in ((16, 96), (9, 20), (700, 1536)))
    return dict(bm=bm, E=E, total=total, empty=3)


_FIRST = "first = starts // bm"
_LAST = "last = (ends - 1) // bm"
_RETURN = "return jnp.where(group_sizes > 0, last - first + 1, 0)"

PUZZLE = Puzzle(
    spec=tiles_per_group_spec,
    solution=tiles_per_group,
    inputs=make_inputs,
    cases=[
        dict(bm=64, sizes=(0, 64, 0, 30, 60, 0, 1, 166, 0)),
        dict(bm=48, E=11, total=1000, empty=2),
        # more tiles than int16 counts; ends that f32 cannot count, beside a tile's end
        dict(bm=256, sizes=(4097, 0, 16_775_167, 2047, 2, 3, 40_000)),
    ],
    hints=[
        "Which tile holds a group's first row, and which its last one? What do these two say about a group "
        "without rows?",
        "Integer division finds the tile of a row. The last row is the one before `ends`. `jnp.where(condition, a, "
        "b)` chooses element by element.",
        "Three lines: the tile of the first row; the tile of the last row; the count between them, both "
        "included, and zero where the size is zero.",
    ],
    explain="""A group touches all tiles from the one with its first row to the one with its last row. A group
    without rows has neither: the reference treats it as an exception.""",
    kernel=False,
    jit=True,
    fresh=fresh,
    mistakes=[
        Mistake(
            "rounds the size up to tiles",
            old=_RETURN,
            new="return -(-group_sizes // bm)",
            says="the size alone does not tell: a few rows across a boundary touch two tiles",
        ),
        Mistake(
            "counts a tile for an empty group that lies inside it",
            old=_RETURN,
            new="return -(-ends // bm) - first",
            says="no row of an empty group is in the tile where its offset points to",
        ),
        Mistake(
            "counts one tile for every empty group",
            old=_RETURN,
            new="return jnp.where(group_sizes > 0, last - first + 1, 1)",
            says="an empty group touches nothing",
        ),
        Mistake(
            "takes ends as if they belonged to the group",
            old=_LAST,
            new="last = ends // bm",
            says="`ends` is the first row of the next group: one that ends on a boundary between tiles does not "
            "touch the next tile",
        ),
        Mistake(
            "counts the boundaries between tiles",
            old=_RETURN,
            new="return jnp.where(group_sizes > 0, last - first, 0)",
            says="from tile 2 to tile 2 it is one tile, not none: add 1",
        ),
        Mistake(
            "gives a shared tile to the group that starts it",
            old=_FIRST,
            new="first = -(-starts // bm)",
            says="a tile shared by two groups counts for both",
        ),
        Mistake(
            "counts full tiles only",
            old=_RETURN,
            new="return group_sizes // bm",
            says="a tile that a group fills in part counts as well",
        ),
        Mistake(
            "adds one to the full tiles",
            old=_RETURN,
            new="return jnp.where(group_sizes > 0, group_sizes // bm + 1, 0)",
            says="a group that fills its tiles touches no other, and a few rows across a boundary touch two: ask where "
            "the first and the last row lie",
        ),
        Mistake(
            "adds a tile for every group that starts inside one",
            old=_RETURN,
            new="return jnp.where(group_sizes > 0, -(-group_sizes // bm) + (starts % bm > 0), 0)",
            says="a group that starts inside a tile and ends in it touches that tile only",
        ),
        Mistake(
            "divides into fractions",
            edits=((_FIRST, "first = starts / bm"), (_LAST, "last = (ends - 1) / bm")),
            says="wrong dtype: expected int32, got float32",
        ),
        Mistake(
            "asks each size in Python",
            old=_RETURN,
            new="return jnp.stack([last[g] - first[g] + 1 if size > 0 else 0 for g, size in enumerate(group_sizes)])",
            says="not known while Python runs",
            stage="error",
        ),
        Mistake(
            "picks the groups that have rows",
            old=_RETURN,
            new="return jnp.zeros_like(starts).at[group_sizes > 0].set((last - first + 1)[group_sizes > 0])",
            says="not known while Python runs",
            stage="error",
        ),
        Mistake(
            "divides the size and adds 1",
            old="return jnp.where(group_sizes > 0, last - first + 1, 0)",
            new="return (ends - starts) // bm + 1",
            says="how many tiles a group touches depends on where it starts, and an empty one touches "
            "none: from the first row's tile to the last row's",
        ),
        Mistake(
            "gives empty groups the tiles of the others",
            old="group_sizes > 0, last - first + 1, 0)",
            new="group_sizes > 0, 0, last - first + 1)",
            says="`jnp.where(condition, x, y)` takes x where the condition holds",
        ),
        Mistake(
            "rounds the last tile up",
            old="last = (ends - 1) // bm",
            new="last = -(-ends // bm)",
            says="the tile of a row is its number divided by bm, rounded down: the last row is ends - "
            "1",
        ),
    ],
    alternatives=[
        Alternative(
            "rounds the start down and the end up, in rows",
            edits=(
                (_FIRST, "down = starts // bm * bm"),
                (_LAST, "up = (ends + bm - 1) // bm * bm"),
                (_RETURN, "return jnp.where(group_sizes == 0, 0, up - down) // bm"),
            ),
        ),
        Alternative(
            "adds the part before the first boundary to the size",
            old=_RETURN,
            new="return (group_sizes > 0) * -(-(starts % bm + group_sizes) // bm)",
        ),
        Alternative(
            "divides with lax and rounds up by cdiv",
            code="""
import jax
from jax.experimental import pallas as pl


def tiles_per_group(group_sizes, bm):
    ends = jax.lax.cumsum(group_sizes)
    starts = ends - group_sizes
    return jax.lax.select(
        group_sizes > 0, pl.cdiv(ends, bm) - jax.lax.div(starts, bm), jnp.zeros_like(ends)
    )
""",
        ),
    ],
)
