"""Numbers drawn by matplotlib, or listed where it is not installed."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import pytest

import puzzles
from puzzles._draw import plot_svg


def test_the_picture_has_its_title():
    svg = plot_svg([3.0, 2.0], "loss & more")
    assert svg is not None
    ET.fromstring(svg)
    assert "<!-- loss &amp; more -->" in svg


def test_the_same_numbers_give_the_same_picture():
    assert plot_svg([3.0, 2.0, 1.0], "loss") == plot_svg([3.0, 2.0, 1.0], "loss")


def test_without_matplotlib_they_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    puzzles.plot([0.5, float("nan")], "loss")
    assert capsys.readouterr().out == "loss: 0.5 nan\n"


def test_nothing_to_plot_is_said():
    with pytest.raises(ValueError, match="the sequence is empty"):
        puzzles.plot([])
