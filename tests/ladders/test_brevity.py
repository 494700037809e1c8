"""How much a learner reads before they write, and how much they write twice."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import puzzles
from puzzles import Puzzle, _ladders, _regions


@dataclass(frozen=True)
class Budget:
    """Words of a ladder: before the cell to fill in, in the mean of its puzzles and of any."""

    mean: int
    most: int
    opening: float = math.inf  # of any of its first four puzzles, before anybody is used to it
    whole: float = math.inf  # of any puzzle in all
    intro: float = math.inf  # of the front page, which leads to the first puzzle


BUDGETS = {
    "basics": Budget(118, 153, opening=130, whole=236, intro=120),
    "splash_attention": Budget(150, 210),
    "grouped_matmul": Budget(144, 180),
    "pipelines": Budget(122, 150, intro=120),
    "collectives": Budget(130, 150, intro=120),
}
# The part of the lines that a puzzle asks for which earlier puzzles asked for, too.
RETYPED = 1 / 3

LADDERS = sorted(BUDGETS)

# Code, pictures and folded text: nobody has to read them as prose.
_NOT_PROSE = re.compile(
    r"```.*?```|<details>.*?</details>|!\[[^\]]*\]\([^)]*\)|<[^>]+>|\]\([^)]*\)", re.DOTALL
)


def words_before(puzzle: Puzzle, *, whole: bool = False) -> int:
    """Words of Markdown in a puzzle before the cell to fill in, without code, pictures and folds.

    whole: the words after it, too.
    """
    text = []
    for marker, body in _regions.split_cells(puzzle.text):
        if _regions.BEGIN in body and not whole:
            break
        if "[markdown]" in marker:
            text.append(re.sub(r"(?m)^# ?", "", body))
    prose = _NOT_PROSE.sub(" ", "\n".join(text))
    return sum(bool(re.search(r"\w", word)) for word in prose.split())


@pytest.mark.parametrize("ladder", LADDERS)
def test_a_learner_soon_writes(ladder: str) -> None:
    budget, listed = BUDGETS[ladder], puzzles.ladder(ladder)
    before = {puzzle.name: words_before(puzzle) for puzzle in listed}
    whole = {puzzle.name: words_before(puzzle, whole=True) for puzzle in listed}
    opening = {puzzle.name: before[puzzle.name] for puzzle in listed[:4]}
    assert sum(before.values()) / len(before) <= budget.mean, before
    for words, most in ((before, budget.most), (opening, budget.opening), (whole, budget.whole)):
        assert {name: count for name, count in words.items() if count > most} == {}
    assert len(_ladders.ladder_module(ladder).INTRO.split()) <= budget.intro


def asked(puzzle: Puzzle) -> set[str]:
    """The lines of code that a puzzle asks for; a bug to be found is no line to be typed."""
    if puzzle.starter is not None:
        return set()
    lines = _regions.region_lines(puzzle.text)
    return {line for line in lines if len(re.findall(r"[A-Za-z_]\w+", line)) > 1}


def retyped(puzzles: list[Puzzle]) -> Iterator[tuple[str, float, set[str]]]:
    """Of each puzzle, the part of its lines that earlier puzzles asked for, and these lines."""
    before: set[str] = set()
    for puzzle in puzzles:
        lines = asked(puzzle)
        yield puzzle.name, len(lines & before) / max(1, len(lines)), lines & before
        before |= lines


@pytest.mark.parametrize("ladder", LADDERS)
def test_nobody_types_again_what_they_have_written(ladder: str) -> None:
    found = {n: again for n, part, again in retyped(list(puzzles.ladder(ladder))) if part > RETYPED}
    assert found == {}, "print these lines, and leave a gap where the new ones go"


def test_a_body_that_is_asked_for_again_is_found() -> None:
    (_, first, _), (_, second, again) = retyped([puzzles.find("tiled_matmul")] * 2)
    assert (first, second) == (0, 1)
    assert "acc_ref[...] = jnp.zeros_like(acc_ref)" in again
