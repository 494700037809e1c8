"""Fixtures for tests of the author's commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from planted import FRONT, Plant

from puzzles import Puzzle, _ladders
from puzzles._author import scaffold


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    """Makes the scaffold's puzzle, with edits of it and its record, the only puzzle of a ladder."""
    (tmp_path / "toy").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    def make(*edits: tuple[str, str], front: str = FRONT.format('"toy_warm_up",')) -> Puzzle:
        texts = {end: scaffold.puzzle_text("toy_warm_up", suffix=end) for end in (".py", ".toml")}
        for old, new in edits:
            end = next((end for end, text in texts.items() if old in text), None)
            assert end, old
            texts[end] = texts[end].replace(old, new, 1)
        (tmp_path / "toy" / "__init__.py").write_text(front, encoding="utf-8")
        for end, text in texts.items():
            (tmp_path / "toy" / f"toy_warm_up{end}").write_text(text, encoding="utf-8")
        module = importlib.import_module("toy")
        modules = {**_ladders._ladder_modules(), "toy": module}
        monkeypatch.setattr(_ladders, "_ladder_modules", lambda: modules)
        return importlib.import_module("toy.toy_warm_up").PUZZLE

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        del sys.modules[name]
