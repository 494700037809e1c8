"""What may be typed after `examine`, and `[tool.puzzles.examine]` in pyproject.toml, read alike."""

from __future__ import annotations

import argparse
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from puzzles._examine.targets import Unfit
from puzzles._launch import ERROR, SEVERITIES
from puzzles._tpu import CHIPS

FILE, TABLE = "pyproject.toml", "[tool.puzzles.examine]"
_DEFAULTS = {"chips": ("v5e",), "seed": 0, "fail_on": ERROR}


def options(parser: argparse.ArgumentParser) -> None:
    """What may be typed after `examine`; what is not typed is None, or False."""
    add = parser.add_argument
    add("target", metavar="TARGET", nargs="?", help="module:function, file.py:function; "
        "by default the targets in pyproject.toml")  # fmt: skip
    add("arguments", metavar="ARGUMENT", nargs="*", help="f32[8,128], i32[3]=5,0,7, or a literal")
    add("--chips", type=chips, help=f"some of {','.join(CHIPS)}; v5e by default")
    add("--seed", type=int, help="draws data for shapes")
    add("--json", action="store_true", help="print one JSON document")
    add("--sarif", metavar="FILE", type=Path, help="write SARIF 2.1.0 there")
    add("--baseline", metavar="FILE", type=Path, help="costs: written, and later compared")
    add("--update-baseline", action="store_true", help="write the costs anew")
    add("--timeout", type=float, metavar="SECONDS", help="for each target")
    add("--fail-on", choices=SEVERITIES, help="the mildest finding that exits with 1; error")
    add("--strict", action=argparse.BooleanOptionalAction, default=None,
        help="exit with 2 where something was not looked at")  # fmt: skip


def settle(given: argparse.Namespace) -> list[list[str]]:
    """Give each option that was not typed its value, and return the targets, each with arguments.

    What is typed comes before the file in the folder that this runs in, and that before defaults.
    """
    said = _said()
    targets = said.pop("targets", [])
    file = argparse.ArgumentParser(f"{TABLE} of {FILE}", argparse.SUPPRESS, allow_abbrev=False)
    options(file)
    file.set_defaults(**_DEFAULTS)
    for name, value in vars(file.parse_args([*_typed(said)])).items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    if given.target:
        return [[given.target, *given.arguments]]
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        raise Unfit(f"`targets` in {TABLE} of {FILE}: a list of texts is asked for")
    if not targets:
        raise Unfit(f"name a target, module:function, or write `targets` into {TABLE} of {FILE}")
    return [shlex.split(one) for one in targets]


def _said() -> dict[str, Any]:
    try:
        data = tomllib.loads(Path(FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Unfit(f"{FILE} cannot be read: {error}") from None
    return data.get("tool", {}).get("puzzles", {}).get("examine", {})


def _typed(said: Mapping[str, Any]) -> Iterator[str]:
    """The file's options as somebody would type them."""
    for key, value in said.items():
        if isinstance(value, bool):
            yield f"--{key}" if value else f"--no-{key}"
        else:
            yield f"--{key}={','.join(map(str, value)) if isinstance(value, list) else value}"


def chips(text: str) -> tuple[str, ...]:
    """Chips as they are typed, `v5e,v6e`."""
    named = tuple(text.split(","))
    for chip in named:
        if chip not in CHIPS:
            known = ", ".join(CHIPS)
            raise argparse.ArgumentTypeError(f"no chip is called {chip!r}; there are {known}")
    return named
