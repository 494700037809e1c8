"""Numbers drawn for a notebook that has no matplotlib."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

import puzzles
from puzzles._draw import plot_svg, plot_text


def points(svg: str) -> list[tuple[float, float]]:
    line = ET.fromstring(svg).find("polyline")
    assert line is not None
    return [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]


def test_a_line_falls_where_the_numbers_fall_and_is_to_scale():
    (x0, y0), (x1, y1), (x2, y2) = points(plot_svg([3.0, 2.0, 1.0], "loss"))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2)
    assert y0 < y1  # SVG counts downwards


def test_a_bar_is_as_long_as_its_number():
    paths = ET.fromstring(plot_svg({"a": 1.0, "b": 4.0}, "t")).findall("path")
    wide = [float(path.attrib["d"].split("h")[1].split("v")[0]) for path in paths]
    assert wide[1] / wide[0] == pytest.approx(4, rel=0.01)


def test_what_is_not_finite_is_left_out_and_the_rest_is_drawn():
    assert len(points(plot_svg([1.0, math.nan, 3.0, math.inf], "loss"))) == 2
    assert plot_text([1.0, math.nan, 3.0], "").count("•") == 2


def test_numbers_that_are_all_the_same_are_drawn_too():
    assert len(points(plot_svg([2.0, 2.0], "loss"))) == 2


def test_text_shows_the_same_numbers(capsys):
    puzzles.plot({"small": 250, "large": 1000}, "cycles")
    head, small, large = capsys.readouterr().out.strip().split("\n")
    assert head == "cycles"
    assert (small.count("█"), large.count("█")) == (10, 40)
    assert small.endswith("250")
    assert large.endswith("1,000")


def test_nothing_to_plot_is_said():
    with pytest.raises(ValueError, match="the sequence is empty"):
        puzzles.plot([])


def test_names_are_text_and_never_markup():
    svg = plot_svg({"<b>": 1.0}, "a & b")
    ET.fromstring(svg)
    assert "<b>" not in svg
