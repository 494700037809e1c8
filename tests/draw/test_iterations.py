"""A matmul is drawn as a matmul, and attention as a map of its iterations."""

from __future__ import annotations

import re

import pytest

import puzzles
from puzzles import _draw
from puzzles._draw.frames import Frames
from puzzles._draw.iterations import map_of, product_of
from puzzles._draw.palette import MARKS


def walk(name: str) -> dict:
    puzzle = puzzles.find(name)
    (launch,) = puzzles.trace(puzzle.solution, *puzzle.arguments(0))
    return _draw.walk_data(launch)


@pytest.mark.parametrize("name", ["tiled_matmul", "matmul_bf16", "fused_matmul"])
def test_a_matmul_has_its_factors_left_of_and_above_the_product(name: str) -> None:
    factors = product_of(walk(name))
    assert factors is not None
    assert [factor["name"] for factor in factors] == ["a_ref", "b_ref"]
    page = _draw.walk_page([walk(name)])
    corner, right, left, result = (
        page.index(piece) for piece in ("pz-corner", "<b>b_ref</b>", "<b>a_ref</b>", "<b>o_ref</b>")
    )
    assert corner < right < left < result
    assert page.count('class="pz-band"') == 2


@pytest.mark.parametrize("name", ["vector_add", "row_sum", "flash_attention", "outer_product"])
def test_another_launch_is_no_matmul(name: str) -> None:
    assert product_of(walk(name)) is None


def test_a_map_has_a_cell_for_each_step_and_shows_which_compute() -> None:
    data = walk("causal_attention")
    drawn = map_of(data, Frames("grid step", data["kept"], 0))
    assert "o_ref block" in drawn
    assert "k_ref block" in drawn
    off, on = (re.search(rf'class="pz-{name}" d="([^"]*)"', drawn)[1] for name in ("off", "on"))
    assert on.count("M") == data["busy"] == 6
    assert off.count("M") == data["steps"] - data["busy"]


def test_a_list_of_tiles_has_the_same_map() -> None:
    page = _draw.walk_page([walk("splash_attention")])
    assert "pz-path" in page


@pytest.mark.parametrize("name", ["vector_add", "row_sum", "scale_blocks"])
def test_an_input_that_shows_both_axes_needs_no_map(name: str) -> None:
    assert "pz-path" not in _draw.walk_page([walk(name)]).split("</style>")[1]


def test_a_block_is_fetched_one_step_early_and_written_one_step_late() -> None:
    page = _draw.walk_page([walk("vector_add")])
    fetched, written, work = (
        re.search(rf'class="pz-s-{kind}" d="M(-?[\d.]+)', page)[1]
        for kind in ("fetched", "written", "work")
    )
    assert (float(fetched), float(work), float(written)) == (-0.9, 0.1, 1.1)


def luminance(colour: tuple[float, ...]) -> float:
    """The relative luminance of an sRGB colour, as WCAG 2 defines it."""
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def rgb(code: str) -> tuple[float, ...]:
    return tuple(int(code[n : n + 2], 16) / 255 for n in (1, 3, 5))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours."""
    light, dark = sorted((luminance(rgb(one)), luminance(rgb(other))), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("paper", ["#ffffff", "#111111"])
@pytest.mark.parametrize("mark", ["read", "reread", "done", "fault"])
def test_a_mark_stands_out_from_the_paper(mark: str, paper: str) -> None:
    assert contrast(MARKS[mark]["looks"]["stroke"], paper) >= 3


def test_a_pale_colour_fails_the_contrast() -> None:
    assert contrast("#56B4E9", "#ffffff") < 3
