"""Diagrams are drawn from the reference launches, are up to date, and are used."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

import puzzles

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "diagrams").glob("*/*.svg"))


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", ROOT / "diagrams" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(ROOT / "diagrams"))
    return module


def test_every_diagram_is_what_would_be_drawn_now(draw: ModuleType) -> None:
    assert draw.out_of_date() == []


def test_an_outdated_and_a_stray_diagram_are_named(
    draw: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "diagrams"
    (folder / "basics").mkdir(parents=True)
    monkeypatch.setattr(draw, "HERE", folder)
    monkeypatch.setattr(draw, "DIAGRAMS", {"basics/a": lambda: "<svg/>", "basics/b": lambda: "b"})
    (folder / "basics" / "a.svg").write_text("<svg/>")
    (folder / "basics" / "b.svg").write_text("old")
    (folder / "basics" / "c.svg").write_text("stray")
    assert draw.out_of_date() == ["diagrams/basics/b.svg", "diagrams/basics/c.svg"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_diagram_is_well_formed_titled_and_loads_nothing(path: Path) -> None:
    text = path.read_text("utf-8")
    root = ElementTree.fromstring(text)
    names = [element.tag.split("}")[-1] for element in root]
    assert {"title", "desc"} <= set(names)
    assert not re.search(r"(?:href|src|url\()", text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_diagram_stands_in_its_rung_with_words_for_who_cannot_see_it(path: Path) -> None:
    text = puzzles.find(path.stem).text
    alts = re.findall(rf"!\[([^\]]*)\]\(diagrams/{path.parent.name}/{path.name}\)", text)
    assert len(alts) == 1
    assert len(alts[0].split()) >= 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_all_words_of_a_diagram_are_there_and_can_be_read(path: Path) -> None:
    root = ElementTree.fromstring(path.read_text("utf-8"))
    texts = [element for element in root.iter() if element.tag.endswith("}text")]
    assert texts
    small = {one.text: one.get("font-size") for one in texts if float(one.get("font-size", 0)) < 11}
    assert small == {}
    assert [one.text for one in texts if (one.text or "").endswith("…")] == []
