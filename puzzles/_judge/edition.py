"""Notebooks of earlier editions: a launch that they hand out may not be the one of today."""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puzzles import _regions
from puzzles._judge import source
from puzzles._puzzle import Puzzle, load

_EDITIONS = Path(__file__).with_name("editions.json")
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
}  # fmt: skip


def digest(text: str) -> str:
    """A fingerprint of code that layout, comments and Python's version leave alone."""
    tokens = tokenize.generate_tokens(io.StringIO(textwrap.dedent(text)).readline)
    words = "".join(token.string for token in tokens if token.type not in _LAYOUT)
    flat = "".join(words.split()).replace("{", "").replace("}", "")  # f-strings changed in 3.12
    return hashlib.sha256(flat.encode()).hexdigest()[:16]


def given(text: str) -> dict[str, str]:
    """The functions that a module hands out whole, by name: their text."""
    blanks = _regions.blanked_functions(text)
    lines = text.splitlines(keepends=True)
    return {
        name: "".join(lines[node.lineno - 1 : node.end_lineno])
        for name, node in _regions.functions(text).items()
        if name not in blanks
    }


def around(text: str) -> dict[str, list[str]]:
    """Of each function with a region: the digests of the lines that are handed out with it."""
    inside = [range(r.first, r.last + 1) for r in _regions.regions(text)]
    lines = text.splitlines()
    found = {}
    for name in _regions.blanked_functions(text):
        node = _regions.functions(text)[name]
        rows = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        kept = [lines[n - 1] for n in rows if not any(n in one for one in inside)]
        found[name] = sorted({_line(line) for line in kept if line.strip(" #)]")})
    return found


def _line(text: str) -> str:
    return hashlib.sha256("".join(text.split("#")[0].split()).encode()).hexdigest()[:8]


@functools.cache
def _editions() -> dict[str, dict[str, dict[str, dict]]]:
    """For each edition and rung: what `given` and `around` say of its text, as digests."""
    return json.loads(_EDITIONS.read_text(encoding="utf-8"))


def outdated(puzzle: Puzzle, fn: Callable) -> str | None:
    """What to say of a rejected answer in a gap around which an earlier edition had other code."""
    scope = getattr(source.unwrap(fn), "__globals__", {})
    today = around(puzzle.text)
    for edition, rungs in _editions().items():
        for name, lines in rungs.get(puzzle.name, {}).get("around", {}).items():
            gone = set(lines) - set(today.get(name, lines))
            text = _text(scope.get(name)) or ""
            if gone & {_line(line) for line in text.splitlines()}:
                return (
                    f"The code around your gap in `{name}` is that of edition {edition} and has "
                    "changed since: take the newest notebook."
                )
    return None


@functools.cache
def _today(puzzle: Puzzle) -> dict[str, str]:
    """The digest of each function that the puzzle hands out whole."""
    return {name: digest(text) for name, text in given(puzzle.text).items()}


def brought_up_to_date(puzzle: Puzzle, fn: Callable) -> tuple[Callable, str | None, frozenset[str]]:
    """`fn`, or the learner's part of it in the code that is handed out today; what to say; and
    those of `puzzle.newer` that `fn` does not take.

    Only where a function around it is word for word that of an earlier edition, and changed since.
    """
    scope = getattr(source.unwrap(fn), "__globals__", {})
    today = _today(puzzle)
    for edition, rungs in _editions().items():
        old = [
            name
            for name, was in rungs.get(puzzle.name, {}).get("given", {}).items()
            if name != puzzle.spec.__name__
            if today.get(name, was) != was
            if _digest_of(scope.get(name)) == was
        ]
        if not old:
            continue
        since = f"`{old[0]}` in your notebook is from edition {edition}"
        newer = _lacking(puzzle, scope)
        if newer:  # today's code would hand over what the learner's does not take
            names = " and ".join(f"`{name}`" for name in sorted(newer))
            return (
                fn,
                f"{since}, which had no {names}: it was judged as it is, and cases with {names} "
                "were left out. The newest notebook has them.",
                newer,
            )
        namespace = load(puzzle, puzzle.text, "edition")
        namespace |= {name: scope[name] for name in puzzle.blanks if name in scope}
        return (
            namespace[puzzle.name],
            f"{since} and has changed since: what you wrote was judged in today's. The newest "
            "notebook has it.",
            frozenset(),
        )
    return fn, None, frozenset()


def _lacking(puzzle: Puzzle, scope: dict[str, Any]) -> frozenset[str]:
    """Those of `puzzle.newer` that no function of the learner takes."""
    functions = [source.unwrap(scope[name]) for name in puzzle.blanks if callable(scope.get(name))]
    taken = {name for one in functions for name in inspect.signature(one).parameters}
    return frozenset(puzzle.newer) - taken


def _digest_of(function: Any) -> str | None:
    text = _text(function)
    try:
        return None if text is None else digest(text)
    except (tokenize.TokenError, SyntaxError):
        return None


def _text(function: Any) -> str | None:
    try:
        return inspect.getsource(source.unwrap(function))
    except (TypeError, OSError):
        return None
