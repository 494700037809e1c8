"""A verdict on wrong numbers gives their places, and claims no more than it knows."""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from launched import call
from learner import judged

import puzzles
from puzzles._check import verdict_page
from puzzles._judge import judge
from puzzles._judge.explain.by_facts import block_map, like_others
from puzzles._judge.explain.edits import edits
from puzzles._judge.numbers import compare
from puzzles._judge.origin import origin
from puzzles._launch import trace_call


def two_outputs(x):
    """Two results of equal shape, the second launch output first."""

    def kernel(x_ref, one_ref, two_ref):
        one_ref[...] = x_ref[...]
        two_ref[...] = -x_ref[...]

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    one, two = call(kernel, [x, x], (x.shape[0] // 8,), [spec], [spec, spec])(x)
    return two, jax.jit(jnp.transpose)(one.reshape(2, -1, 128)[1:]), one + 0


def test_a_result_is_traced_to_the_output_that_becomes_it() -> None:
    traced = trace_call(two_outputs, jnp.ones((32, 128)))
    marks = np.zeros((32, 128), bool)
    marks[9, 3] = True
    first = origin(traced, 0, marks)
    assert first is not None
    assert first.operand.name == "two_ref"
    assert np.array_equal(first.marks, marks)
    marks = np.zeros((128, 16, 1), bool)
    marks[3, 9, 0] = True
    second = origin(traced, 1, marks)
    assert second is not None
    assert second.operand.name == "one_ref"
    assert np.argwhere(second.marks).tolist() == [[16 + 9, 3]]
    assert origin(traced, 2, np.zeros((32, 128), bool)) is None  # numbers are mixed on the way


def test_what_is_never_written_speaks_first_and_no_guess_is_made() -> None:
    """The numbers are those of a mistake on record, whose blocks are all written."""
    verdict = judged("row_sum", ("lambda i, j: (i, 0)", "lambda i, j: (0 * i, 0)"))
    first = str(verdict).splitlines()[1]
    assert first.startswith("  Likely cause: ")
    assert "no grid step visits" in first
    assert verdict.diagnosis is None
    page = verdict_page(verdict)
    assert page.index("Likely cause") < page.index("elements")


@dataclasses.dataclass
class Output:
    """As much of an operand as a map needs."""

    shape: tuple[int, ...]
    block: tuple[int | None, ...]
    name: str = "o_ref"


def drawn(shape: tuple[int, ...], *wrong: tuple[int, ...]) -> str:
    marks = np.zeros(shape, bool)
    for one in wrong:
        marks[one] = True
    return str(block_map(Output(shape, (1,) * len(shape)), marks))  # type: ignore[arg-type]


def test_of_several_planes_that_with_the_first_wrong_block_is_drawn() -> None:
    title, *rows = drawn((3, 4, 2), (1, 0, 0), (2, 0, 0)).splitlines()
    assert title == "output blocks [1, :, :] of o_ref (. right, x wrong):"
    assert rows == ["  0 1", "0 x .", "1 . .", "2 . .", "3 . .", "wrong: 2 of 24 blocks"]
    assert "blocks of o_ref" in drawn((4, 4), (1, 0))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("y = x * i * n + j + 1", "y = x * (i * n + j + 1)"),
        ("y = x[j]", "y = x[i]"),
        ("y[...] = x", "y[...] += x"),
        ("y = i < n", "y = i < n - 1"),
        ("y = jnp.where(c, a, b)", "y = jnp.where(c, b, a)"),
        ("y = i % n", "y = i // n"),
    ],
)
def test_small_edits_of_a_line(wrong: str, right: str) -> None:
    start = "def kernel(x):\n    i, j = indices()\n    "
    after = {text for _, _, line, text in edits(start + wrong, frozenset()) if line == wrong}
    assert start + right in after
    assert not edits(start + wrong, frozenset([wrong, "i, j = indices()"]))


