"""Puzzle 14: the blocks that have work, as one flat list."""

import numpy as np
from jaxtyping import Int

# %% [markdown]
# ## active_tiles: the grid becomes a list
#
# You skip arithmetic, and can skip fetches. The steps remain: T = S = 131,072 in blocks
# of 512 makes 65,536 steps per head, even for a narrow window that needs a few hundred.
#
# ```text
#   the table        padded rows        flat list
#                    4 × 3 = 12 steps   8 steps
#       0 1 2 3
#    0  ■ · · ·      0:  ■ - -          rows    0   1   1   2   2   2   3   3
#    1  ◩ ■ · ·      1:  ◩ ■ -          cols    0   0   1   0   1   2   2   3
#    2  ■ ◩ ■ ·      2:  ■ ◩ ■          flags  14   5  10   6   1  10   6   9
#    3  · · ■ ◩      3:  ■ ◩ -
# ```
#
# So the grid gets **one axis**, a step for each tile, row by row. A kernel without `i` and `j` has to look up: is this tile
# the **first** of its row (start m, l, acc), is it the **last** (store), and what **kind** is it? SMEM has 1 MiB (TPU v4 and
# newer) for all the lists, so the answers share one number: **`flags = kind + 4 · first + 8 · last`**.
#
# A row without tiles is a trap: without a visit, its output is never written. It gets a **dead visit**: kind 0, first and last, any column.
#
# ![A table of blocks with an empty row takes 20 steps as a dense grid, 15 with its rows padded to the widest, and 9 as a list, one of them a dead visit.](diagrams/splash_attention/active_tiles.svg)
#
# Return `(rows, cols, masks, flags)`, four int32 arrays of the same length, columns ascending in each row. `masks` holds the
# number of the tile's pattern. A tile that is not partial uses no pattern, but the index map fetches whichever you
# name. Repeat the number before it: no fetch.
#
# <details><summary>More: padded rows</summary>
#
# JAX's SplashAttention shrinks the grid: each row lists the blocks it needs, and shorter rows are padded to the
# **widest** with steps that do nothing. A square causal mask gains nothing: its last row is full.
#
# </details>


# %%
def active_tiles_spec(
    block_mask: Int[np.ndarray, "I J"], mask_index: Int[np.ndarray, "I J"], tiles: tuple
) -> bool:
    """Accept a list that leads a kernel through all the work, row after row."""
    todo, finished, row, cols = block_mask.copy(), [], None, []
    for r, c, mask, flags in zip(*tiles, strict=True):
        kind = flags & 3
        if flags & 4:
            row, cols = r, []
        if r != row or kind != todo[r, c] or (kind == 1 and mask != mask_index[r, c]):
            return False
        if kind == 0 and block_mask[r].any():
            return False  # the row has tiles with work
        todo[r, c] = 0
        cols.append(c)
        if flags & 8:
            finished.append(r)
            if cols != sorted(cols):
                return False
            row = None
    return not todo.any() and finished == list(range(len(block_mask)))


# %%
def active_tiles(
    block_mask: Int[np.ndarray, "I J"], mask_index: Int[np.ndarray, "I J"]
) -> tuple[Int[np.ndarray, " n"], ...]:  # rows, cols, masks, flags
    ### BEGIN SOLUTION
    visit = block_mask > 0
    visit[~visit.any(axis=1), 0] = True  # a row without tiles: one dead visit
    rows, cols = np.nonzero(visit)  # row by row, columns ascending
    kind = block_mask[rows, cols]
    new_row = rows[1:] != rows[:-1]
    first, last = np.append(True, new_row), np.append(new_row, True)
    # a tile that is not partial repeats the number before it: that pattern is there already
    masks = np.where(kind == 1, mask_index[rows, cols], 0)
    latest = np.maximum.accumulate(np.where(kind == 1, np.arange(len(kind)), 0))
    tiles = rows, cols, masks[latest], kind + 4 * first + 8 * last
    return tuple(x.astype(np.int32) for x in tiles)
    ### END SOLUTION


