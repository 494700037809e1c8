"""The splash_attention ladder beside the attention that JAX ships, over masks nobody tuned for.

First the summit, splash_multi_head: the same numbers, and no more work. Then the tables and lists
that it works from.

Head counts, dtypes, caps, segments and tolerance are those of JAX's own test of its kernel,
https://github.com/jax-ml/jax/blob/main/tests/pallas/tpu_splash_attention_kernel_test.py. Masks
are rougher, value heads may differ, and rows may attend to nothing, which JAX's test avoids.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from launched import mistaken
from masks import KINDS, drawn, one_mask, with_a_cap_of_half

from puzzles import _puzzle, find
from puzzles.splash_attention import _graduation as graduation
from puzzles.splash_attention import splash_multi_head
from puzzles.splash_attention._graduation import Case, shipped

PRODUCTION = "jax.experimental.pallas.ops.tpu.splash_attention"
mask_lib = pytest.importorskip(
    f"{PRODUCTION}.splash_attention_mask", reason="this JAX has no splash attention of its own"
)
info_lib = pytest.importorskip(
    f"{PRODUCTION}.splash_attention_mask_info", reason="this JAX makes no mask info of its own"
)

SOLUTION = find("splash_multi_head").solution
NUMBERS = range(120)


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("number", sample.some(NUMBERS, 2))
def test_same_numbers_and_no_more_work_than_production(number: int) -> None:
    with np.errstate(invalid="ignore"):
        graduation.examine(SOLUTION, drawn(number))


@sample.in_turn
def test_what_is_drawn_has_all_that_the_summit_takes() -> None:
    """Of each kind of mask: heads, groups, dtypes, caps, documents, head dims, empty rows."""
    for kind in KINDS:
        cases = [drawn(number) for number in NUMBERS if KINDS[number % len(KINDS)] == kind]
        assert sum(case.stored.any() for case in cases) * len(KINDS) >= 100
        assert {case.q.dtype for case in cases} == {jnp.dtype("float32"), jnp.dtype("bfloat16")}
        assert {case.soft_cap is None for case in cases} == {True, False}
        assert {case.segment_ids is None for case in cases} == {True, False}
        assert {case.q.shape[-1] == case.v.shape[-1] for case in cases} == {True, False}
        assert len({(len(case.q), len(case.k)) for case in cases}) >= 4
        assert kind == "FullMask" or any(not case.seen.any(axis=-1).all() for case in cases)
        rules = {callable(case.mask) for case in cases}
        assert rules == {kind in KINDS[:3]}  # those with a formula


def _with_dead_steps(q, k, v, mask, segment_ids=None, soft_cap=None, *, bq, bk):
    """Right numbers from a list as long as the dense grid: visits are added that do nothing."""
    tiles, patterns = splash_multi_head.tiles_of_heads(mask, bq, bk)
    more = mask.size // (bq * bk) - len(tiles[0])
    tiles = [np.pad(x, (0, more), mode="edge") for x in tiles[:3]] + [np.pad(tiles[3], (0, more))]
    return splash_multi_head.splash_over_tiles(q, k, v, tiles, patterns, segment_ids, soft_cap)


def _with_stored_patterns(q, k, v, mask, segment_ids=None, soft_cap=None, *, bq, bk):
    stored = mask(*np.indices((q.shape[1], k.shape[1]), np.int32))
    return SOLUTION(q, k, v, stored, segment_ids, soft_cap, bq=bq, bk=bk)


_mistaken = partial(mistaken, "splash_multi_head")


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize(
    ("fn", "says"),
    sample.some([
        (_with_dead_steps, "grid steps, and JAX's splash attention takes"),
        (with_a_cap_of_half(SOLUTION), "are not those of dense attention in f32"),
        (_mistaken("masks dead visits and skips none"), "dots, and JAX's splash attention takes"),
        (_mistaken("lets full tiles see other documents"), "are not those of dense attention"),
        (_mistaken("assigns the key heads in turn"), "are not those of dense attention"),
    ]),
)  # fmt: skip
def test_what_is_wrong_or_wasteful_does_not_graduate(fn: Callable, says: str) -> None:
    if not graduation.has_splash() and "JAX's" in says:
        pytest.skip("this JAX has no splash attention to compare with")
    i, j = np.indices((512, 512))
    mask = (j < 300) & (i // 128 != 2)  # a row and a column of blocks are empty
    ids = tuple(jnp.asarray(np.arange(512) // 200, jnp.int32) for _ in range(2))
    arrays = graduation.draw(0, 4, 2, 512, 512, 64, 64, jnp.float32)
    with pytest.raises(AssertionError, match=says):
        graduation.examine(fn, Case(*arrays, mask, ids, 4.0))


@sample.drill
def test_patterns_of_a_window_are_more_than_production_moves() -> None:
    arrays = graduation.draw(0, 1, 1, 512, 512, 64, 64, jnp.float32)
    theirs = (("LocalMask", ((512, 512), (199, 0), 0)),)
    case = Case(
        *arrays,
        lambda row, column: (column <= row) & (row - column < 200),
        theirs=theirs,
    )
    graduation.examine(SOLUTION, case)
    with pytest.raises(AssertionError, match="blocks fetched, and JAX's splash attention takes"):
        graduation.examine(_with_stored_patterns, case)


def test_a_comparison_with_another_mask_is_none() -> None:
    arrays = graduation.draw(0, 1, 1, 256, 256, 64, 64, jnp.float32)
    theirs = (("CausalMask", ((256, 256), 1)),)
    case = Case(*arrays, lambda row, column: column <= row, theirs=theirs)
    with pytest.raises(AssertionError, match="JAX's mask is another one"):
        graduation.examine(SOLUTION, case)


def test_a_cap_of_zero_is_a_cap_for_the_spec_and_for_the_kernel() -> None:
    mask = np.tri(256, dtype=bool)
    arrays = graduation.draw(0, 1, 1, 256, 256, 64, 64, jnp.float32)
    spec = find("splash_multi_head").spec(*arrays, mask, None, 0.0)
    np.testing.assert_allclose(SOLUTION(*arrays, mask, None, 0.0), spec, atol=1e-5)
    means = np.cumsum(arrays[2][0], axis=0) / np.arange(1, 257)[:, None]  # all scores are 0
    np.testing.assert_allclose(spec[0], means, atol=1e-5)


def test_what_does_not_fit_is_refused_in_a_sentence() -> None:
    def causal(row: Any, column: Any) -> Any:
        return column <= row

    def shapes(N: int, K: int, T: int) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct((n, T, 64), jnp.float32) for n in (N, K, K)]

    with pytest.raises(AssertionError, match="make the list from block numbers, and call splash_o"):
        jax.eval_shape(lambda *x: SOLUTION(*x, causal), *shapes(1, 1, 65_536))
    for arrays, mask in ((shapes(3, 2, 256), causal), (shapes(2, 2, 200), causal)):
        with pytest.raises(AssertionError, match="groups and blocks must divide evenly"):
            jax.eval_shape(lambda *x, m=mask: SOLUTION(*x, m), *arrays)
    tiles, _ = splash_multi_head.tiles_of_heads(np.ones((2, 256, 256), bool), 128, 128)
    none = np.zeros((0, 128, 128), bool)
    over_tiles = splash_multi_head.splash_over_tiles
    with pytest.raises(AssertionError, match="all heads share a rule"):
        jax.eval_shape(lambda *x: over_tiles(*x, tiles, none, rule=causal), *shapes(2, 2, 256))


# The shapes of masks for 4 heads with 256 queries and 256 keys, and of others.
FIT = [(256, 256), (1, 256, 256), (4, 256, 256)]
OTHERS = [(2, 256, 256), (3, 256, 256), (8, 256, 256), (256, 512), (512, 256), (256, 128), (256,)]


@pytest.mark.parametrize("shape", FIT + OTHERS, ids=str)
def test_a_mask_for_all_heads_or_for_each_is_taken_and_no_other(shape: tuple[int, ...]) -> None:
    q, k = (jax.ShapeDtypeStruct((n, 256, 64), jnp.float32) for n in (4, 2))
    for name in ("splash_multi_head", "splash_vjp"):
        fn = find(name).solution
        if shape in FIT:
            out = jax.eval_shape(lambda *x, fn=fn: fn(*x, np.ones(shape, bool)), q, k, k)
            assert out.shape == q.shape
            continue
        with pytest.raises(ValueError, match=r"mask has shape .* give it .256, 256., or .4, 256"):
            jax.eval_shape(lambda *x, fn=fn: fn(*x, np.ones(shape, bool)), q, k, k)


def test_a_list_of_another_mask_is_refused_in_a_sentence() -> None:
    q, k = (jax.ShapeDtypeStruct((n, 256, 64), jnp.float32) for n in (4, 2))
    for shape in ((2, 256, 256), (8, 256, 256), (256, 512), (512, 256)):
        tiles, patterns = splash_multi_head.tiles_of_heads(np.ones(shape, bool), 128, 128)
        over_tiles = splash_multi_head.splash_over_tiles
        with pytest.raises(AssertionError, match="the list belongs to another mask"):
            jax.eval_shape(lambda *x, t=tiles, p=patterns: over_tiles(*x, t, p), q, k, k)


@sample.drill
def test_a_learner_reads_the_table_or_what_is_wrong() -> None:
    table = graduation.graduate(SOLUTION)
    assert table.startswith(graduation.HEAD)
    calls, blind, source = table.split("\n\n")
    file, version = re.fullmatch(r"JAX's kernel: (\S+), JAX (\S+)", source).groups()
    assert (Path(jax.__file__).parents[1] / file).is_file()
    assert version == jax.__version__
    assert len(calls.splitlines()) == len([*graduation.HEAD.splitlines(), *graduation.examples()])
    assert blind.splitlines()[1].split() == ["yours", "zeros", "zeros"]
    zeros = graduation.graduate(lambda q, k, v, *args, bq, bk: jnp.zeros_like(q))
    assert zeros.startswith("not yet: ")
    assert "are not those of dense attention" in zeros
    starter = _puzzle.starter_function(find("splash_multi_head"))
    assert graduation.graduate(starter) == "not yet: `splash_specs` is as you found it"
    assert graduation.graduate(lambda *args, bq, bk: None).startswith("not yet: ")


def test_production_shapes_are_counted_without_data() -> None:
    table = graduation.costs(splash_multi_head.splash_over_tiles)
    assert "yours" in table
    assert "reference" not in table
    unsolved = graduation.costs(lambda *args: ...)
    assert "reference, not yours" in unsolved


def test_production_gets_its_own_mask_classes_and_no_other() -> None:
    class Banded(mask_lib.NumpyMask):
        pass

    with pytest.raises(AssertionError, match="Banded is no mask that JAX ships"):
        graduation.production([Banded(np.ones((128, 128), bool))], None, 128, 128)


# Tables and lists of a mask

classify_blocks = find("classify_blocks").solution
active_tiles = find("active_tiles").solution
TABLES = range(200)


def table_of(number: int) -> tuple[list, int, int]:
    """Masks of JAX's own classes, alike or different for several heads, and sizes of blocks."""
    r, kind = np.random.default_rng([8, number]), KINDS[number % len(KINDS)]
    bq, bk = (int(n) for n in r.choice([32, 64, 128], 2))
    T, S = (128 * int(n) for n in r.integers(1, 5, 2))
    kinds = [kind] if kind != "one each" else r.choice(KINDS[:-1], r.integers(2, 5))
    masks = [shipped(name, *args) for name, args in (one_mask(r, one, T, S) for one in kinds)]
    differ = {np.asarray(mask[:, :]).tobytes(): mask for mask in masks}
    return [*differ.values()], bq, bk


