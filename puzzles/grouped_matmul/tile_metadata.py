"""Puzzle 4: a flat list of visits."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from puzzles import find

# %% [markdown]
# ## tile_metadata: a list of visits
#
# A grid of tiles and groups would visit every tile for every group, mostly for nothing. So put the visits
# that have rows into a **flat list**, and let the grid step through it. Two arrays describe the work of step
# `t`:
#
# ```text
# group_sizes = [100, 0, 156, 200, 56], bm = 128, M = 512
#
# step t             0   1   2   3   4   5 │ 6   7
# group_ids[t]       0   2   2   3   3   4 │ 4   4      whose weights
# tile_ids[t]        0   0   1   2   3   3 │ 3   3      which rows
#                    └─┬─┘           └─┬─┘ │
#                tile 0, twice   tile 3, twice          num_steps = 6
# ```
#
# * Visits to a shared tile must come **one right after another**: an output block may be
#   revisited in consecutive steps only.
# * Empty groups are not in the list. Nor are tiles without rows, if the sizes add up to less than `M`.
# * Under `jit` a shape cannot depend on data, so the arrays are as long as the worst case: **`M //
#   bm + E - 1`**. (Each tile needs one visit. Each group that begins inside a tile adds one more,
#   and at most `E - 1` do.) `num_steps`, an int32 scalar, says how many entries count. The
#   rest must only be legal: below `E`, and below `M // bm`.
#
# Here `bm` divides `M`, and at least one group has rows. At which step do each group's visits
# begin? Those steps are offsets again, counted in visits.


# %%
def tile_metadata_spec(
    group_sizes: Int[Array, " E"], M: int, bm: int
) -> tuple[Int[Array, " steps"], Int[Array, " steps"], Int[Array, ""]]:
    visits, end = [], 0
    for g, size in enumerate(np.asarray(group_sizes)):
        start, end = end, end + size
        for tile in range(M // bm):
            if max(start, tile * bm) < min(end, (tile + 1) * bm):  # they have a row in common
                visits.append((g, tile))
    num_steps = np.int32(len(visits))
    while len(visits) < M // bm + len(group_sizes) - 1:
        visits.append(visits[-1])
    group_ids, tile_ids = np.array(visits, np.int32).T
    return group_ids, tile_ids, num_steps


# %%
from puzzles.grouped_matmul._sizes import check_sizes


def tile_metadata(
    group_sizes: Int[Array, " E"], M: int, bm: int
) -> tuple[Int[Array, " steps"], Int[Array, " steps"], Int[Array, ""]]:
    if M % bm:
        whole = -(-M // bm) * bm
        raise ValueError(
            f"tiles of {bm} rows do not divide M={M}: pad the rows to {whole}; "
            "group_sizes stay, so the new rows belong to no group"
        )
    check_sizes(group_sizes, M)
    E = len(group_sizes)
    offsets = find("group_offsets").solution(group_sizes)
    counts = find("tiles_per_group").solution(group_sizes, bm)
    ### BEGIN SOLUTION
    stops = jnp.cumsum(counts)  # of each group's visits
    num_steps = stops[-1]
    t = jnp.minimum(jnp.arange(M // bm + E - 1), num_steps - 1)
    group_ids = jnp.searchsorted(stops, t, side="right")
    nth = t - (stops - counts)[group_ids]
    tile_ids = offsets[group_ids] // bm + nth
    return group_ids, jnp.maximum(tile_ids, 0), num_steps  # t is -1 if no group has rows
    ### END SOLUTION


# %% [markdown]
# This is the list of JAX's own grouped matmul, `gmm` of
# [Megablox](https://github.com/jax-ml/jax/tree/main/jax/experimental/pallas/ops/tpu/megablox),
# visit by visit; a test of this project compares the two on 300 random lists of sizes. Try five
# sizes of your own: one compiled program runs every list of five.

# %% active="ipynb"
# visits = jax.jit(find("tile_metadata").solution, static_argnums=(1, 2))
# for sizes in ([100, 0, 156, 200, 56], [0, 0, 512, 0, 0], [7, 7, 7, 7, 7]):
#     group_ids, tile_ids, num_steps = visits(jnp.array(sizes), 512, 128)
#     print("sizes ", sizes, f"{num_steps} of {len(tile_ids)} steps")
#     print("groups", group_ids[:num_steps])
#     print("tiles ", tile_ids[:num_steps], "\n")

# %% tags=["author"]
from puzzles import Puzzle, array, mutate
from puzzles.grouped_matmul.group_offsets import draw_sizes


def make_inputs(key, M, bm, sizes=None, **random):
    return array(sizes, jnp.int32) if sizes else draw_sizes(key, **random), M, bm


def _active(result, steps):
    """What counts of a result: everything but the entries that nobody visits."""
    group_ids, tile_ids, num_steps = (np.asarray(x).tolist() for x in result)
    return group_ids[:steps], tile_ids[:steps], num_steps


def accepts(result, group_sizes, M, bm):
    E, tiles = len(group_sizes), M // bm
    assert isinstance(result, tuple | list) and len(result) == 3, (
        "return three: group_ids, tile_ids, num_steps"
    )
    shapes = dict(group_ids=(tiles + E - 1,), tile_ids=(tiles + E - 1,), num_steps=())
    for x, (name, shape) in zip(map(np.asarray, result), shapes.items(), strict=True):
        static = f", for any sizes: M // bm + E - 1 = {tiles} + {E} - 1" if shape else ", a scalar"
        assert x.shape == shape, f"{name} has shape {x.shape}; it must have {shape}{static}"
        assert x.dtype == np.int32, f"{name} has the wrong dtype: expected int32, got {x.dtype}"
    want = tile_metadata_spec(group_sizes, M, bm)
    steps = int(want[2])
    mine, theirs = _active(result, steps), _active(want, steps)
    if mine != theirs:
        raise AssertionError(f"{_difference(mine, theirs)}{_diagnosis(mine, group_sizes, M, bm)}")
    for x, name, limit in ((result[0], "group_ids", E), (result[1], "tile_ids", tiles)):
        bad = [t for t, n in enumerate(np.asarray(x)) if not 0 <= n < limit]
        assert not bad, (
            f"{name}[{bad[0]}] is {x[bad[0]]}. It does not count, since num_steps is {steps}, "
            f"but it must be legal: 0 to {limit - 1}. Repeat the last visit, for example"
        )


def _difference(mine, theirs):
    if mine[:2] == theirs[:2]:
        return f"num_steps is {mine[2]}; the groups touch {theirs[2]} tiles in all."
    visits = list(zip(*mine[:2], strict=True)), list(zip(*theirs[:2], strict=True))
    t = next(t for t, (a, b) in enumerate(zip(*visits, strict=True)) if a != b)
    (g, tile), (group, row) = visits[0][t], visits[1][t]
    return (
        f"Step {t} should visit tile {row} for group {group}; it visits tile {tile} for group {g}."
    )


def _diagnosis(mine, *args):
    """The mistake with these numbers, in words: with `accepts`, the checker finds none."""
    for mistake in PUZZLE.mistakes:
        if mistake.stage == "values":
            wrong = mutate(PUZZLE, mistake)(*args)
            if _active(wrong, len(mine[0])) == mine:
                return f"\nA function that {mistake.name} gives the same here: {mistake.says}."
    return ""


def fresh(r):
    M, total = ((640, 640), (640, 500), (1920, 1920), (1920, 1300))[r.integers(4)]
    return dict(M=M, bm=64, E=int(r.choice((10, 21))), total=total, empty=3)


PUZZLE = Puzzle(
    spec=tile_metadata_spec,
    solution=tile_metadata,
    inputs=make_inputs,
    cases=[
        dict(M=512, bm=128, sizes=(100, 0, 156, 200, 56)),
        dict(M=320, bm=64, sizes=(0, 40, 50, 0, 6, 1, 0, 99, 0)),
        # as many experts as real layers have, and more visits than bf16 can count
        dict(M=2304, bm=8, E=144, total=2304, empty=9),
        dict(M=2**24 + 2**17, bm=2**16, sizes=(100, 2**24 + 2**16 - 101, 2**16 + 1)),  # beyond f32
    ],
    hints=[
        "Running sums of the counts give the step at which each group's visits end. Step t "
        "belongs to the first group whose visits have not ended by then.",
        "`jnp.searchsorted(sorted, values, side=...)` finds it for all steps at once; so does "
        "`jnp.repeat` with its `total_repeat_length`. An array of group ids is an index: "
        "`offsets[group_ids]` has one entry per step.",
        "Compute the visits' ends from the counts; the numbers of all steps, clamped to the "
        "last one that counts; the group of each step; how many steps ago that group began; the "
        "tile of the group's first row, plus that many.",
    ],
    explain="""In the reference two CSR structures meet: offsets in rows give the row at which a
    group begins, running sums of tile counts give the step at which its visits begin. A step
    minus that beginning is the number of tiles between the visit and the group's first tile.
    Shapes depend on M, bm and E alone, so one compiled program works for all sizes.""",
    kernel=False,
    jit=True,
    fresh=fresh,
    accepts=accepts,
)
