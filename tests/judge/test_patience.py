"""How long the cause of wrong numbers is looked for, and what is told when time is over."""

from __future__ import annotations

import pytest

import puzzles
from puzzles._judge import answer, judge
from puzzles._puzzle import variant


def test_when_time_is_over_the_place_alone_is_told() -> None:
    puzzle = puzzles.find("vector_add")
    mistake = next(m for m in puzzle.mistakes if m.stage == "values")
    wrong = variant(puzzle, mistake)
    assert mistake.says in str(judge(puzzle, wrong))
    hurried = judge(puzzle, wrong, patience=0)
    assert hurried.diagnosis is None
    assert "elements are wrong" in hurried.says


def test_time_begins_with_the_first_question(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(answer.time, "monotonic", lambda: now[0])
    puzzle = puzzles.find("vector_add")
    one = answer.Answer(puzzle, puzzle.solution, patience=2.0)
    now[0] = 200.0
    assert one.in_time()
    now[0] = 201.9
    assert one.in_time()
    now[0] = 202.1
    assert not one.in_time()
