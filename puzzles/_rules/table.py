"""The table of rules, read from `rules.toml`: a refusal names one, and the stage follows."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Rule:
    """stage: of a verdict, or "examine". asks: what has to hold. means: what it is on a TPU that it
    protects from. remedy: what to try. why: why it stays though it decides nothing."""

    stage: str
    asks: str
    means: str
    remedy: str
    why: str = ""


_TEXT = (files("puzzles._rules") / "rules.toml").read_text(encoding="utf-8")
RULES = {name: Rule(**row) for name, row in tomllib.loads(_TEXT).items()}