# %% [markdown]
# What is the list worth? The table shows the steps per head, for 4096 tokens in blocks of 128. The last mask is causal within a window
# of 512, but 16 of its rows may attend to everything before them: one wide row of blocks makes the padded
# grid wide everywhere. (JAX's kernel shrinks its grid only if all heads have the same mask. A list works for any masks.
# [tokamax](https://github.com/openxla/tokamax), OpenXLA's newer library, also has an experimental kernel that walks a list, as of 2026.)

# %% active="ipynb"
# t, s = np.arange(4096)[:, None], np.arange(4096)[None, :]
# near = (s <= t) & (t - s < 512)
# masks = {
#     "causal, 1024 tokens": (s <= t)[:1024, :1024],
#     "causal": s <= t,
#     "causal, window of 512": near,
#     "causal, documents of 1000": (s <= t) & (t // 1000 == s // 1000),
#     "window, and 16 rows that see all": near | ((s <= t) & (t // 16 == 200)),
# }
# print("mask                               dense   padded   list")
# for name, mask in masks.items():
#     block_mask, mask_index, _ = find("classify_blocks").solution(mask, 128, 128)
#     rows, *_ = find("active_tiles").solution(block_mask, mask_index)
#     widest = (block_mask > 0).sum(axis=1).max()  # JAX's kernel pads all rows to this
#     print(f"{name:33}{block_mask.size:7}{len(block_mask) * widest:9}{len(rows):7}")

# %% tags=["author"]
import itertools

from puzzles import Puzzle, rng
from puzzles.splash_attention.classify_blocks import classify_blocks, fresh, make_mask, what_is

NAMES = ("rows", "cols", "masks", "flags")


def make_inputs(key, T, S, bq, bk, kind):
    mask = make_mask(rng(key), kind, T, S, bq, bk)
    if kind == "blocks":
        mask[:bq] = False  # the first row of blocks, too, attends to nothing
        mask[bq : 2 * bq, -bk:] = True  # the second reaches the last column
    if kind == "window":
        mask[:bq, :bk] = False  # the first row has tiles, and none in the first column
    block_mask, index = classify_blocks(mask, bq, bk)[:2]
    tables = (
        block_mask,
        np.where(block_mask == 1, index, np.int32(-1)),
    )  # any number may stand there
    for table in tables:
        table.flags.writeable = False
    return tables


def observe(fn):
    """The function, for tables that are parts of wider ones: their rows do not lie one behind the
    other.
    """

    def of_parts(*tables):
        parts = [np.concatenate([x, 2 - x], axis=1)[:, : x.shape[1]] for x in tables]
        for part in parts:
            part.flags.writeable = False
        return fn(*parts)

    return of_parts


def accepts(tiles, block_mask, mask_index):
    assert isinstance(tiles, tuple) and len(tiles) == 4, "return a tuple (rows, cols, masks, flags)"
    for name, x in zip(NAMES, tiles, strict=True):
        assert isinstance(x, np.ndarray), f"`{name}` is {what_is(x)}: a NumPy array is wanted"
        assert x.ndim == 1, f"`{name}` has shape {x.shape}: one number for each tile is wanted"
        assert x.dtype == np.int32, f"`{name}` is {x.dtype}: kernels read scalars as int32"
    lengths = [len(x) for x in tiles]
    assert len({*lengths}) == 1, f"the four arrays have lengths {lengths}: one entry for each tile"
    I, J = block_mask.shape
    rows, cols, masks, flags = (x.tolist() for x in tiles)
    for n, (r, c) in enumerate(zip(rows, cols, strict=True)):
        assert 0 <= r < I and 0 <= c < J, (
            f"entry {n} visits tile ({r}, {c}) of a table of {I} × {J} blocks"
        )
    _same_visits(list(zip(rows, cols, strict=True)), block_mask)
    _same_flags(rows, cols, flags, block_mask)
    _same_masks(rows, cols, masks, block_mask, mask_index)


