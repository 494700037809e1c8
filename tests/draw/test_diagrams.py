"""Diagrams are drawn from the reference launches, are up to date, and are used."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import puzzles

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "diagrams").glob("*/*.svg"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_diagram_can_be_read_by_everybody_and_stands_in_its_puzzle(path: Path) -> None:
    text = path.read_text("utf-8")
    root = ElementTree.fromstring(text)
    assert {"title", "desc"} <= {element.tag.split("}")[-1] for element in root}
    assert not re.search(r"(?:href|src|url\()", text), "it loads something"
    words = [element for element in root.iter() if element.tag.endswith("}text")]
    assert words
    assert [one.text for one in words if float(one.get("font-size", 0)) < 11] == []
    assert [one.text for one in words if (one.text or "").endswith("…")] == []
    text = puzzles.find(path.stem).text
    alts = re.findall(rf"!\[([^\]]*)\]\(diagrams/{path.parent.name}/{path.name}\)", text)
    assert len(alts) == 1
    assert len(alts[0].split()) >= 8
