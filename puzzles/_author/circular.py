"""Is what judges a solution made of it?"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from puzzles._judge import cases, unwrap
from puzzles._ladders import find, ladder_module, ladders
from puzzles._launch import kernel_calls, trace_call
from puzzles._puzzle import Puzzle


def circular(puzzle: Puzzle) -> Iterator[str]:
    """What judges the solution must not be made of it."""
    own = {*puzzle.blanks, puzzle.name}
    remedy = "write what is wanted in plain jax.numpy"
    for judge in filter(None, (puzzle.spec, puzzle.accepts)):
        place = puzzle.place(f"def {judge.__name__}(", author=judge is not puzzle.spec)
        made = (f.__name__ for f in _reached(judge) if f.__module__ == puzzle.module)
        if name := min(own.intersection(made), default=None):
            yield (
                f"{place}: `{judge.__name__}` reaches `{name}`, which the learner writes: nothing "
                f"independent is proven; {remedy}"
            )
        elif puzzle.kernel and puzzle.accepts is None:
            traced = trace_call(judge, *cases(puzzle)[0].args)
            if next(kernel_calls(traced.jaxpr.jaxpr), None):
                yield f"{place}: the spec launches a kernel itself: {remedy}"


def _reached(fn: Any) -> set[FunctionType]:
    """The ladders' functions that a function's code names, directly or through others."""
    found: set[FunctionType] = set()
    waiting = [unwrap(fn)]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, FunctionType) or one in found:
            continue
        if one is not fn and _foreign(one):
            continue
        found.add(one)
        codes = [one.__code__]
        while codes:
            code = codes.pop()
            codes += [c for c in code.co_consts if isinstance(c, CodeType)]
            waiting += [unwrap(one.__globals__.get(name)) for name in code.co_names]
            if "find" in code.co_names:
                waiting += [unwrap(s) for s in _found(code)]
        waiting += [unwrap(cell.cell_contents) for cell in one.__closure__ or ()]
    return found - {fn}


def _foreign(fn: FunctionType) -> bool:
    """True for JAX, NumPy and the engine: what no ladder defines."""
    homes = {ladder_module(name).__name__ for name in ladders()}
    return fn.__module__.rpartition(".")[0] not in homes


def _found(code: CodeType) -> Iterator[Any]:
    """The solutions of the rungs that a code asks `find` for."""
    for word in code.co_consts:
        if isinstance(word, str) and word.isidentifier():
            try:
                yield find(word).solution
            except LookupError:
                continue
