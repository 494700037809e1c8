"""The tables and lists of splash_attention's masks are those that JAX's own kernel works from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import puzzles

PRODUCTION = "jax.experimental.pallas.ops.tpu.splash_attention"
mask_lib = pytest.importorskip(
    f"{PRODUCTION}.splash_attention_mask", reason="this JAX has no splash attention of its own"
)
info_lib = pytest.importorskip(
    f"{PRODUCTION}.splash_attention_mask_info", reason="this JAX makes no mask info of its own"
)

classify_blocks = puzzles.find("classify_blocks").solution
active_tiles = puzzles.find("active_tiles").solution

SEEDS = range(30)
KINDS = ("causal", "local", "chunked", "blocks", "elements", "empty rows", "joined", "uneven")


def drawn(kind: str, seed: int) -> tuple[object, int, int]:
    """A mask of JAX's own classes, and block sizes that divide it."""
    r = np.random.default_rng([KINDS.index(kind), seed])
    bq, bk = (int(n) for n in r.choice([4, 8, 16], 2))
    shape = T, S = bq * int(r.integers(1, 8)), bk * int(r.integers(1, 8))
    offset = int(r.integers(-T // 2, S // 2 + 1))
    causal = mask_lib.CausalMask(shape, offset=offset)
    if kind == "causal":
        return causal, bq, bk
    if kind == "local":
        window = tuple(None if n == 40 else int(n) for n in r.integers(0, 41, 2))
        return mask_lib.LocalMask(shape, window_size=window, offset=offset), bq, bk
    if kind == "chunked":
        side = bq * bk * int(r.integers(1, 4))  # as many queries as keys
        return mask_lib.ChunkedCausalMask((side, side), chunk_size=int(r.integers(1, side))), bq, bk
    if kind == "joined":
        one, two = (
            r.random(shape) < 0.7,
            np.kron(r.random((T // bq, S // bk)) < 0.5, np.ones((bq, bk))),
        )
        left, right = mask_lib.NumpyMask(one), mask_lib.NumpyMask(two > 0)
        return (causal & left) | right, bq, bk
    if kind == "elements":
        return mask_lib.NumpyMask(r.random(shape) < r.choice([0.02, 0.5, 0.98])), bq, bk
    # blocks that are empty, full or one of three patterns
    store = [np.zeros((bq, bk), bool), np.ones((bq, bk), bool), *(r.random((3, bq, bk)) < 0.5)]
    numbers = r.integers(0, len(store), (T // bq, S // bk))
    if kind == "empty rows":
        numbers[r.random(len(numbers)) < 0.5] = 0
    if kind == "uneven":  # one wide row, the others narrow
        numbers *= r.random(numbers.shape) < 0.2
        numbers[r.integers(len(numbers))] = 1
    return mask_lib.NumpyMask(np.block([[store[n] for n in row] for row in numbers])), bq, bk


def production(masks: list, bq: int, bk: int, shrink_grid: bool) -> object:
    """JAX's mask info for dense masks, one a head."""
    heads = mask_lib.MultiHeadMask([mask_lib.NumpyMask(np.asarray(m[:, :])) for m in masks])
    return info_lib.process_mask(heads, (bq, bk), shrink_grid=shrink_grid)[0]


def patterns(stored: np.ndarray | None) -> list[bytes]:
    return [] if stored is None else sorted(pattern.tobytes() for pattern in stored)


def same_tables(classify: Callable, mask: object, bq: int, bk: int) -> None:
    dense = np.asarray(mask[:, :])
    block_mask, mask_index, partial_masks = classify(dense, bq, bk)
    theirs = production([mask], bq, bk, shrink_grid=False)
    np.testing.assert_array_equal(block_mask, theirs.block_mask[0])
    partial = block_mask == 1
    if not partial.any():
        assert theirs.partial_mask_blocks is None
        assert partial_masks.shape == (1, bq, bk)
        return
    assert patterns(partial_masks) == patterns(theirs.partial_mask_blocks)
    np.testing.assert_array_equal(
        partial_masks[mask_index[partial]],
        theirs.partial_mask_blocks[theirs.mask_next[0][partial]],
    )


def same_tiles(active: Callable, mask: object, bq: int, bk: int) -> None:
    """The list is JAX's shrunk grid without the padding, and with a visit for each empty row."""
    block_mask, mask_index, partial_masks = classify_blocks(np.asarray(mask[:, :]), bq, bk)
    rows, cols, masks, flags = active(block_mask, mask_index)
    kinds = flags & 3
    empty = ~block_mask.any(axis=1)
    np.testing.assert_array_equal(rows[kinds == 0], np.flatnonzero(empty))
    starts, ends = rows[flags & 4 > 0], rows[flags & 8 > 0]
    np.testing.assert_array_equal(starts, np.arange(len(block_mask)))
    np.testing.assert_array_equal(ends, np.arange(len(block_mask)))
    assert (np.diff(rows, prepend=-1) > 0).tolist() == (flags & 4 > 0).tolist()
    if empty.all():  # JAX shrinks such a grid to nothing, and then refuses it
        return
    theirs = production([mask], bq, bk, shrink_grid=True)
    padded = theirs.block_mask[0]
    widest = (block_mask > 0).sum(axis=1).max()
    assert padded.shape == (len(block_mask), widest)
    assert len(rows) == (padded > 0).sum() + empty.sum() <= padded.size + empty.sum()
    work = kinds > 0
    np.testing.assert_array_equal(rows[work], np.nonzero(padded)[0])
    np.testing.assert_array_equal(cols[work], theirs.data_next[0][padded > 0])
    np.testing.assert_array_equal(kinds[work], padded[padded > 0])
    if theirs.mask_next is not None:
        np.testing.assert_array_equal(
            partial_masks[masks[kinds == 1]],
            theirs.partial_mask_blocks[theirs.mask_next[0][padded == 1]],
        )
        assert fetches(masks) <= fetches(theirs.mask_next[0].ravel())


def fetches(numbers: np.ndarray) -> int:
    """How often a pipeline copies a block, if these are the blocks that its steps name."""
    return 1 + int((np.diff(numbers.astype(int)) != 0).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_those_of_production(kind: str) -> None:
    for seed in SEEDS:
        same_tables(classify_blocks, *drawn(kind, seed))


@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_productions_grid_without_its_padding(kind: str) -> None:
    for seed in SEEDS:
        same_tiles(active_tiles, *drawn(kind, seed))


@pytest.mark.parametrize("kind", ["causal", "local", "chunked"])
def test_masks_that_production_computes_have_the_same_kinds(kind: str) -> None:
    for seed in SEEDS:
        mask, bq, bk = drawn(kind, seed)
        heads = mask_lib.MultiHeadMask([mask])
        theirs = info_lib.process_mask(heads, (bq, bk), shrink_grid=False)[0]
        block_mask, _, _ = classify_blocks(np.asarray(mask[:, :]), bq, bk)
        np.testing.assert_array_equal(block_mask, theirs.block_mask[0])


def test_one_mask_a_head_has_a_table_a_head_and_no_shrunk_grid() -> None:
    for seed in SEEDS:
        r = np.random.default_rng(seed)
        (N, rows, columns), bq, bk = r.integers(2, 6, 3), 8, 16
        masks = np.kron(r.integers(0, 2, (N, rows, columns)), np.ones((1, bq, bk))) > 0
        upper = bq * rows // 2  # patterns that heads share
        masks[:, :upper] &= r.random((1, upper, bk * columns)) < 0.5
        theirs = production(list(masks), bq, bk, shrink_grid=True)
        assert theirs.block_mask.shape == (N, rows, columns)
        ours = [classify_blocks(mask, bq, bk) for mask in masks]
        used = set()
        for head, (block_mask, mask_index, partial_masks) in enumerate(ours):
            np.testing.assert_array_equal(block_mask, theirs.block_mask[head])
            partial = block_mask == 1
            if partial.any():
                chosen = partial_masks[mask_index[partial]]
                used |= {*patterns(chosen)}
                wanted = theirs.partial_mask_blocks[theirs.mask_next[head][partial]]
                np.testing.assert_array_equal(chosen, wanted)
        assert patterns(theirs.partial_mask_blocks) == sorted(used)


def test_a_causal_mask_has_36_tiles_where_the_padded_grid_has_64_steps() -> None:
    causal = mask_lib.CausalMask((1024, 1024))
    block_mask, mask_index, partial_masks = classify_blocks(causal[:, :], 128, 128)
    rows, _, _, _ = active_tiles(block_mask, mask_index)
    padded = production([causal], 128, 128, shrink_grid=True).block_mask[0]
    assert (len(rows), padded.size, len(partial_masks)) == (36, 64, 1)


@pytest.mark.parametrize(
    ("compare", "name", "mistake"),
    [
        (same_tables, "classify_blocks", "calls every block that has work full"),
        (same_tables, "classify_blocks", "stores every partial block"),
        (same_tables, "classify_blocks", "takes blocks with as many elements for equal"),
        (same_tiles, "active_tiles", "leaves out rows that need nothing"),
        (same_tiles, "active_tiles", "gives every row a visit to block 0"),
        (same_tiles, "active_tiles", "goes column by column"),
        (same_tiles, "active_tiles", "compares the ends of the list with each other"),
        (same_tiles, "active_tiles", "repeats the pattern before it for partial tiles, too"),
    ],
)
def test_a_mistake_disagrees_with_production(compare: Callable, name: str, mistake: str) -> None:
    puzzle = puzzles.find(name)
    wrong = puzzles.mutate(puzzle, puzzle.mistake(mistake))

    def everywhere() -> None:
        for kind in KINDS:
            for seed in SEEDS:
                compare(wrong, *drawn(kind, seed))

    with pytest.raises(AssertionError):
        everywhere()
