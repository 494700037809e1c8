"""Is what the prose names there, and has what it states a source?"""

from __future__ import annotations

import contextlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles import _regions
from puzzles._author.review import climbed_before, prose
from puzzles._ladders import UnknownPuzzle, ladder_module, ladder_of
from puzzles._puzzle import Puzzle

_NAME = re.compile(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?:\(\))?`")
_LATER = re.compile(r"\b(at the end|at the top|later|next|on|soon|until)\b")
_NEAR = 40  # letters between a name and the word that says so
_FIGURE = re.compile(
    r"\d[\d.,]*[  ]?(?:[KMGT]i?B(?:/s)?|[MGTP]?FLOPs?(?:/s)?|[MG]Hz|[µnm]s)(?![\w/])"
)
_SENTENCE = re.compile(r"(?<=[.!?:])[\s*_)]+(?=[A-Z`*\[(])|(?<=\|)\s+")


def unknown_rungs(puzzle: Puzzle) -> Iterator[str]:
    """Names in the prose that look like a rung's, and are none that the reader has met."""
    met = [*_modules_before(puzzle)]
    known = _api() | {rung for _, rung in met} | _words(*(_code(*one) for one in met))
    known |= _words(*_facts(puzzle, "says"), *_facts(puzzle, "source"))
    pages = {prose(puzzle.text): "", **dict.fromkeys(puzzle.hints, "hints=")}
    for text, needle in {**pages, puzzle.explain: "explain="}.items():
        flat = _flat(_unquoted(text))
        for found in _NAME.finditer(flat):
            if (name := found[1]) in known:
                continue
            place = puzzle.place(needle or f"`{name}", author=bool(needle))
            try:
                where = ladder_of(name)
            except UnknownPuzzle:
                yield f"{place}: `{name}` is no rung and no name of the code: mend the name"
                continue
            around = flat[max(0, found.start() - _NEAR) : found.end() + _NEAR]
            if not _LATER.search(around):
                yield (
                    f"{place}: `{name}`, of {where}, is a rung that no reader has met here: name "
                    "an earlier one, or say that it comes later"
                )


def _words(*texts: str) -> set[str]:
    return {word for text in texts for word in re.findall(r"\w+", text)}


def _modules_before(puzzle: Puzzle) -> Iterator[tuple[str, str]]:
    """(ladder, rung) of all that a reader has met, this rung included."""
    for name in (*climbed_before(puzzle.ladder), puzzle.ladder):
        for rung in ladder_module(name).RUNGS:
            yield name, rung
            if rung == puzzle.name:
                return


@cache
def _code(ladder: str, rung: str) -> str:
    """What is no prose in a rung's cells."""
    path = Path(str(ladder_module(ladder).__file__)).with_name(f"{rung}.py")
    text = _regions.without_author(path.read_text(encoding="utf-8")) if path.exists() else ""
    cells = _regions.split_cells(text)
    return "\n".join(body for marker, body in cells if "[markdown]" not in marker)


@cache
def _api() -> set[str]:
    """Names that the setup cell brings, and what they hold."""
    holders = (jax, jnp, np, pl, pltpu, jax.lax, jax.nn, jax.random, jax.experimental)
    found = {name for holder in holders for name in dir(holder)}
    for value in (getattr(holder, name) for holder in (jnp, pl, pltpu) for name in dir(holder)):
        with contextlib.suppress(TypeError, ValueError):  # what has no signature
            found.update(inspect.signature(value).parameters)
    return found


# Figures and their sources


def unsourced(puzzle: Puzzle) -> Iterator[str]:
    """Sentences with a figure and a unit of which no fact on record has a part."""
    facts = [_flat(says) for says in _facts(puzzle, "says")]
    texts = {_unquoted(prose(puzzle.text)): False, puzzle.explain: True}
    texts |= dict.fromkeys(puzzle.hints, True)
    for text, author in texts.items():
        flat = _flat(text)
        spans = [m.span() for says in facts for m in re.finditer(re.escape(says), flat)]
        for first, last in _sentences(flat):
            figure = _FIGURE.search(flat, first, last)
            if figure and not any(a < last and first < b for a, b in spans):
                count = len(re.findall(re.escape(figure[0]), flat[: figure.end()]))
                yield (
                    f"{_nth(puzzle, figure[0], count, author)}: `{figure[0]}` has no source: put "
                    "the sentence and where it is from, or the test that shows it, into "
                    f"tests/facts/{puzzle.ladder}.toml"
                )


def _nth(puzzle: Puzzle, needle: str, count: int, author: bool) -> str:
    """`file:line` of the line that holds a text for the n-th time in the prose."""
    if author:
        return puzzle.place(needle)
    prosaic = False
    for number, line in enumerate(puzzle.text.splitlines(), 1):
        prosaic = "[markdown]" in line if line.startswith("# %%") else prosaic
        count -= prosaic * line.count(needle)
        if count <= 0:
            return f"{puzzle.file}:{number}"
    return puzzle.place(needle, author=False)


def _facts(puzzle: Puzzle, what: str) -> list[str]:
    """A field of each fact on record about a rung: what its page says, or the source."""
    folder = puzzle.path.parents[puzzle.module.count(".")] / "tests" / "facts"
    path = folder / f"{puzzle.ladder}.toml"
    listed = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return [
        fact[what]
        for fact in listed.get("fact", ())
        if fact.get("rung") == puzzle.name and fact.get(what)
    ]


def _unquoted(text: str) -> str:
    """Markdown as it stands in a module, without the comment's marks."""
    return re.sub(r"(?m)^# ?", "", text)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _sentences(flat: str) -> Iterator[tuple[int, int]]:
    """Where each sentence of a text without line breaks begins and ends."""
    ends = [m.start() for m in _SENTENCE.finditer(flat)]
    yield from zip([0, *ends], [*ends, len(flat)], strict=True)
