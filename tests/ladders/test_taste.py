"""The rules of this repository's own prose, which forks do not have to follow.

An API name is explained before it is used, a puzzle that is named was met, a figure with a unit has
its source in tests/facts, an annotation holds in every case.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import AbstractArray, Array, Float, jaxtyped

import puzzles
from puzzles import Puzzle, _regions
from puzzles._author import review
from puzzles._judge import Case, cases, unwrap
from puzzles._ladders import UnknownPuzzleError, ladder_module, ladder_of, ladders
from puzzles._launch import trace_call

FACTS = Path(__file__).parents[1] / "facts"
OURS = [name for name in ladders() if (FACTS / f"{name}.toml").exists()]
PUZZLES = [puzzle for name in OURS for puzzle in puzzles.ladder(name)]
each_puzzle = pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: puzzle.name)
prose = cache(review.prose)

_API = re.compile(r"(pl|pltpu|jax\.lax|lax)\.")
_NAME = re.compile(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?:\(\))?`")
_LATER = re.compile(r"\b(at the end|at the top|later|next|on|soon|until)\b")
_NEAR = 40  # letters between a name and the word that says so
_FIGURE = re.compile(
    r"\d[\d.,]*[  ]?(?:[KMGT]i?B(?:/s)?|[MGTP]?FLOPs?(?:/s)?|[MG]Hz|[µnm]s)(?![\w/])"
)
_SENTENCE = re.compile(r"(?<=[.!?:])[\s*_)]+(?=[A-Z`*\[(])|(?<=\|)\s+")


def climbed_before(name: str) -> Iterator[str]:
    """The ladders that a ladder takes as known: its AFTER, and theirs."""
    for earlier in getattr(ladder_module(name), "AFTER", ()):
        yield from climbed_before(earlier)
        yield earlier


def met(puzzle: Puzzle) -> Iterator[Puzzle]:
    """The puzzles before this puzzle."""
    for name in (*climbed_before(puzzle.ladder), puzzle.ladder):
        for one in puzzles.ladder(name):
            if one.name == puzzle.name:
                return
            yield one


def flat(text: str) -> str:
    """Markdown without the comment's marks and line breaks."""
    return " ".join(re.sub(r"(?m)^# ?", "", text).split())


def words(*texts: str) -> set[str]:
    return {word for text in texts for word in re.findall(r"\w+", text)}


@cache
def facts(ladder: str) -> list[dict[str, str]]:
    return tomllib.loads((FACTS / f"{ladder}.toml").read_text(encoding="utf-8"))["fact"]


# An API name is explained before it is used


@cache
def api_names(text: str) -> dict[str, int]:
    """Names of JAX's and Pallas' API, and keywords of Pallas' functions, by their first line."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if _API.match(name) and re.fullmatch(r"[\w.]+", name):
                found.setdefault(name, node.lineno)
        elif isinstance(node, ast.Call) and re.match(r"(pl|pltpu)\.", ast.unparse(node.func)):
            for word in node.keywords:
                if word.arg:
                    found.setdefault(word.arg, word.value.lineno)
    return found


def unexplained(puzzle: Puzzle) -> list[str]:
    """API names in the puzzle's code that neither its prose nor earlier text mentions."""
    fronts = [ladder_module(name) for name in (*climbed_before(puzzle.ladder), puzzle.ladder)]
    told = [text for f in fronts for text in (f.INTRO, *getattr(f, "PARTS", {}).values())]
    told += [prose(puzzle.text), *(prose(one.text) for one in met(puzzle))]
    known = words(*told, *(name for one in met(puzzle) for name in api_names(one.text)))
    return [
        f"{puzzle.file}:{line}: {name}"
        for name, line in api_names(puzzle.text).items()
        if name.split(".")[-1] not in known
    ]


@pytest.mark.newest
@each_puzzle
def test_an_api_name_is_explained_before_it_is_used(puzzle: Puzzle) -> None:
    assert unexplained(puzzle) == [], "say what these do, or do without them"


# A puzzle that prose names was met


@cache
def code(puzzle: Puzzle) -> str:
    """The parts of a puzzle's cells that are no prose."""
    cells = _regions.split_cells(puzzle.text)
    return "\n".join(body for marker, body in cells if "[markdown]" not in marker)


@cache
def api() -> set[str]:
    """The names that the setup cell defines, and their values."""
    holders = (jax, jnp, np, pl, pltpu, jax.lax, jax.nn, jax.random, jax.experimental)
    found = {name for holder in holders for name in dir(holder)}
    for value in (getattr(holder, name) for holder in (jnp, pl, pltpu) for name in dir(holder)):
        with contextlib.suppress(TypeError, ValueError):  # an object without a signature
            found.update(inspect.signature(value).parameters)
    return found


def unmet(puzzle: Puzzle) -> Iterator[str]:
    """Names in the prose that look like a puzzle's, and are none that the reader has met."""
    before = [*met(puzzle), puzzle]
    own = [fact for fact in facts(puzzle.ladder) if fact["puzzle"] == puzzle.name]
    known = api() | {one.name for one in before} | words(*map(code, before))
    known |= words(*(fact.get(key, "") for fact in own for key in ("says", "source")))
    for text in map(flat, (review.prose(puzzle.text), *puzzle.hints, puzzle.explain)):
        for found in _NAME.finditer(text):
            around = text[max(0, found.start() - _NEAR) : found.end() + _NEAR]
            if found[1] in known:
                continue
            with contextlib.suppress(UnknownPuzzleError):
                if ladder_of(found[1]) and _LATER.search(around):
                    continue
            yield found[1]


