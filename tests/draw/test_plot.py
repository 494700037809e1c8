"""Numbers drawn by matplotlib, or listed where it is not installed."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import pytest

import puzzles
from puzzles._draw import plot_svg


def test_the_numbers_stand_beside_their_bars():
    svg = plot_svg({"small": 250.0, "large <b>": 1000.0}, "cycles & more")
    assert svg is not None
    ET.fromstring(svg)
    said = {line.strip()[5:-4] for line in svg.splitlines() if line.strip().startswith("<!-- ")}
    assert {"small", "large &lt;b&gt;", "250", "1,000"} <= {one.replace("<", "&lt;").replace(
        ">", "&gt;") for one in said}  # fmt: skip


def test_the_same_numbers_give_the_same_picture():
    assert plot_svg([3.0, 2.0, 1.0], "loss") == plot_svg([3.0, 2.0, 1.0], "loss")


def test_without_matplotlib_they_are_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    puzzles.plot({"small": 250, "large": 1000}, "cycles")
    assert capsys.readouterr().out == "cycles\nsmall  250\nlarge  1,000\n"
    puzzles.plot([0.5, float("nan")])
    assert capsys.readouterr().out == "0  0.5\n1  nan\n"


def test_nothing_to_plot_is_said():
    with pytest.raises(ValueError, match="the sequence is empty"):
        puzzles.plot([])
