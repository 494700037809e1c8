"""Every fact that the prose states has a source: tests/facts/*.toml has the sentence and where.

A source is one that can be opened, a test, or what `holds`: an expression of Python that is true.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from launched import mistaken, reference, wire_of

import puzzles
from puzzles import _ladders
from puzzles._compile import CHIPS, LINK_BYTES
from puzzles._receipt import receipt_text
from puzzles.collectives._costs import WAYS, way
from puzzles.splash_attention import splash_multi_head
from puzzles.splash_attention._costs import banded_tiles

ROOT = Path(__file__).parents[2]
LISTS = sorted((ROOT / "tests" / "facts").glob("*.toml"))
Fact = dict[str, str]
S = jax.ShapeDtypeStruct


def arrays(dtype: type) -> Callable:
    """A function that makes an array's form of its sizes."""
    return lambda *shape: S(shape, dtype)


# The names that an expression may use.
NAMES = {
    "arguments": lambda name, case: puzzles.find(name).arguments(case),
    "bf16": arrays(jnp.bfloat16),
    "f32": arrays(jnp.float32),
    "i32": arrays(jnp.int32),
    "solution": lambda name: puzzles.find(name).solution,
    "trace": puzzles.trace,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    **{one.__name__: one for one in (banded_tiles, inspect, jax, receipt_text, reference)},
    **dict(wire_of=wire_of, way=way, WAYS=WAYS, LINK_BYTES=LINK_BYTES),
    "mistaken": mistaken,
    **dict(np=np, jnp=jnp, S=S, CHIPS=CHIPS, splash_multi_head=splash_multi_head),
}


def facts(path: Path) -> list[Fact]:
    return tomllib.loads(path.read_text(encoding="utf-8"))["fact"]


@cache
def page(name: str) -> str:
    """All that a learner reads in a puzzle: prose, comments, hints, verdicts, its part's intro."""
    puzzle = puzzles.find(name)
    ladder = _ladders.ladder_module(puzzle.ladder)
    texts = [
        ladder.INTRO if ladder.PUZZLES[0] == name else "",
        getattr(ladder, "PARTS", {}).get(name, ""),
        *(line.partition("#")[2] for line in puzzle.text.splitlines()),
        *puzzle.hints,
        puzzle.explain,
        *(mistake.says for mistake in puzzle.mistakes),
    ]
    return " ".join(" ".join(texts).split())


@cache
def functions(path: str) -> frozenset[str]:
    """The test functions of a file, or none if it is not there."""
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")
    names = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


SOURCES = {"source", "test", "holds"}


def problems(listed: list[Fact]) -> Iterator[str]:
    """The faults of a list of facts, each with its remedy."""
    for fact in listed:
        yield from problems_of(fact)
    yield from repeated(listed)


def repeated(listed: list[Fact]) -> Iterator[str]:
    twice = Counter((fact.get("puzzle"), fact.get("says")) for fact in listed)
    for (name, says), times in twice.items():
        if times > 1:
            yield f"{name}: {says!r} is listed {times} times: keep the one with the best source"


def problems_of(fact: Fact) -> Iterator[str]:
    name, says = fact.get("puzzle", ""), fact.get("says", "")
    if unknown := set(fact) - {"puzzle", "says", *SOURCES}:
        yield (
            f"{name}: {says!r} has {', '.join(sorted(unknown))}: a fact has a puzzle, "
            "what it says, and one of source, test, holds"
        )
    try:
        stands = bool(says) and says in page(name)
    except puzzles.UnknownPuzzleError as error:
        yield f"{says!r}: {error}: name the puzzle on whose page the sentence stands"
    else:
        if not stands:
            yield (
                f"{name}: its page does not say {says!r}: mend the sentence in the list, or look "
                "for its source again"
            )
    source, test = fact.get("source"), fact.get("test")
    if len(fact.keys() & SOURCES) != 1:
        yield f"{name}: {says!r} must have one of source, test, holds"
    if source is not None and "https://" not in source and ".py" not in source:
        yield (
            f"{name}: {source!r} is no source that can be opened: give a URL, or a file of JAX "
            "with the name of the function"
        )
    if test is not None:
        path, _, name = test.partition("::")
        if name not in functions(path):
            yield f"{name}: there is no test {test!r}: name the function that shows {says!r} now"


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_fact_stands_on_its_page_and_has_its_source(path: Path) -> None:
    assert list(problems(facts(path))) == []


@pytest.mark.parametrize(
    "fact",
    [fact for path in LISTS for fact in facts(path) if "holds" in fact],
    ids=lambda fact: fact["puzzle"],
)
def test_what_a_page_states_holds(fact: Fact) -> None:
    assert eval(fact["holds"], NAMES), fact["holds"]


def test_no_fact_is_listed_in_two_files() -> None:
    assert list(repeated([fact for path in LISTS for fact in facts(path)])) == []


def test_every_puzzle_of_a_listed_ladder_has_a_fact() -> None:
    named = {fact["puzzle"] for path in LISTS for fact in facts(path)}
    without = [
        puzzle.name
        for ladder in {puzzles.find(name).ladder for name in named}
        for puzzle in puzzles.ladder(ladder)
        if puzzle.name not in named
    ]
    assert without == [], "list what these puzzles state in tests/facts, each with its source"


TRUE: Fact = {
    "puzzle": "add_ten",
    "says": "A **kernel** takes **Refs** and returns nothing.",
    "source": "https://docs.jax.dev/en/latest/pallas/quickstart.html",
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"says": "A kernel returns an array."}, "mend the sentence in the list"),
        ({"puzzle": "add_nine"}, "name the puzzle on whose page"),
        ({"source": "everybody knows"}, "give a URL, or a file of JAX"),
        ({"test": "tests/facts/test_sources.py::test_a_fact_is_listed_once"}, "must have one of"),
        ({"source": None}, "must have one of"),
        ({"source": None, "test": "tests/facts/test_sources.py::test_nothing"}, "there is no test"),
        ({"source": None, "test": "tests/test_none.py::test_nothing"}, "there is no test"),
        ({"note": "?"}, "has note"),
    ],
)
def test_a_fact_that_does_not_hold_is_named_with_its_remedy(
    change: dict[str, str | None], says: str
) -> None:
    fact = {key: value for key, value in {**TRUE, **change}.items() if value is not None}
    (problem,) = problems([fact])
    assert says in problem


def test_a_fact_is_listed_once() -> None:
    assert LISTS
    assert list(problems([TRUE])) == []
    (problem,) = problems([TRUE, TRUE])
    assert "is listed 2 times" in problem
