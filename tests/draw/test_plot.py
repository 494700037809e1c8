"""Numbers drawn as a line."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

import puzzles
from puzzles._draw import plot_svg


def test_a_line_goes_through_finite_numbers_and_names_the_least_and_the_largest():
    svg = plot_svg([3.0, 2.0, float("nan"), 1.0, 2.0], "loss & more")
    ET.fromstring(svg)
    assert ">loss &amp; more</text>" in svg
    assert {*re.findall(r">([\d.]+)</text>", svg)} == {"3", "1", "0", "4"}
    (line,) = re.findall(r'd="([^"]+)" fill="none" stroke="#', svg)
    heights = [float(y) for _, y in re.findall(r"[ML](\S+) ([\d.]+)", line)]
    assert line.count("M") == 2  # the NaN is a gap
    assert heights[0] < heights[1] == heights[3] < heights[2]
    ET.fromstring(plot_svg([float("nan")], ""))


def test_nothing_to_plot_is_said():
    with pytest.raises(ValueError, match="the sequence is empty"):
        puzzles.plot([])
