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


@functools.cache
def _editions() -> dict[str, dict[str, dict[str, str]]]:
    """For each edition, rung and function that it hands out: the digest."""
    return json.loads(_EDITIONS.read_text(encoding="utf-8"))


def brought_up_to_date(puzzle: Puzzle, fn: Callable) -> tuple[Callable, str | None]:
    """`fn`, or the learner's part of it in the code that is handed out today; and what to say.

    Only where a function around it is word for word that of an earlier edition, and changed since.
    """
    scope = getattr(source.unwrap(fn), "__globals__", {})
    today = given(puzzle.text)
    for edition, rungs in _editions().items():
        old = [
            name
            for name, was in rungs.get(puzzle.name, {}).items()
            if name != puzzle.spec.__name__
            if name in today and digest(today[name]) != was
            if _digest_of(scope.get(name)) == was
        ]
        if old:
            namespace = load(puzzle, puzzle.text, "edition")
            namespace |= {name: scope[name] for name in puzzle.blanks if name in scope}
            return namespace[puzzle.name], (
                f"`{old[0]}` in your notebook is from edition {edition} and has changed since: "
                "what you wrote was judged in today's. The newest notebook has it."
            )
    return fn, None


def _digest_of(function: Any) -> str | None:
    try:
        return digest(inspect.getsource(source.unwrap(function)))
    except (TypeError, OSError, tokenize.TokenError, SyntaxError):
        return None
