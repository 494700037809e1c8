"""Isolation from the learner's code, and messages for the exceptions that it raises."""

from __future__ import annotations

import difflib
import linecache
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import Any

import jax
import numpy as np

from puzzles._equations import argument_at_fault, call_at_fault
from puzzles._judge.source import author_wrote, is_learners, lines_of, unwrap
from puzzles._program import LoopLimitError, UnreadableError
from puzzles._rules import Breach, rows, sentence


class RejectedError(Exception):
    """The learner's code has a fault; carries the finding to `judge`."""

    def __init__(self, finding: Breach) -> None:
        super().__init__(finding.rule)
        self.finding = finding


@contextmanager
def learners_code(label: str, given: frozenset[str] = frozenset()) -> Iterator[None]:
    """Context manager: undo changes of JAX's settings by the learner's code.

    An exception in it becomes a `RejectedError` on the case called `label`. given: the names of the
    functions that are not the learner's work.
    """
    before = dict(jax.config.values)
    try:
        with np.errstate():
            # `meanwhile` looks for JAX's own functions in tracebacks.
            jax.config.update("jax_traceback_filtering", "off")
            yield
    except UnreadableError as error:
        raise RejectedError(Breach("unreadable", {"says": str(error)}, label)) from None
    except Exception as error:
        raise RejectedError(raised(error, label, given)) from None
    finally:
        after = jax.config.values  # a new dict at each access
        for name in [name for name, value in before.items() if after.get(name) is not value]:
            jax.config.update(name, before[name])


def raised(error: Exception, label: str, given: frozenset[str] = frozenset()) -> Breach:
    """The finding for an exception of the learner's code."""
    return Breach("raises", {"says": message_of(error, given)}, label)


def message_of(error: Exception, given: frozenset[str] = frozenset(), lines: int = 1) -> str:
    """The message for an exception: the learner's line, the gist, and the remedy if known.

    given: as in `learners_code`. lines: the most lines of the exception's own message that the
    gist has.
    """
    if isinstance(error, LoopLimitError):
        return str(error)
    inner = _of_an_inner_function(error)
    gist = first_sentence(error, lines) + ("" if inner else meant(error))
    where = learners_line(error)
    place, line = where or ("", "")
    whose = f"`{line}` in `{place}`" if line else f"`{place}`"  # no file has typed lines
    for how, by in (("called", _caller(error)), ("launched", launch_of(error))):
        whose = f"{whose.rstrip(',')}, {how} by `{by}`," if by else whose
    says = f"{whose} raises\n{gist}" if where else gist
    advice = inner or remedy(f"{type(error).__name__}: {error}", line, meanwhile(error))
    arguments, by_learner = _given_away(error, given)
    advice = None if by_learner else advice
    return "\n".join(filter(None, (says, advice, arguments or _met(error), _of_the_call(error))))


def _caller(error: BaseException) -> str:
    """The learner's line that calls the learner's function that raised; "" if JAX calls it."""
    own = _own_frames(error)[-2:]
    return _line(*own[0]) if len(own) == 2 and own[1][0].f_back is own[0][0] else ""


def _met(error: Exception) -> str:
    """The names in the learner's line that have the shapes of a failed broadcast, with them."""
    if "ncompatible shapes for broadcasting" not in str(error):
        return ""
    (_, line), names = learners_line(error) or ("", ""), _names(error)
    forms = []
    for shape in dict.fromkeys(re.findall(r"\(\d+,(?: \d+,?)*\)", str(error))):
        own = (n for n in dict.fromkeys(re.findall(r"\w+", line)) if n in names)
        if alike := [f"`{n}`" for n in own if str(getattr(names[n], "shape", "")) == shape]:
            forms.append(f"{' and '.join(alike)} {shape}")
    return sentence("shapes_met", forms=", ".join(forms)) if forms else ""


