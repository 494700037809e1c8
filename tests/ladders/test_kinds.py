"""The cases of each puzzle catch the kinds of slips that small and even shapes hide."""

from __future__ import annotations

import kinds
import pytest
import sample
from learner import edited

import puzzles
from puzzles import find, judge
from puzzles._judge import judging
from puzzles._record import edits_of

NAMES = [puzzle.name for ladder in puzzles.ladders() for puzzle in puzzles.ladder(ladder)]


@pytest.fixture(autouse=True)
def without_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause of wrong numbers does not matter here."""
    monkeypatch.setattr(judging, "EXPLAINERS", ())


@pytest.mark.parametrize("name", sample.share(NAMES, 8))
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_slip_of_each_kind_is_refused_or_remarked_on(name: str, kind: str) -> None:
    right = kinds.right(name)
    passing = kinds.passing(find(name), kind)
    assert [change for change, named in passing if not named and change not in right] == []


def test_the_changes_listed_as_right_are_made_and_pass() -> None:
    for row in kinds.LISTED["right"]:
        puzzle = find(row["puzzle"])
        passing = {change for kind in kinds.KINDS for change, _ in kinds.passing(puzzle, kind)}
        assert set(row["changes"]) <= passing, row["puzzle"]


@pytest.mark.parametrize("row", kinds.LISTED["wrong"], ids=lambda row: row["name"])
def test_groups_of_whole_tiles_and_late_chips_are_in_the_cases(row: dict) -> None:
    verdict = judge(find(row["puzzle"]), edited(row["puzzle"], *edits_of(row)))
    assert verdict.stage in ("values", "memory"), str(verdict)
