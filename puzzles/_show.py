"""What a learner calls to see a launch: show. Only this prints here."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from puzzles._check import described, display, find_for, say
from puzzles._draw import walk_data, walk_page, walk_text
from puzzles._judge import ellipsis_left, is_function, told, unwrap
from puzzles._ladders import UnknownPuzzle
from puzzles._launch import Abstract, Launch, trace
from puzzles._puzzle import Puzzle


class _Sentence(Exception):
    """There is nothing to draw; the text says why and what to do."""


def show(fn: Callable, *args: object) -> None:
    """Draw what every grid step of `fn(*args)` reads and writes, and what is fetched and reused.

    Without arguments, a puzzle's function is drawn on the puzzle's first case. Shapes will do:
    `jax.ShapeDtypeStruct(shape, dtype)`. No kernel runs.
    """
    try:
        walks = [walk_data(launch) for launch in _seen(fn, args)]
        text, page = "\n\n".join(map(walk_text, walks)), walk_page(walks)
    except (_Sentence, Abstract) as sentence:
        return say(str(sentence))
    except KeyboardInterrupt:
        return say("interrupted: nothing was drawn; run the cell again.")
    except Exception:
        return say(
            "drawing this failed. That is our bug, not yours: please report it with this:\n"
            + traceback.format_exc()
        )
    display(text, page)


def _seen(fn: Any, args: tuple) -> list[Launch]:
    """The launches of a learner's function; _Sentence or Abstract where there are none."""
    if not is_function(fn):
        raise _Sentence(
            f"this needs a function that launches a kernel, and got {described(fn)}: pass the "
            "function itself, as in show(add_ten), not its name or the result of calling it"
        )
    try:
        puzzle = find_for(fn)
    except UnknownPuzzle as error:
        puzzle = None
        if not args and (_needs_arguments(fn) or "is a kernel" in str(error)):
            raise _Sentence(_ask_for_arguments(fn, str(error))) from None
    if puzzle is not None and not args:
        args = puzzle.arguments(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = _launches(puzzle, fn, args)
    except (Abstract, _Sentence):
        raise
    except Exception as error:
        left = ellipsis_left(puzzle, fn) if puzzle is not None else None
        if left:
            raise _Sentence(
                f"`{left[0]}` still holds a `...` where code belongs: there is a launch to draw "
                "once it is filled in."
            ) from None
        raise _Sentence(told(error)) from None
    if not seen:
        raise _Sentence("no `pallas_call` in there: there is nothing to draw")
    return seen


def _launches(puzzle: Puzzle | None, fn: Callable, args: tuple) -> list[Launch]:
    if puzzle is not None and puzzle.launches is not None:  # its answer configures a launch
        answer = fn(*args)
        if puzzle.accepts is not None:
            try:
                puzzle.accepts(answer, *args)
            except AssertionError as error:
                raise _Sentence(str(error)) from None
        return list(puzzle.launches(answer, *args))
    return list(trace(fn, *args))


def _needs_arguments(fn: Callable) -> bool:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return False
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in named and p.default is p.empty for p in parameters)


def _ask_for_arguments(fn: Callable, why: str) -> str:
    if "is a kernel" in why:
        return why
    name = unwrap(fn).__name__
    near = f"{why} " if "did you mean" in why else ""
    call = f"show({'fn' if name == '<lambda>' else name}, x, ...)"
    return f"{near}To draw a function that is no puzzle, pass its arguments: {call}"
