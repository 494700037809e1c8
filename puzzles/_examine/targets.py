"""Targets of a shell: a function named by its module or its file, and typed arguments."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._rules import sentence

_TYPES = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint", "b": "bool"}
_SHAPE = re.compile(r"(?P<kind>[a-z]+)(?P<bits>\w*)\[(?P<dims>[\d,\s]*)\](?:=(?P<data>.+))?")


class TargetError(ValueError):
    """The typed text names no function or no argument; the message says how to name it."""


def load(target: str) -> Callable:
    """The object that `module:function`, `file.py:function` or `module:object.attr` names."""
    where, _, path = target.rpartition(":")
    if not where or not path:
        raise TargetError(sentence("no_target", text=target))
    try:
        found = _module(where)
    except TargetError:
        raise
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        raise TargetError(f"{where!r} cannot be imported: {why}") from None
    try:
        return attrgetter(path)(found)
    except AttributeError:
        raise TargetError(f"{where!r} has no {path!r}") from None


def made(fn: Callable, args: Sequence[object]) -> tuple[Callable, Sequence[object]]:
    """The function and the arguments that `fn` returns, if it takes none and returns both.

    That is a tuple of both, `(fn, x, y)` or `(fn, (x, y))`. Else `fn` itself, with `args`.
    """
    if args:
        return fn, args
    try:
        result = fn()
    except Exception:  # it asks for some, or no CPU runs it; if not, the examination says why
        return fn, args
    if not isinstance(result, tuple) or not result or not callable(result[0]):
        return fn, args
    inner, *rest = result
    return inner, list(rest[0]) if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest


def _module(where: str) -> ModuleType:
    """A module by its name, or by its file's path; a file of a package keeps its package."""
    if not where.endswith(".py") and "/" not in where:
        sys.path[:] = dict.fromkeys([os.getcwd(), *sys.path])
        return importlib.import_module(where)
    file = Path(where).resolve()
    if not file.is_file():
        raise TargetError(sentence("no_path", text=where))
    names, folder = [file.stem], file.parent
    while (folder / "__init__.py").exists():
        names, folder = [folder.name, *names], folder.parent
    sys.path[:] = dict.fromkeys([str(folder), *sys.path])
    if len(names) > 1:
        return importlib.import_module(".".join(names))
    # A file may be called as a module that is there already, such as types.py.
    name = f"examined_{file.stem}" if file.stem in sys.modules else file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def argument(text: str) -> object:
    """One argument: `f32[8,128]` is a shape, `i32[3]=5,0,7` an array, all else is Python."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError):
            raise TargetError(sentence("no_argument", text=text)) from None
    dtype = _dtype(match["kind"], match["bits"])
    shape = tuple(int(n) for n in match["dims"].replace(" ", "").split(",") if n)
    if match["data"] is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    numbers = np.array([float(n) for n in match["data"].split(",")])
    count = math.prod(shape)
    if len(numbers) not in (1, count):
        raise TargetError(f"{text!r} has {len(numbers)} numbers for {count} elements")
    return jnp.asarray(np.broadcast_to(numbers, count).reshape(shape), dtype)


def _dtype(kind: str, bits: str) -> np.dtype:
    try:
        return jnp.dtype(f"{_TYPES.get(kind, kind)}{bits}")
    except TypeError:
        raise TargetError(sentence("no_type", kind=kind, bits=bits)) from None