def _same_visits(visits, block_mask):
    assert len({*visits}) == len(visits), (
        f"tile {next(v for v in visits if visits.count(v) > 1)} is visited twice"
    )
    for i, row in enumerate(block_mask):
        mine = [c for r, c in visits if r == i]
        dead = [c for c in mine if not row[c]]
        missing = [int(c) for c in np.flatnonzero(row) if c not in mine]
        assert row.any() or mine, (
            f"row {i} has no tile with work, and no visit either: then nothing writes its output. "
            "Give it one dead visit"
        )
        assert row.any() or len(mine) == 1, (
            f"row {i} has no tile with work, and {len(mine)} visits: one will do, since a step "
            "that does nothing still takes its time"
        )
        assert not missing, f"tile ({i}, {missing[0]}) has work and is not in the list"
        assert not row.any() or not dead, (
            f"tile ({i}, {dead[0]}) has no work and is in the list, though row {i} has others: "
            "a step that does nothing still takes its time"
        )
    for n, (one, two) in enumerate(itertools.pairwise(visits)):
        assert one < two, (
            f"entry {n} is tile {one} and entry {n + 1} is tile {two}: go row by row, columns "
            "ascending, since the output of a row stays in VMEM only while its tiles follow "
            "each other"
        )


def _same_flags(rows, cols, flags, block_mask):
    for n, (r, c, flag) in enumerate(zip(rows, cols, flags, strict=True)):
        kind = int(block_mask[r, c])
        first, last = n == 0 or rows[n - 1] != r, n == len(rows) - 1 or rows[n + 1] != r
        words = f"entry {n}, tile ({r}, {c}), has flags {flag}"
        assert 0 <= flag < 16, f"{words}: kind + 4 · first + 8 · last lies between 0 and 14"
        assert flag & 3 == kind, (
            f"{words}, whose kind, flags & 3, is {flag & 3}; `block_mask` says {kind}"
        )
        for name, bit, want, which in (("first", 4, first, "first"), ("last", 8, last, "last")):
            assert bool(flag & bit) == want, (
                f"{words}, in which {name}, flags & {bit}, is "
                f"{'set' if flag & bit else 'not set'}, but it is {'' if want else 'not '}the "
                f"{which} tile that row {r} visits"
            )


def _same_masks(rows, cols, masks, block_mask, mask_index):
    stored = int(mask_index[block_mask == 1].max(initial=0)) + 1
    for n, (r, c, mask) in enumerate(zip(rows, cols, masks, strict=True)):
        want = int(mask_index[r, c])
        if block_mask[r, c] == 1:
            assert mask == want, (
                f"entry {n}, tile ({r}, {c}), has pattern {mask}; `mask_index` says {want}"
            )
    for n, (r, c, mask) in enumerate(zip(rows, cols, masks, strict=True)):
        assert 0 <= mask < stored, (
            f"entry {n}, tile ({r}, {c}), is not partial and has pattern {mask}: no use is "
            "made of it, but it is fetched, so it has to be one that exists"
        )


PUZZLE = Puzzle(
    spec=active_tiles_spec,
    solution=active_tiles,
    inputs=make_inputs,
    observe=observe,
    cases=[
        dict(T=160, S=384, bq=32, bk=64, kind="blocks"),
        dict(T=384, S=320, bq=128, bk=64, kind="window"),
        dict(T=64, S=256, bq=64, bk=32, kind="random"),
        # More rows, tiles and patterns than a byte counts.
        dict(T=2112, S=560, bq=8, bk=8, kind="random"),
    ],
    fresh=fresh,
    hints=[
        "Which blocks are visited? Those with work, and one for every row that has none. Once "
        "you have the list, a tile is the first of its row if the entry before it names another "
        "row. Which tile has no entry before it?",
        "`np.nonzero` of a 2-D array gives rows and columns, already in the right order, as "
        "int64. A table indexed with two lists, `table[rows, cols]`, gives a list. `rows[1:] != "
        "rows[:-1]` compares neighbours; `.astype(np.int32)` at the end.",
        "Make a boolean table of visits, with one more entry in each row that would have none. "
        "Take its nonzero places. Look up kinds and patterns at rows and cols. First and last "
        "follow from the comparison of neighbours, with True put before it or after it. The "
        "flags are the sum of kind, 4 · first and 8 · last.",
    ],
    explain="""Steps now follow the work, not the box around it: a row takes as many steps as it
    has tiles, and at least one, so that its output is written. If a tile needs no pattern,
    naming the pattern before it again costs no fetch: the trick of causal_prefetch, in a list.""",
    kernel=False,
    accepts=accepts,
)