def production(masks: list, bq: int, bk: int, shrink_grid: bool) -> Any:
    """JAX's mask info of masks, one a head."""
    heads = mask_lib.MultiHeadMask(masks)
    return info_lib.process_mask(heads, (bq, bk), shrink_grid=shrink_grid)[0]


def stored(masks: list) -> list:
    """The masks as JAX stores them that have no formula."""
    return [mask_lib.NumpyMask(np.asarray(mask[:, :])) for mask in masks]


def same_tables(classify: Callable, masks: list, bq: int, bk: int) -> None:
    """The grid of heads with masks of their own is not shrunk."""
    theirs = production(stored(masks), bq, bk, shrink_grid=len(masks) > 1)
    used = set()
    for head, mask in enumerate(masks):
        block_mask, mask_index, partial_masks = classify(np.asarray(mask[:, :]), bq, bk)
        np.testing.assert_array_equal(block_mask, theirs.block_mask[head])
        computed = production([mask], bq, bk, shrink_grid=False)
        np.testing.assert_array_equal(block_mask, computed.block_mask[0])
        partial = block_mask == 1
        if not partial.any():
            assert partial_masks.shape == (1, bq, bk)
            continue
        chosen = partial_masks[mask_index[partial]]
        np.testing.assert_array_equal(
            chosen, theirs.partial_mask_blocks[theirs.mask_next[head][partial]]
        )
        assert len(partial_masks) == len({pattern.tobytes() for pattern in chosen})
        used |= {pattern.tobytes() for pattern in chosen}
    assert len(used) == (
        0 if theirs.partial_mask_blocks is None else len(theirs.partial_mask_blocks)
    )