@pytest.mark.newest
@each_puzzle
def test_a_puzzle_that_prose_names_was_met_or_comes_later(puzzle: Puzzle) -> None:
    assert list(unmet(puzzle)) == [], "mend these names, or say that they come later"


# A figure has a source


def unsourced(texts: list[str], listed: list[str]) -> Iterator[str]:
    """Sentences with a figure and a unit of which no fact on record has a part."""
    for text in map(flat, texts):
        spans = [m.span() for says in listed for m in re.finditer(re.escape(flat(says)), text)]
        ends = [m.start() for m in _SENTENCE.finditer(text)]
        for first, last in zip([0, *ends], [*ends, len(text)], strict=True):
            if _FIGURE.search(text, first, last):
                if not any(a < last and first < b for a, b in spans):
                    yield text[first:last].strip()


@pytest.mark.newest
@each_puzzle
def test_a_figure_with_a_unit_has_a_source(puzzle: Puzzle) -> None:
    listed = [fact["says"] for fact in facts(puzzle.ladder) if fact["puzzle"] == puzzle.name]
    texts = [review.prose(puzzle.text), *puzzle.hints, puzzle.explain]
    assert list(unsourced(texts, listed)) == [], "put these into tests/facts, each with its source"


@pytest.mark.parametrize("figure", ["3 MiB", "820 GB/s", "2.5 µs", "1,024 KiB", "64 FLOPs"])
def test_a_figure_without_a_source_is_found(figure: str) -> None:
    text = f"# Blocks are small. A v5e has\n# {figure} of it. That is all, in 8 steps."
    sentence = f"A v5e has {figure} of it."
    assert list(unsourced([text], [])) == list(unsourced([text], ["Blocks are small."]))
    assert list(unsourced([text], [])) == [sentence]
    assert list(unsourced([text], [f"has {figure}"])) == []


# An annotation holds in every case


def misfits(case: Case, fn: Callable) -> list[str]:
    """Which arguments and results of a case are not what `fn` says of them."""
    notes = inspect.get_annotations(unwrap(fn), eval_str=True)
    found: list[str] = []

    @functools.wraps(fn)  # for the names of its settings
    def watched(*args: Any, **options: Any) -> Any:
        result = fn(*args, **options)
        given = inspect.signature(fn).bind(*args, **options).arguments
        with jaxtyped("context"):
            devices = {"D": math.prod(case.axes.values())} if case.axes else {}
            for name, size in (devices | case.dims).items():  # as long as the case says
                if type(size) is int and size >= 0:
                    isinstance(np.broadcast_to(np.float32(0), (size,)), Float[np.ndarray, name])
            pairs = [(name, given[name], note) for name, note in notes.items() if name in given]
            made = get_args(notes.get("return")) or (notes.get("return"),)
            leaves = result if isinstance(result, tuple) else (result,)
            pairs += [("the result", *pair) for pair in zip(leaves, made, strict=False)]
            for name, value, note in pairs:
                if isinstance(note, type) and issubclass(note, AbstractArray):
                    if not isinstance(value, note.dtype[Any, note.dim_str]):
                        found.append(f"{name} of {fn.__name__}: {note} ({case.label})")
        return result

    observed = case.judged(watched)  # may call it with other arguments than the case's
    (trace_call if case.puzzle.kernel else lambda f, *args: f(*args))(observed, *case.args)
    return found


@pytest.mark.newest
@pytest.mark.graduate
@pytest.mark.parametrize("puzzle", sample.share(PUZZLES, 8), ids=lambda puzzle: puzzle.name)
def test_annotations_hold_in_every_case(puzzle: Puzzle) -> None:
    judged = cases(puzzle)
    assert [bad for case in judged for bad in misfits(case, puzzle.solution)] == []
    if puzzle.accepts is None:
        assert [bad for case in judged for bad in misfits(case, puzzle.spec)] == []


def test_an_annotation_that_does_not_hold_is_found() -> None:
    def wrong(x: Float[Array, "N M"]) -> Float[Array, " M"]:
        return x

    (case, *_) = cases(puzzles.find("row_sum"))
    assert len(misfits(case, wrong)) == 2


def test_names_that_nobody_explains_or_has_met_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first, later = puzzles.find("add_ten"), puzzles.find("flash_attention")
    for text, found in (
        ("As in `no_such_rung`.", ["no_such_rung"]),
        ("As in `flash_attention`.", ["flash_attention"]),
        ("As in `flash_attention`, later.", []),
    ):
        assert list(unmet(dataclasses.replace(first, explain=text))) == found
    assert set(api_names("pl.CostEstimate(flops=1)")) == {"pl.CostEstimate", "flops"}
    assert puzzles.find("row_sum") in met(later)
    monkeypatch.setitem(globals(), "met", lambda _: iter(()))
    assert any("pl.program_id" in one for one in unexplained(later))
