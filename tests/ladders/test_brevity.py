"""How much a ladder makes its learner read before they write, and write again what they wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import puzzles
from puzzles import Puzzle, _ladders, _regions

# Words before the cell to fill in: of a ladder's rungs in the mean, and of any of them.
BUDGETS = {
    "basics": (118, 153),
    "splash_attention": (150, 210),
    "grouped_matmul": (144, 180),
    "pipelines": (120, 150),
}
# Words of any rung of a ladder in all.
WHOLE = {"basics": 235}
# Words before that cell, of each of a ladder's first four rungs, before anybody is used to it.
OPENINGS = {"basics": 130}
# Words of a ladder's front page, which leads to its first puzzle.
INTROS = {"basics": 120, "pipelines": 120}
# The part of the lines that a rung asks for which earlier rungs asked for, too.
RETYPED = 1 / 3

LADDERS = sorted(BUDGETS)
RUNGS = [puzzle for name in LADDERS for puzzle in puzzles.ladder(name)]

# Code, pictures and what is folded away: nobody has to read them as prose.
_NOT_PROSE = re.compile(
    r"```.*?```|<details>.*?</details>|!\[[^\]]*\]\([^)]*\)|<[^>]+>|\]\([^)]*\)", re.DOTALL
)


def words_before(puzzle: Puzzle, *, whole: bool = False) -> int:
    """Words of Markdown in a rung before the cell to fill in, without code, pictures and folds.

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
    words = {puzzle.name: words_before(puzzle) for puzzle in puzzles.ladder(ladder)}
    mean = sum(words.values()) / len(words)
    print(f"\n{ladder}: {mean:.0f} words in the mean")
    for name, count in words.items():
        print(f"{count:5} {name}")
    in_the_mean, in_any = BUDGETS[ladder]
    assert mean <= in_the_mean
    assert {name: count for name, count in words.items() if count > in_any} == {}


@pytest.mark.parametrize("ladder", sorted(OPENINGS))
def test_a_ladder_opens_with_few_words(ladder: str) -> None:
    opening = {puzzle.name: words_before(puzzle) for puzzle in puzzles.ladder(ladder)[:4]}
    assert {name: count for name, count in opening.items() if count > OPENINGS[ladder]} == {}


@pytest.mark.parametrize("ladder", sorted(WHOLE))
def test_no_rung_is_long_in_all(ladder: str) -> None:
    words = {puzzle.name: words_before(puzzle, whole=True) for puzzle in puzzles.ladder(ladder)}
    assert {name: count for name, count in words.items() if count > WHOLE[ladder]} == {}


@pytest.mark.parametrize("ladder", sorted(INTROS))
def test_the_front_page_leads_to_the_first_puzzle(ladder: str) -> None:
    assert len(_ladders.ladder_module(ladder).INTRO.split()) <= INTROS[ladder]


def asked(puzzle: Puzzle) -> set[str]:
    """The lines of code that a rung asks for; a bug to be found is no line to be typed."""
    if puzzle.starter is not None:
        return set()
    lines = _regions.region_lines(puzzle.text)
    return {line for line in lines if len(re.findall(r"[A-Za-z_]\w+", line)) > 1}


def retyped(rungs: list[Puzzle]) -> Iterator[tuple[str, float, set[str]]]:
    """Of each rung, the part of its lines that earlier ones asked for, and these lines."""
    before: set[str] = set()
    for puzzle in rungs:
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
