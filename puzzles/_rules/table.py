"""The table of rules, read from `rules.toml`, and what breaks one of them: a `Finding`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from puzzles._rules.words import sentence


@dataclass(frozen=True)
class Rule:
    """stage: of a verdict, or "examine". asks: what has to hold. means: what it is on a TPU that it
    protects from. remedy: what to try. why: why it stays though it decides nothing. says: what an
    answer is told that breaks it, its facts in braces. forms: by name, what it says otherwise.
    title: the headline, in place of the stage's."""

    stage: str
    asks: str
    means: str
    remedy: str
    why: str = ""
    says: str = "{says}"  # what another program or the author of a rung has said
    forms: Mapping[str, str] = field(default_factory=dict)
    title: str | None = None


_TEXT = (files("puzzles._rules") / "rules.toml").read_text(encoding="utf-8")
RULES = {name: Rule(**row) for name, row in tomllib.loads(_TEXT).items()}


@dataclass(frozen=True)
class Where:
    """case: its dims in words. step: program ids of a grid step. scale: at production scale."""

    case: str | None = None
    step: tuple[int, ...] | None = None
    scale: bool = False


@dataclass(frozen=True)
class Finding:
    """A rule that is broken, where, and the facts that its sentence names; and no sentence.

    form: which of the rule's sentences, if not the usual one. title: in place of the rule's.
    """

    rule: str
    where: Where
    facts: Mapping[str, object]
    form: str = ""
    title: str | None = None

    @property
    def says(self) -> str:
        """Where, what, and what to try."""
        rule = RULES[self.rule]
        said = (rule.forms[self.form] if self.form else rule.says).format(**self.facts)
        return sentence("at scale", says=said) if self.where.scale else said

    @property
    def headline(self) -> str | None:
        """In place of the stage's, where there is one."""
        return self.title or RULES[self.rule].title
