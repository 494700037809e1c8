"""`python -m puzzles examine module:function 'f32[1024,512]' …`, and how arguments are written."""

from __future__ import annotations

import ast
import importlib
import operator
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._examine.examining import examine

_TYPES = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint", "b": "bool"}
_SHAPE = re.compile(r"(?P<kind>[a-z]+)(?P<bits>\w*)\[(?P<dims>[\d,\s]*)\](?:=(?P<data>.+))?")


class Unfit(ValueError):
    """What was typed names no function or no argument; the text says what would."""


def command(target: str, written: Sequence[str], chips: str, as_json: bool, seed: int = 0) -> int:
    """Examine `module:function` on arguments as they are typed, and print; the shell's exit code.

    0: no error; 1: an error was found; 2: it could not be read.
    """
    try:
        fn, args = load(target), [argument(text) for text in written]
        found = examine(fn, *args, chips=chips.split(","), seed=seed)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(found.to_json() if as_json else found)
    return found.code


def load(target: str) -> Callable:
    """The object that `module:function` or `module:object.attribute` names."""
    module, _, path = target.partition(":")
    if not path:
        raise Unfit(f"{target!r} names no function: write module:function, as in kernels:matmul")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise Unfit(f"{module!r} cannot be imported: {error}") from None
    try:
        return reduce(getattr, path.split("."), found)
    except AttributeError:
        raise Unfit(f"{module!r} has no {path!r}") from None


def argument(text: str) -> object:
    """One argument: `f32[8,128]` is a shape, `i32[3]=5,0,7` an array, all else is Python."""
    found = _SHAPE.fullmatch(text.strip())
    if found is None:
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError):
            raise Unfit(
                f"{text!r} is no argument: write f32[8,128] for a shape, i32[3]=5,0,7 for "
                "numbers, or a Python literal"
            ) from None
    dtype = _dtype(found["kind"], found["bits"])
    shape = tuple(int(n) for n in found["dims"].replace(" ", "").split(",") if n)
    if found["data"] is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    numbers = np.array([float(n) for n in found["data"].split(",")])
    count = reduce(operator.mul, shape, 1)
    if len(numbers) not in (1, count):
        raise Unfit(f"{text!r} has {len(numbers)} numbers for {count} elements")
    return jnp.asarray(np.broadcast_to(numbers, count).reshape(shape), dtype)


def _dtype(kind: str, bits: str) -> np.dtype:
    for name in (f"{_TYPES.get(kind, kind)}{bits}", f"{kind}{bits}", f"float{bits}"):
        try:
            return jnp.dtype(name)
        except TypeError:
            continue
    raise Unfit(f"{kind}{bits!r} is no type: f32, bf16, i32, u8, bool, float8_e4m3fn")
