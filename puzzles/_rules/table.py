"""The table of rules in `rules.toml`, findings, and the sentences of `words.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Row:
    """A pattern in a program's message, the sentence to show, and the broken rule (or "")."""

    pattern: re.Pattern[str]
    says: str
    rule: str = ""


@cache
def _read(name: str = "words") -> Mapping[str, Any]:
    text = (files("puzzles._rules") / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _table(name: str) -> tuple[Row, ...]:
    return tuple(
        Row(re.compile(row["pattern"], re.DOTALL), row["says"], row.get("rule", ""))
        for row in _read()[name]
    )


def rows(name: str, text: str) -> Iterator[tuple[Row, re.Match[str]]]:
    """The rows of a table (exceptions, mosaic, libtpu) that match a message, in their order."""
    for row in _table(name):
        if match := row.pattern.search(text):
            yield row, match


def instead(primitive: str) -> str | None:
    """A replacement for a primitive without a TPU lowering; None if there is no advice."""
    return _read()["instead"].get(primitive)


def fault(name: str, /, **facts: object) -> tuple[str, str]:
    """The message and the remedy for a fault of a launch, with its facts filled in."""
    words = _read()["faults"][name]
    return _filled(words["says"], facts), words["remedy"].format(**facts)


def sentence(name: str, /, **facts: object) -> str:
    """The sentence with this key, with its facts filled in."""
    return _filled(_read()["sentences"][name], facts)


def _filled(text: str, facts: Mapping[str, object]) -> str:
    """The text with its facts; the step of a kernel on several cores is the name of a core."""
    filled = re.sub(r"\bat grid step core ", "on core ", text.format(**facts))
    return re.sub(r"grid step core ", "core ", filled.replace("At grid step core ", "On core "))


_PLURALS = {
    "axis": "axes",
    "copy": "copies",
    "entry": "entries",
    "fetch": "fetches",
    "launch": "launches",
}


def plural(count: int, noun: str) -> str:
    """A count and its noun: "1 step", "2,048 steps", "2 copies"."""
    return f"{count:,} {noun if count == 1 else _PLURALS.get(noun, f'{noun}s')}"


def to_author(name: str, /, **facts: object) -> str:
    """The message to authors with this key, with its facts filled in."""
    return _read()["to_author"][name].format(**facts)


def title_of(stage: str) -> str:
    """The headline of a verdict at a stage."""
    return _read()["titles"][stage]


@dataclass(frozen=True)
class Rule:
    """One way in which an answer can be wrong.

    stage: of a verdict, or "examine". asks: the requirement.
    means: the consequence on a TPU of breaking the rule. remedy: the advice.
    why: the reason to keep a rule that decides no known mistake.
    says: the message, with facts in braces. forms: other messages, by name.
    title: the headline; None for the stage's own.
    story: True if the rule's page says more than a verdict, which then links to it.
    """

    stage: str
    asks: str
    means: str
    remedy: str
    why: str = ""
    says: str = "{says}"  # by default, the message of another program or of a puzzle's author
    forms: Mapping[str, str] = field(default_factory=dict)
    title: str | None = None
    story: bool = False


RULES = {name: Rule(**row) for name, row in _read("rules").items()}


@dataclass(frozen=True)
class Breach:
    """A broken rule, and the facts for its sentence.

    case: the dims of the case, in words. scale: True at the production shape.
    form: the name of the message in `rule.forms`; "" for the usual message.
    title: the headline; None for the rule's.
    """

    rule: str
    facts: Mapping[str, object]
    case: str | None = None
    scale: bool = False
    form: str = ""
    title: str | None = None

    @property
    def says(self) -> str:
        """The whole message: place, fault and remedy."""
        rule = RULES[self.rule]
        message = (rule.forms[self.form] if self.form else rule.says).format(**self.facts)
        return sentence("at_scale", says=message) if self.scale else message
