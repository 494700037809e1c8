"""Faults planted in right kernels, also in JAX's own, which `examine` has to find and to name."""

from __future__ import annotations

import importlib
import itertools
import linecache
import tomllib
import types
from dataclasses import dataclass
from pathlib import Path

import launches
import production
from production import FLASH, GMM, MATMUL, PAGED, SPLASH

from puzzles import Finding
from puzzles._record import edits_of

MODULES = dict(gmm=GMM, matmul=MATMUL, flash=FLASH, splash=SPLASH, paged=PAGED)
_numbers = itertools.count()


@dataclass(frozen=True)
class Planted:
    """A fault of planted.toml; place: a module of JAX's, or "launches"."""

    place: str
    make: str
    edit: tuple[str, str]
    kind: str
    about: str

    @property
    def name(self) -> str:
        old, new = map(str.strip, self.edit)
        what = new or f"without {old}"
        return f"{self.make}: {' '.join(what.split())}"

    def found_by(self, finding: Finding) -> bool:
        """True if a finding has this kind and names the faulty operand."""
        named = finding.operand == self.about or self.about in finding.words
        return finding.kind == self.kind and named

    def launch(self) -> tuple:
        """(function, *arguments) with the fault in it."""
        if self.place == "launches":
            return getattr(edited(launches, *self.edit), self.make)()
        module = edited(importlib.import_module(self.place), *self.edit)
        return getattr(production, self.make)(module)


def edited(module: types.ModuleType, old: str, new: str) -> types.ModuleType:
    """A module with the first `old` in its text replaced, executed again."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    assert old in text, old
    text = text.replace(old, new, 1)
    file = f"<{module.__name__.rpartition('.')[2]} {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    copy = types.ModuleType(module.__name__)
    copy.__file__ = module.__file__
    exec(compile(text, file, "exec"), copy.__dict__)
    return copy


LISTED = tomllib.loads(Path(__file__).with_name("planted.toml").read_text(encoding="utf-8"))
PLANTED = tuple(
    Planted(MODULES.get(row["place"], row["place"]), row["make"], edit, row["kind"], row["about"])
    for row in LISTED["fault"]
    for edit in edits_of(row)
)