def test_axes_of_one_block_are_no_planes() -> None:
    assert drawn((3, 1, 1), (1, 0, 0)).splitlines()[1:] == ["  0", "0 .", "1 x", "2 ."]
    assert drawn((3,), (2,)).splitlines()[1:] == ["  0 1 2", "0 . . x"]


def test_a_map_is_small_and_never_all_right() -> None:
    assert drawn((2, 3), (1, 2)).splitlines()[1:] == ["  0 1 2", "0 . . .", "1 . . x"]
    far = drawn((40, 40), (39, 39)).splitlines()[1:]
    assert len(far) == 11
    assert far[:2] == ["    … 32 33 34 35 36 37 38 39", "…"]
    assert far[-2:] == ["39  …  .  .  .  .  .  .  .  x", "wrong: 1 of 1,600 blocks"]
    near = drawn((40, 40), (0, 0), (9, 0), (0, 9)).splitlines()[1:]
    assert near[1] == "0 x . . . . . . . …"
    assert near[-2:] == ["…", "wrong: 3 of 1,600 blocks"]


def test_the_maps_caption_in_html_does_not_speak_of_characters() -> None:
    verdict = judged("row_sum", ("jnp.sum(x_ref[...], axis=1, keepdims=True)", "0.0"))
    assert "(. right, x wrong)" in str(verdict)
    page = verdict_page(verdict)
    shown = re.sub(r"<title>.*?</title>|aria-label='.*?'", "", page, flags=re.S)
    assert "x wrong" not in shown
    assert "output blocks of o_ref, right and wrong" in page


def test_a_short_vector_is_printed_whole() -> None:
    puzzle = puzzles.find("group_offsets")
    verdict = judge(puzzle, lambda sizes: puzzle.solution(sizes) + 1)
    assert "\n  expected [0, 100, 100, 256, 456, 512]\n" in str(verdict)
    assert "\n  got      [1, 101, 101, 257, 457, 513]" in str(verdict)
    assert "[1, 101, 101, 257, 457, 513]" in verdict_page(verdict)


@pytest.mark.parametrize(("error", "close"), [("1.0001", True), ("1.01", False)])
def test_who_is_close_is_told_how_close(error: str, close: bool) -> None:
    verdict = judged(
        "row_sum", ("jnp.sum(x_ref[...], axis=1", f"{error} * jnp.sum(x_ref[...], axis=1")
    )
    assert ("You are close: the largest error is " in verdict.says) == close
    if close:
        number = re.search(r"largest error is ([\d.]+) times the tolerance", verdict.says)
        assert number is not None
        assert 1 < float(number[1]) < 10


def likeness(want: np.ndarray, got: np.ndarray, **args: object) -> str | None:
    """The verdict on `got` if the spec returns `want` for these arguments."""
    names = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in args]

    def spec() -> None: ...

    spec.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    run = SimpleNamespace(
        mismatch=(0, want, compare(want, got, None)),
        flat=[got],
        place=None,
        puzzle=SimpleNamespace(spec=spec, tolerance=None),
        case=SimpleNamespace(args=tuple(args.values())),
    )
    return like_others(run)  # type: ignore[arg-type]


def test_numbers_are_told_from_arguments_that_are_several_arrays() -> None:
    want, ids = np.arange(1.0, 5.0), (np.zeros(2, np.int32), np.zeros(3, np.int32))
    assert likeness(want, want[::-1], ids=ids, x=want[::-1]) == (
        "They are the numbers of `x`, unchanged."
    )


def test_numbers_that_are_like_nothing_get_no_likeness() -> None:
    r = np.random.default_rng(0)
    want, got = r.normal(size=(2, 16, 256))
    assert likeness(want, got, x=want) is None
    scattered = np.where(r.random((16, 256)) < 0.5, want, np.nan)
    assert likeness(want, scattered) is None
    odd = {"tiles": (np.zeros(6), np.zeros((2, 3))), "rule": len, "segment_ids": None, "cap": 2.0}
    assert likeness(want, got, **odd) is None
