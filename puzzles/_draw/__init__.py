"""What does a launch look like? Launches in; text, HTML and SVG out.

`walk_data` turns a launch into plain data. `walk_page` and `walk_text` draw its grid timeline and
the copies that it makes by hand. `block_squares` draws the map of right and wrong blocks,
`plot_svg` a few numbers, `film` some steps of a launch, `copies_strip` its copies by hand.
Timelines, verdicts and the diagrams of the notebooks share the rest: palette and marks.
"""

from __future__ import annotations

from puzzles._draw.cards import FAINT, bar, card, fold, paragraph, source, track
from puzzles._draw.copies import copies_strip
from puzzles._draw.data import walk_data
from puzzles._draw.filmstrip import Still, film
from puzzles._draw.frames import mark_rules, marks_in, style
from puzzles._draw.lanes import lanes_picture, lanes_text
from puzzles._draw.page import block_squares, strip_page, walk_page
from puzzles._draw.palette import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MARKS,
    PURPLE,
    VERMILLION,
    cell,
    code,
    document,
    legend,
    px,
    rect,
    text,
    text_width,
)
from puzzles._draw.plots import costs_table, plot_svg, roofline_page
from puzzles._draw.words import walk_text
