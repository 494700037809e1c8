"""What `[tool.puzzles.examine]` in pyproject.toml says, for what is not typed."""

from __future__ import annotations

import argparse
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puzzles._examine.targets import Unfit
from puzzles._launch import ERROR, SEVERITIES
from puzzles._tpu import CHIPS

FILE, TABLE = "pyproject.toml", "[tool.puzzles.examine]"
_DEFAULTS = {
    "chips": "v5e", "seed": "0", "timeout": None, "fail-on": ERROR, "strict": False,
    "baseline": None, "targets": (),
}  # fmt: skip


def settle(given: argparse.Namespace) -> list[list[str]]:
    """Give each option that was not typed its value, and return the targets, each with arguments.

    What is typed comes before the file in the folder that this runs in, and that before defaults.
    """
    said = _said()
    for key in _DEFAULTS:
        name = key.replace("-", "_")
        if getattr(given, name, None) is None:
            setattr(given, name, _value(key, said.get(key, _DEFAULTS[key])))
    if given.target:
        return [[given.target, *given.arguments]]
    if not given.targets:
        raise Unfit(f"name a target, module:function, or write `targets` into {TABLE} of {FILE}")
    return given.targets


def _said() -> dict[str, Any]:
    try:
        data = tomllib.loads(Path(FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Unfit(f"{FILE} cannot be read: {error}") from None
    said = data.get("tool", {}).get("puzzles", {}).get("examine", {})
    for key in said:
        if key not in _DEFAULTS:
            raise Unfit(f"{TABLE} of {FILE} has {key!r}; there are {', '.join(_DEFAULTS)}")
    return said


def _value(key: str, said: Any) -> Any:
    """A value of the file, read as it would be if it were typed."""
    try:
        if key == "targets":
            return [shlex.split(one) for one in _list(said)]
        if key == "chips":
            return chips(said if isinstance(said, str) else ",".join(_list(said)))
        if key == "strict":
            return _one_of((True, False), said)
        if key == "fail-on":
            return _one_of(SEVERITIES, said)
        if said is None:
            return None
        read: dict[str, Callable[[str], Any]] = {"seed": int, "timeout": seconds, "baseline": Path}
        return read[key](str(said))
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise Unfit(f"`{key}` in {TABLE} of {FILE}: {error}") from None


def _list(said: Any) -> list[str]:
    if not isinstance(said, list | tuple) or not all(isinstance(one, str) and one for one in said):
        raise ValueError(f"a list of texts is asked for, and there is {said!r}")
    return list(said)


def _one_of(choices: tuple, said: Any) -> Any:
    if said not in choices:
        raise ValueError(f"{said!r} is none of {', '.join(map(str, choices))}")
    return said


def chips(text: str) -> tuple[str, ...]:
    """Chips as they are typed, `v5e,v6e`."""
    named = tuple(text.split(","))
    for chip in named:
        if chip not in CHIPS:
            known = ", ".join(CHIPS)
            raise argparse.ArgumentTypeError(f"no chip is called {chip!r}; there are {known}")
    return named


def seconds(text: str) -> float:
    """A time-out as it is typed."""
    number = float(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("a time-out is longer than nothing")
    return number