def same_tiles(active: Callable, masks: list, bq: int, bk: int) -> None:
    """The list is JAX's shrunk grid without the padding, and with a visit for each empty row."""
    block_mask, mask_index, partial_masks = classify_blocks(np.asarray(masks[0][:, :]), bq, bk)
    rows, cols, masks_of, flags = active(block_mask, mask_index)
    kinds = flags & 3
    empty = ~block_mask.any(axis=1)
    np.testing.assert_array_equal(rows[kinds == 0], np.flatnonzero(empty))
    starts, ends = rows[flags & 4 > 0], rows[flags & 8 > 0]
    np.testing.assert_array_equal(starts, np.arange(len(block_mask)))
    np.testing.assert_array_equal(ends, np.arange(len(block_mask)))
    assert (np.diff(rows, prepend=-1) > 0).tolist() == (flags & 4 > 0).tolist()
    if empty.all():  # JAX shrinks such a grid to nothing, and then refuses it
        return
    theirs = production(stored(masks[:1]), bq, bk, shrink_grid=True)
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
            partial_masks[masks_of[kinds == 1]],
            theirs.partial_mask_blocks[theirs.mask_next[0][padded == 1]],
        )
        assert fetches(masks_of) <= fetches(theirs.mask_next[0].ravel())


def fetches(numbers: np.ndarray) -> int:
    """How often a pipeline copies a block, if these are the blocks that its steps name."""
    return 1 + int((np.diff(numbers.astype(int)) != 0).sum())


def everywhere(compare: Callable, fn: Callable) -> None:
    for number in TABLES:
        compare(fn, *table_of(number))


@sample.in_turn
def test_tables_are_those_of_production() -> None:
    everywhere(same_tables, classify_blocks)


def test_lists_are_productions_grid_without_its_padding() -> None:
    everywhere(same_tiles, active_tiles)


@pytest.mark.parametrize(
    ("compare", "name", "mistake"),
    [
        (same_tables, "classify_blocks", "stores every partial block"),
        (same_tables, "classify_blocks", "takes blocks with as many elements for equal"),
        (same_tiles, "active_tiles", "compares the ends of the list with each other"),
        (same_tiles, "active_tiles", "repeats the pattern before it for partial tiles, too"),
    ],
)
def test_a_mistake_disagrees_with_production(compare: Callable, name: str, mistake: str) -> None:
    with pytest.raises(AssertionError):
        everywhere(compare, mistaken(name, mistake))
