"""The table of rules, read from `rules.toml`; what breaks one of them, a `Finding`; and the words
of `words.toml`."""

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
    """A pattern in a program's message, and what to say: `rule` where one is broken, and `says`."""

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


def fault(name: str, /, **facts: object) -> tuple[str, str]:
    """What is wrong with a launch, and what to try, with its facts filled in."""
    words = _read()["faults"][name]
    return words["says"].format(**facts), words["remedy"].format(**facts)


def sentence(name: str, /, **facts: object) -> str:
    """What is said under a name, with its facts filled in."""
    return _read()["sentences"][name].format(**facts)


def to_author(name: str, /, **facts: object) -> str:
    """What the author of a puzzle is told under a name, with its facts filled in."""
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
    says: str = "{says}"  # what another program or the author of a rung has said
    forms: Mapping[str, str] = field(default_factory=dict)
    title: str | None = None
    story: bool = False


RULES = {name: Rule(**row) for name, row in _read("rules").items()}


@dataclass(frozen=True)
class Finding:
    """A rule that is broken, and the facts that its sentence names; and no sentence.

    case: where, its dims in words. scale: at production scale. form: which of the rule's sentences,
    if not the usual one. title: in place of the rule's.
    """

    rule: str
    facts: Mapping[str, object]
    case: str | None = None
    scale: bool = False
    form: str = ""
    title: str | None = None

    @property
    def says(self) -> str:
        """Where, what, and what to try."""
        rule = RULES[self.rule]
        said = (rule.forms[self.form] if self.form else rule.says).format(**self.facts)
        return sentence("at_scale", says=said) if self.scale else said