def _given_away(error: Exception, given: frozenset[str]) -> tuple[str, bool]:
    """(arguments of the given function that raised, True if the learner calls it); or ("", False).

    JAX calls a given kernel; remedies for its exceptions are about the launch.
    """
    frames = [frame for frame, _ in _own_frames(error)]
    outer = [frame for frame in frames if frame.f_code.co_qualname in given]
    raised_there = (
        outer and frames[-1].f_code.co_qualname.partition(".")[0] == outer[-1].f_code.co_name
    )
    if not raised_there or not isinstance(error, TypeError | ValueError):
        return "", False
    code, values, caller = outer[-1].f_code, outer[-1].f_locals, outer[-1].f_back
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    by_dtype = "dtype" in str(error)
    forms = ((name, _form(values[name], by_dtype)) for name in names)
    arguments = ", ".join(f"`{name}` {form}" for name, form in forms if form)
    by_learner = caller in frames and caller not in outer
    return sentence("given_gets", name=code.co_name, args=arguments), by_learner


def _form(value: Any, by_dtype: bool) -> str:
    """The shape of an array or a Ref, with its dtype if `by_dtype`, or a number; else ""."""
    shape = getattr(value, "shape", ())
    if not shape:
        return str(value) if isinstance(value, int) else ""
    return f"{value.dtype}{[*shape]}" if by_dtype else str(shape)


def _of_the_call(error: Exception) -> str:
    """Advice from the call: prefetched Refs, a faulty index map, arrays without a spec."""
    index_map, prefetched = call_at_fault(error)
    last = [frame for frame, _ in walk_tb(error.__traceback__)][-1:]
    by_jax = any(not is_learners(frame.f_code.co_filename) for frame in last)
    if "positional argument" in str(error) and by_jax:
        line = first_line(index_map)
        which = sentence("index_map_in", line=line) if line else ""
        also = sentence("prefetched_first") if prefetched else ""
        return " ".join(filter(None, (which, also)))
    met = re.search(r"as the array shape (\(.*?\))", str(error))
    if prefetched and met:
        own = _own_frames(error)[-1][0].f_locals.items()
        names = [f"`{name}`" for name, x in own if str(getattr(x, "shape", "")) == met[1]]
        return sentence("prefetched_are_first", names=" or ".join(names) or met[1])
    if prefetched is not None and "Pytree for `in_specs`" in str(error):
        several = f"{prefetched} arrays of the call have"
        first = several if prefetched != 1 else "array of the call has"
        return sentence("prefetched_without_a_spec", prefetched=prefetched, first=first)
    return ""


def remedy(gist: str, line: str = "", meanwhile: str = "in a kernel") -> str | None:
    """The remedy for an exception, given "Type: message" and the learner's line; or None."""
    for row, match in rows("exceptions", f"{gist}\n{line}\n{meanwhile}"):
        return row.says.format(*match.groups())
    return None


def learners_line(error: BaseException) -> tuple[str, str] | None:
    """(function, line of code) of the learner's innermost frame in `error`'s traceback, or None."""
    if not (own := _own_frames(error)):
        return None
    frame, number = own[-1]
    # Before Python 3.12 a comprehension has a frame of its own.
    name = re.sub(r"(\.<locals>\.<\w+(comp|expr)>)+$", "", frame.f_code.co_qualname)
    return name.rpartition(".")[2], _line(frame, number)


def _line(frame: FrameType, number: int) -> str:
    return linecache.getline(frame.f_code.co_filename, number).strip()


def launch_of(error: BaseException) -> str:
    """The line of the launch whose kernel raised, if a function has several launches; else "".

    It names a result: `da = pl.pallas_call(`.
    """
    if not meanwhile(error).startswith("in a kernel"):
        return ""
    lines = [
        _line(frame, number)
        for frame, number in _own_frames(error)
        if sum("pallas_call(" in line for line in lines_of(frame.f_code)) > 1
    ]
    named = [line for line in lines if re.match(r"\w+(, \w+)* = .*pallas_call\(", line)]
    return named[-1] if named else ""


