"""Do a rung's annotations hold? Shapes are types here, and each case is held against them."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import AbstractArray, Float, jaxtyped

from puzzles._judge import Case, cases, unwrap
from puzzles._launch import trace_call
from puzzles._puzzle import Puzzle


def annotation_problems(puzzle: Puzzle) -> Iterator[str]:
    """What the spec's and the solution's annotations say of a case and is not so; one for each."""
    judged = cases(puzzle)
    # Where answers are not compared with the spec's, it may be slow: one case is enough.
    specs = judged[:1] if puzzle.accepts else judged
    for fn, some in ((puzzle.spec, specs), (puzzle.solution, judged)):
        for case in some:
            if found := _misfits(case, fn):
                place = puzzle.place(f"def {fn.__name__}(", author=False)
                yield f"{place}: {found[0]} ({case.label}): mend the annotation"
                break


def _misfits(case: Case, fn: Callable) -> list[str]:
    """A case's arguments, and what `fn` makes of them, against what `fn` says of both."""
    found: list[str] = []

    def watched(*args: Any, **words: Any) -> Any:
        result = fn(*args, **words)
        found.extend(_compared(case, fn, result, *args, **words))
        return result

    given, puzzle = case.args, case.puzzle
    if puzzle.accepts is not None and fn is puzzle.spec:  # it may also get an answer
        if len(inspect.signature(fn).parameters) > len(given):
            given = (*given, puzzle.solution(*given))
    observed = case.judged(watched)  # may call it with other arguments than the case's
    if puzzle.kernel:
        trace_call(observed, *given)
    else:
        observed(*given)
    return found


def _compared(case: Case, fn: Callable, result: Any, *args: Any, **words: Any) -> Iterator[str]:
    notes = inspect.get_annotations(unwrap(fn), eval_str=True)
    with jaxtyped("context"):
        for name, size in case.dims.items():  # an axis is as long as the case says
            if type(size) is int and size >= 0:
                fits(np.broadcast_to(np.float32(0), (size,)), Float[np.ndarray, name])
        for name, value in inspect.signature(fn).bind(*args, **words).arguments.items():
            if name in notes and not fits(value, notes[name]):
                yield _says(f"`{name}` of `{fn.__name__}`", value, notes[name])
        if "return" in notes and not fits(result, notes["return"], made=True):
            yield _says(f"the result of `{fn.__name__}`", result, notes["return"])


def fits(value: Any, note: Any, made: bool = False) -> bool:
    """Whether a value is what its annotation says; what annotates no data always fits.

    made: of a result only the form counts, for NumPy's arrays and JAX's are judged alike.
    """
    if isinstance(note, type) and issubclass(note, AbstractArray):
        if made:
            note = note.dtype[Any, note.dim_str]
            value = value if hasattr(value, "shape") else np.asarray(value)
        return isinstance(value, note)
    kind, parts = typing.get_origin(note), typing.get_args(note)
    if kind in (typing.Union, types.UnionType):
        return any(fits(value, part, made) for part in parts)
    if kind is tuple:
        if parts[1:] == (...,):
            parts = parts[:1] * len(value)
        return (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(fits(*pair, made) for pair in zip(value, parts, strict=True))
        )
    if note is None:
        return value is None
    if note is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if note is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if kind is not None or note is Any or not isinstance(note, type):
        return True
    return isinstance(value, note)


def _says(who: str, value: Any, note: Any) -> str:
    shown = re.sub(r"\b(?:[a-z_]\w*\.)+", "", inspect.formatannotation(note))
    return f"{who} is annotated {shown}, and it is {_form(value)}"


def _form(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_form, value))})"
    if hasattr(value, "shape"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return f"a {type(value).__name__}"
