"""The words of `words.toml`, read once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Row:
    """A pattern in a program's message, and what to say: `rule` where one is broken, and `says`."""

    pattern: re.Pattern[str]
    says: str
    rule: str = ""


@cache
def _read() -> Mapping[str, Any]:
    text = (files("puzzles._rules") / "words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _table(name: str) -> tuple[Row, ...]:
    return tuple(
        Row(re.compile(one["pattern"], re.DOTALL), one["says"], one.get("rule", ""))
        for one in _read()[name]
    )


def rows(name: str, text: str) -> Iterator[tuple[Row, re.Match[str]]]:
    """The rows of a table (exceptions, mosaic, libtpu) that match a message, in their order."""
    for row in _table(name):
        if found := row.pattern.search(text):
            yield row, found


def instead(primitive: str) -> str | None:
    """What to write instead of a primitive without a TPU lowering, where it is known."""
    return _read()["instead"].get(primitive)


def stuck(what: str) -> tuple[str, str]:
    """What a kernel does that waits in vain or leaves something behind, and what to do."""
    words = _read()["stuck"][what]
    return words["says"], words["remedy"]


def sentence(name: str, /, **facts: object) -> str:
    """What is said under a name, with its facts filled in."""
    return _read()["sentences"][name].format(**facts)


def title_of(stage: str) -> str:
    """The headline of a verdict at a stage."""
    return _read()["titles"][stage]
