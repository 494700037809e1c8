"""Cards hold their texts, escaped, and can be read without a style sheet."""

from __future__ import annotations

import html
import re

import pytest

from puzzles._draw.cards import bar, card, fold, paragraph, source

CODE = '''@pl.when(k == 0)
def _():  # zero < one
    """Not yet."""
    acc_ref[...] = jnp.zeros_like(acc_ref)
'''


def text(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def test_source_keeps_every_character_and_sets_off_keywords() -> None:
    page = source(CODE)
    assert text(page) == CODE
    assert re.search(r"font-weight:600\">def</span>", page)
    assert re.search(r'opacity:.7">#', page)


@pytest.mark.parametrize("broken", ["def f(:\n  '''", "  x = 1\n y"])
def test_source_that_is_no_python_is_shown_plainly(broken: str) -> None:
    assert text(source(broken)) == broken


def test_a_card_escapes_its_title_and_words() -> None:
    page = card("#888", "a < b", [paragraph("see `x_ref[0] < 1`"), fold("more `b`", "<p>in</p>")])
    assert "<b>a &lt; b</b>" in page
    assert "<code>x_ref[0] &lt; 1</code>" in page
    assert "<summary" in page
    assert "`" not in page


def test_a_bar_has_its_share() -> None:
    assert "width:25.0%" in bar(1, 4)
    assert "width:0.0%" in bar(0, 0)