def meanwhile(error: BaseException) -> str:
    """JAX's activity when `error` was raised, as `words.toml` calls it; "" if unknown."""
    if odd := argument_at_fault(error):
        return f"in a kernel with {odd}"
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    places = {(os.path.basename(code.co_filename), code.co_name) for code in codes}
    calls = [name for file, name in places if file == "pallas_call.py"]
    if any("jvp" in name for name in calls):
        return "in a derivative"
    if not calls:
        return "in a backward rule" if ("custom_derivatives.py", "_flatten_bwd") in places else ""
    specs = {c.co_name for c in codes if re.search(r"pallas.core\.py$", c.co_filename)}
    if specs & {"to_block_mapping", "__call__"}:
        return "in a kernel's index map"
    (_, line), names = learners_line(error) or ("", ""), _names(error)
    far = [n for n in re.findall(r"(\w+)\[", line) if re.search("<(any|hbm)>", str(names.get(n)))]
    return f"in a kernel with {far[0]} in HBM" if far else "in a kernel"


def first_line(function: Any) -> str:
    """The learner's line that begins a function; "" if it is not the learner's."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None or not is_learners(code.co_filename):
        return ""
    return linecache.getline(code.co_filename, code.co_firstlineno).strip()


def meant(error: BaseException) -> str:
    """A suggestion for a misspelt name, from the names in the learner's frame or in a module.

    "" for single letters, which match too much. Names such as `_` and `In` are IPython's.
    """
    module, name = getattr(error, "obj", None), getattr(error, "name", None) or ""
    names = dir(module) if isinstance(module, ModuleType) else []
    names = [*_names(error)] if isinstance(error, NameError) else names
    usual = {candidate for candidate in names if not candidate.startswith("_")} - {"In", "Out"}
    close = difflib.get_close_matches(name, usual, 1) if len(name) > 1 else []
    return f". Did you mean `{close[0]}`?" if close else ""


def _of_an_inner_function(error: BaseException) -> str:
    """Advice for a missing name that is a variable of a function in the learner's; else ""."""
    name = error.name if isinstance(error, NameError) else None
    for frame, _ in reversed(_own_frames(error)) if name else ():
        for code in frame.f_code.co_consts:
            names = getattr(code, "co_varnames", ()) + getattr(code, "co_cellvars", ())
            if name in names and code.co_name.isidentifier():  # not of a lambda
                return sentence("variable_of_another", name=name, function=code.co_name)
    return ""


def _names(error: BaseException) -> dict[str, Any]:
    """The variables in the learner's innermost frame, by name."""
    own = _own_frames(error)
    return own[-1][0].f_globals | own[-1][0].f_locals if own else {}


def _own_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """The learner's frames of a traceback, the innermost last, and the numbers of their lines."""
    return [
        (frame, number)
        for frame, number in walk_tb(error.__traceback__)
        if is_learners(frame.f_code.co_filename)
        and not author_wrote(frame.f_code.co_filename, number)
    ]


def first_sentence(error: BaseException, lines: int = 1) -> str:
    """The gist of an exception: its type and the first lines of its message.

    With more than one line it also has the exception that a `raise ... from` names.
    """
    texts = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    more, cause = texts[1:lines], error.__cause__ if lines > 1 else None
    if cause is not None and not type(cause).__module__.startswith("jax"):
        more.append(f"Its cause: {first_sentence(cause)}")
    text = re.sub(r"\s+", " ", texts[0]) if texts else "no message"
    text = text if more else text.rstrip(":")
    text = re.sub(r" There are \d+ mismatches, including$", "", text)
    text = re.sub(r"^(Custom VJP \w+ rule)\b.* but (?=at output|got|instead)", r"\1 … ", text)
    text = re.sub(r"Blocked\(block_size=(\d+)\)", r"\1", text)
    text = re.sub(r"\bargs\[(\d+)\]", r"input \1 (counted from 0)", text)
    return "\n".join([f"{type(error).__name__}: {text}", *more])
