"""The right versions of a function that are most like the learner's, with its variable names."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

from puzzles import _regions
from puzzles._judge.explain.written import statements
from puzzles._puzzle import Puzzle

_PARTNERS = 3  # right answers to exchange code with
ALIKE = 0.5  # similarity of lines with variables of equal use


def partners_of(puzzle: Puzzle, name: str, own: list[str]) -> list[list[str]]:
    """The lines of the right versions of function `name` that are most like `own`."""
    versions = [_with_names_of(own, list(other)) for other in _right_versions(puzzle, name)]
    return sorted(versions, key=lambda lines: -likeness(own, lines))[:_PARTNERS]


@lru_cache(maxsize=64)
def _right_versions(puzzle: Puzzle, name: str) -> tuple[tuple[str, ...], ...]:
    """The lines of a function in the solution, and in alternatives that differ only there."""
    usual = _lines_of_functions(puzzle.text)
    others = []
    for other in puzzle.alternatives:
        with suppress(_regions.RegionError, SyntaxError):  # `verify` reports it
            others.append(_lines_of_functions(other.apply(puzzle.text)))
    alone = [lines for lines in others if {**lines, name: None} == {**usual, name: None}]
    return tuple(dict.fromkeys(lines[name] for lines in (usual, *alone) if name in lines))


def _lines_of_functions(text: str) -> dict[str, tuple[str, ...]]:
    return {n: tuple(statements(tree)) for n, tree in _regions.functions(text).items()}


def _with_names_of(own: list[str], other: list[str]) -> list[str]:
    """`other`, its variables named as those of `own` that are on the most similar lines.

    Only variables of lines that differ get other names, and only on these lines.
    """
    ours = [line for line in own if line not in other]
    theirs = [line for line in other if line not in own]
    old, new = _bound(theirs), _bound(ours)
    old_lines, new_lines = _contexts(theirs, old - new), _contexts(ours, new - old)
    pairs = [
        (sum(max(likeness(a, b) for b in there) for a in here) / len(here), name, own_name)
        for name, there in old_lines.items()
        for own_name, here in new_lines.items()
    ]
    names: dict[str, str] = {}
    for score, name, own_name in sorted(pairs, reverse=True):
        if score > ALIKE and name not in names and own_name not in names.values():
            names[name] = own_name

    def renamed(line: str) -> str:
        return re.sub(r"(?<!\.)\b[a-zA-Z]\w*", lambda word: names.get(word[0], word[0]), line)

    return [renamed(line) if line in theirs else line for line in other]


def _bound(lines: list[str]) -> set[str]:
    """The names that lines bind: variables, parameters and inner functions."""
    names: set[str] = set()
    for line in map(str.strip, lines):
        with suppress(SyntaxError):  # `else:`, or a decorator
            for node in ast.walk(ast.parse(f"{line} pass" if line.endswith(":") else line)):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.id)
                elif isinstance(node, ast.arg | ast.FunctionDef):
                    names.add(node.arg if isinstance(node, ast.arg) else node.name)
    return names - {"_"}


def _contexts(lines: list[str], names: set[str]) -> dict[str, list[list[str]]]:
    """The lines with each name, as tokens: that name is `@` in them, and the other names `_`."""
    contexts: dict[str, list[list[str]]] = {}
    for tokens in map(tokens_of, lines):
        for name in names.intersection(tokens):
            masked = ["@" if t == name else "_" if t in names else t for t in tokens]
            contexts.setdefault(name, []).append(masked)
    return contexts


def tokens_of(code: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", code)


def likeness(one: Sequence[str], other: Sequence[str]) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
