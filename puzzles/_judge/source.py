"""The learner's own text: is it a starter still, what does it name, and whose is a line?"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import jax

from puzzles import _regions
from puzzles._jax import Jitted
from puzzles._puzzle import Puzzle
from puzzles._rules import Finding, Where

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


def unjitted(fn: Callable) -> Callable:
    """`fn` without `jax.jit`, which would answer from a trace of its own, also under a partial.

    Every other wrapper stays: what runs is judged.
    """
    if isinstance(fn, functools.partial):
        inner = unjitted(fn.func)
        return fn if inner is fn.func else functools.partial(inner, *fn.args, **fn.keywords)
    return unjitted(getattr(fn, "__wrapped__", fn)) if isinstance(fn, Jitted) else fn


def with_names(fn: FunctionType, names: dict[str, Any]) -> FunctionType:
    """A copy of a function for which the names of its module stand for something else."""
    copy = FunctionType(fn.__code__, names, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def lines_of(fn: Any) -> list[str]:
    """The lines of a function, without blank ones and comments; none where they are not known."""
    try:
        lines = inspect.getsource(unwrap(fn)).splitlines()
    except (TypeError, OSError):
        return []
    return [line.rstrip() for line in lines if line.strip() and not line.strip().startswith("#")]


def filled_in(puzzle: Puzzle, fn: Callable) -> dict[str, Any]:
    """The learner's versions of the functions with a region, by name; None of one that is gone."""
    plain = unwrap(fn)
    scope = getattr(plain, "__globals__", {})
    return {n: plain if n == puzzle.name else unwrap(scope.get(n)) for n in puzzle.blanks}


def text_of(puzzle: Puzzle, fn: Callable) -> str:
    """The source of a function and of all that the learner has filled in; "" if it is not known."""
    own = (fn, *filled_in(puzzle, fn).values())
    return "\n".join(line for one in own for line in lines_of(one))


def learners_functions(puzzle: Puzzle, fn: Callable) -> dict[str, ast.FunctionDef]:
    """What the learner has filled in, by name, where its source is known."""
    nodes = {name: _parsed(one) for name, one in filled_in(puzzle, fn).items()}
    return {name: node for name, node in nodes.items() if node is not None}


@functools.lru_cache(maxsize=64)
def _parsed(fn: Any) -> ast.FunctionDef | None:
    """A function's definition, or None where its source is not known."""
    try:
        return _regions.parse_function(inspect.getsource(fn))
    except (TypeError, OSError):
        return None


def differentiates_itself(puzzle: Puzzle, fn: Callable) -> tuple[str, str] | None:
    """(backward rule, function) where a rule differentiates the function whose rule it is.

    JAX asks the rule again for that, without an end, and takes more memory each time.
    """
    written = learners_functions(puzzle, fn)
    for name, value in getattr(unwrap(fn), "__globals__", {}).items():
        rule = getattr(value, "bwd", None) if isinstance(value, jax.custom_vjp) else None
        node = written.get(getattr(rule, "__name__", ""))
        if node is not None and any(name in _ids(call) for call in _derivatives(node)):
            return node.name, name
    return None


def _derivatives(node: ast.FunctionDef) -> Iterator[ast.AST]:
    """What a function hands to `jax.grad` and its like, and inner functions that it names there."""
    own = {one.name: one for one in ast.walk(node) if isinstance(one, ast.FunctionDef)}
    for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in _DERIVATIVES:
            for given in call.args:
                yield given
                yield from (own[name] for name in _ids(given) & set(own))


def _ids(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def is_starter(puzzle: Puzzle, fn: Callable) -> str | None:
    """The name of a function that is as it was handed out, or None.

    A function is untouched if it holds only `...`; a bug to find is untouched if every function
    still equals the starter.
    """
    mine = learners_functions(puzzle, fn)
    for name, node in mine.items():
        if _regions.only_ellipsis(node):
            return name
    same = _as_handed_out(puzzle, mine)
    return same[0] if mine and len(same) == len(mine) else None


def _as_handed_out(puzzle: Puzzle, mine: dict[str, ast.FunctionDef]) -> list[str]:
    handed_out = _starter(puzzle)
    return [n for n, node in mine.items() if _regions.same_code(node, handed_out[n])]


@functools.cache
def _starter(puzzle: Puzzle) -> dict[str, ast.FunctionDef]:
    return _regions.functions(puzzle.starter_text)


@functools.cache
def handed_out(puzzle: Puzzle) -> frozenset[str]:
    """The lines of the functions that are handed out whole."""
    lines = [line.strip() for line in puzzle.starter_text.splitlines()]
    whole = [node for name, node in _starter(puzzle).items() if name not in puzzle.blanks]
    return frozenset(line for n in whole for line in lines[n.lineno - 1 : n.end_lineno])


def ellipsis_left(puzzle: Puzzle, fn: Callable) -> tuple[str, str] | None:
    """(function, line of code) where a `...` still stands for a value, or None."""
    for name, node in learners_functions(puzzle, fn).items():
        for place in _regions.ellipsis_values(node):
            line = place.lineno if hasattr(place, "lineno") else 1
            source, _ = inspect.getsourcelines(filled_in(puzzle, fn)[name])
            return name, source[line - 1].strip()
    return None


def untouched(puzzle: Puzzle, fn: Callable) -> Finding | None:
    """Nothing is written yet."""
    name = is_starter(puzzle, fn)
    return None if name is None else _as_found(puzzle, name)


def left_open(puzzle: Puzzle, fn: Callable) -> Finding | None:
    """A gap is left, though something is written."""
    if (left := ellipsis_left(puzzle, fn)) is not None:
        return Finding("ellipsis-left", Where(), {"name": left[0], "line": left[1]})
    if puzzle.starter is not None:
        return None
    same = _as_handed_out(puzzle, learners_functions(puzzle, fn))
    return _as_found(puzzle, same[0]) if same else None


def _as_found(puzzle: Puzzle, name: str) -> Finding:
    form = "" if puzzle.starter is None else "bug"
    return Finding("untouched", Where(), {"name": name, "puzzle": puzzle.name}, form)


def same_spec(puzzle: Puzzle, fn: Callable) -> bool:
    """False if the spec beside the learner's function differs from the puzzle's in its code."""
    theirs = getattr(unwrap(fn), "__globals__", {}).get(puzzle.spec.__name__)
    if theirs is None or theirs is puzzle.spec:
        return True
    mine, other = _parsed(theirs), _parsed(puzzle.spec)
    return mine is None or other is None or _regions.same_code(mine, other)


@functools.lru_cache(maxsize=256)
def author_wrote(filename: str, number: int) -> bool:
    """True for a line of an author cell: it calls the learner's function, and is not theirs."""
    lines = linecache.getlines(filename)[:number]
    return any(line.startswith("# %%") and '"author"' in line for line in lines)


@functools.cache
def is_learners(filename: str) -> bool:
    """True for a notebook cell or a learner's file, false for JAX, Python and this package."""
    if filename.startswith("<") and not filename.startswith("<ipython"):
        return filename.count(":") == 1 or filename == "<stdin>"
    path = os.path.abspath(filename)
    if os.path.commonpath([path, _PACKAGE]) == _PACKAGE:  # a ladder's modules are like a learner's
        ladder = os.path.dirname(os.path.relpath(path, _PACKAGE))
        return bool(ladder) and not ladder.startswith("_")
    return "site-packages" not in path and not path.startswith(_LIBRARIES)


def is_function(fn: object) -> bool:
    """True for what `check` can judge: a function, possibly jitted or a partial."""
    return callable(fn) and isinstance(unwrap(fn), FunctionType)
