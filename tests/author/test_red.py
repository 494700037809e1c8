"""What `make test` turns red for: each kind of thing that rots is broken once."""

from __future__ import annotations

import dataclasses

import pytest
import sample
import verdicts
from planted import Plant

import puzzles
from puzzles import Alternative, Mistake
from puzzles._author import cells, proof
from puzzles._puzzle import variant

pytestmark = pytest.mark.newest

ROW_SUM = puzzles.find("row_sum")
WRONG: Mistake = ROW_SUM.mistake("keeps only the last block's sum")


def test_other_words_of_a_mistake() -> None:
    reworded = dataclasses.replace(WRONG, says="what no verdict says")
    assert proof.mistake_problem(ROW_SUM, reworded, (0,)) is not None
    assert proof.mistake_problem(ROW_SUM, WRONG, (0,)) is None


def test_an_alternative_that_is_wrong() -> None:
    other = Alternative(WRONG.name, WRONG.edits, WRONG.code)
    assert "is rejected" in str(proof.alternative_problem(ROW_SUM, other, thorough=False))


def test_a_starter_that_passes(plant: Plant) -> None:
    kernel = "    o_ref[...] = x_ref[...] * 2\n"
    region = "    ### BEGIN SOLUTION\n"
    passes = plant((f"{region}{kernel}", f"{kernel}{region}    pass\n"))
    assert "the starter passes as it stands" in str(proof.starter_problem(passes))


def test_a_hint_with_a_line_of_the_solution(plant: Plant) -> None:
    told = ("Every element of the block is treated alike", "Write `o_ref[...] = x_ref[...] * 2`")
    assert list(cells.leaks(plant(told))) != []


def test_a_verdict_that_is_not_the_one_on_record() -> None:
    recorded = verdicts.on_record("basics")[ROW_SUM.name, WRONG.name]
    seen = puzzles.judge(ROW_SUM, variant(ROW_SUM, WRONG), seed=0)
    assert verdicts.block(WRONG, seen) == recorded
    changed = dataclasses.replace(seen, diagnosis="other words")
    assert verdicts.block(WRONG, changed) != recorded
    assert sample.PARTS == 1  # so that the gate compares
