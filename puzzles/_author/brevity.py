"""How much a learner has to read before the first line that they write."""

from __future__ import annotations

import re

from puzzles import _regions
from puzzles._puzzle import Puzzle

# Code, pictures and what is folded away: nobody has to read them as prose.
_NOT_PROSE = re.compile(
    r"```.*?```|<details>.*?</details>|!\[[^\]]*\]\([^)]*\)|<[^>]+>|\]\([^)]*\)", re.DOTALL
)


def words_before(puzzle: Puzzle) -> int:
    """Words of Markdown in a rung before the cell to fill in, without code, pictures and folds."""
    text = []
    for marker, body in _regions.split_cells(puzzle.text):
        if _regions.BEGIN in body:
            break
        if "[markdown]" in marker:
            text.append(re.sub(r"(?m)^# ?", "", body))
    prose = _NOT_PROSE.sub(" ", "\n".join(text))
    return sum(bool(re.search(r"\w", word)) for word in prose.split())
