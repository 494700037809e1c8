"""The source of an answer: gaps that are left, names that it uses, and owners of lines."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from types import FunctionType
from typing import Any

import jax

from puzzles import _regions
from puzzles._jax import unjitted
from puzzles._puzzle import Puzzle

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DERIVATIVES = {"grad", "value_and_grad", "vjp", "linearize", "jacrev", "hessian"}
_LIBRARIES = tuple(os.path.dirname(os.path.abspath(str(m.__file__))) for m in (jax, os))


def unwrap(fn: Any) -> Any:
    """The plain function inside `jax.jit` wrappers and `functools.partial`s."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            return fn


def lines_of(fn: Any) -> list[str]:
    """The lines of a function, without blank lines and comments; [] if they are not known."""
    try:
        lines = inspect.getsource(unwrap(fn)).splitlines()
    except (TypeError, OSError):
        return []
    return [line.rstrip() for line in lines if line.strip() and not line.strip().startswith("#")]


class Code:
    """The learner's code for a puzzle, read once.

    runs: the function without `jax.jit` around it. function: `runs` if it is a plain function;
    else None. names: the globals of its module. written: the functions with gaps, by name, or None
    if one is missing. text: the source of these functions; "" if it is not known.
    """

    def __init__(self, puzzle: Puzzle, fn: Callable) -> None:
        plain = unwrap(fn)
        self.puzzle, self.runs = puzzle, unjitted(fn)
        self.function = self.runs if isinstance(self.runs, FunctionType) else None
        self.names: dict[str, Any] = getattr(plain, "__globals__", {})
        self.written = {n: unwrap(self.names.get(n)) for n in puzzle.blanks}
        if puzzle.name in self.written:
            self.written[puzzle.name] = plain
        own = (plain, *self.written.values())
        self.text = "\n".join(line for fn in own for line in lines_of(fn))

    @cached_property
    def trees(self) -> dict[str, ast.FunctionDef]:
        """The parsed functions of `written` whose source is known, by name."""
        trees = {name: _parsed(fn) for name, fn in self.written.items()}
        return {name: tree for name, tree in trees.items() if tree is not None}

    def with_names(self, names: dict[str, Any]) -> FunctionType:
        """A copy of `function` with other globals, in which the answer's functions are copied, too.

        names: changed in place: a helper that a kernel calls is also found in the kernel's globals.
        """
        assert self.function is not None
        for name, value in names.items():
            if isinstance(value, FunctionType) and value.__globals__ is self.names:
                names[name] = _copy(value, names)
        return _copy(self.function, names)

    @property
    def starter(self) -> str | None:
        """The name of an unchanged function, or None.

        A function is unchanged if it holds only `...`; a bug to find is unchanged if every
        function still equals the starter.
        """
        for name, tree in self.trees.items():
            if _regions.only_ellipsis(tree):
                return name
        same = self.as_handed_out()
        return same[0] if same and len(same) == len(self.trees) else None

    @property
    def gap(self) -> tuple[str, str] | None:
        """(function, line of code) of a `...` that is left as a value, or None."""
        for name, tree in self.trees.items():
            for place in _regions.ellipsis_values(tree):
                line = place.lineno if hasattr(place, "lineno") else 1
                source, _ = inspect.getsourcelines(self.written[name])
                return name, source[line - 1].strip()
        return None

    def rule_of_itself(self) -> tuple[str, str] | None:
        """(rule, function) if a derivative rule differentiates its own function, or None."""
        for name, value in self.names.items():
            rule = getattr(value, "bwd", None) if isinstance(value, jax.custom_vjp) else None
            tree = self.trees.get(getattr(rule, "__name__", ""))
            if tree is not None and any(name in _ids(call) for call in _derivatives(tree)):
                return tree.name, name
        return None

    @property
    def same_spec(self) -> bool:
        """False if the spec in the learner's module differs in code from the puzzle's."""
        theirs = self.names.get(self.puzzle.spec.__name__)
        if theirs is None or theirs is self.puzzle.spec:
            return True
        a, b = _parsed(theirs), _parsed(self.puzzle.spec)
        return a is None or b is None or _regions.same_code(a, b)

    def as_handed_out(self) -> list[str]:
        """The names of the functions that still equal the starter's."""
        handed_out = _starter(self.puzzle)
        return [n for n, tree in self.trees.items() if _regions.same_code(tree, handed_out[n])]


def _copy(fn: FunctionType, names: dict[str, Any]) -> FunctionType:
    copy = FunctionType(fn.__code__, names, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


@functools.lru_cache(maxsize=64)
def _parsed(fn: Any) -> ast.FunctionDef | None:
    """A function's definition, or None if its source is not known."""
    try:
        return _regions.parse_function(inspect.getsource(fn))
    except (TypeError, OSError):
        return None


def _derivatives(node: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the arguments of calls such as `jax.grad`, and inner functions that they name."""
    own = {inner.name: inner for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef)}
    for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in _DERIVATIVES:
            for argument in call.args:
                yield argument
                yield from (own[name] for name in _ids(argument) & set(own))


def _ids(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


@functools.cache
def _starter(puzzle: Puzzle) -> dict[str, ast.FunctionDef]:
    return _regions.functions(puzzle.starter_text)


@functools.cache
def handed_out(puzzle: Puzzle) -> frozenset[str]:
    """The lines of the functions without gaps."""
    lines = [line.strip() for line in puzzle.starter_text.splitlines()]
    whole = [node for name, node in _starter(puzzle).items() if name not in puzzle.blanks]
    return frozenset(line for n in whole for line in lines[n.lineno - 1 : n.end_lineno])


def given(puzzle: Puzzle) -> frozenset[str]:
    """The names of the kernels and helpers without gaps."""
    return frozenset({*_starter(puzzle)} - {*puzzle.blanks, puzzle.name, puzzle.spec.__name__})


@functools.lru_cache(maxsize=256)
def author_wrote(filename: str, number: int) -> bool:
    """True for a line of an author cell, which may call the learner's function."""
    lines = linecache.getlines(filename)[:number]
    return any(line.startswith("# %%") and '"author"' in line for line in lines)


@functools.cache
def is_learners(filename: str) -> bool:
    """True for a notebook cell or a learner's file; False for JAX, Python and the engine."""
    if filename.startswith("<") and not filename.startswith("<ipython"):
        return filename.count(":") == 1 or filename == "<stdin>"
    path = os.path.abspath(filename)
    if os.path.commonpath([path, _PACKAGE]) == _PACKAGE:  # a ladder's modules count as a learner's
        ladder = os.path.dirname(os.path.relpath(path, _PACKAGE))
        return bool(ladder) and not ladder.startswith("_")
    return "site-packages" not in path and not path.startswith(_LIBRARIES)


def is_function(fn: object) -> bool:
    """True for objects that `check` can judge: a function, possibly jitted or a partial."""
    return callable(fn) and isinstance(unwrap(fn), FunctionType)
