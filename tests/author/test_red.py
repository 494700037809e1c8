"""What `make test` turns red for: each kind of thing that rots is broken once."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import sample
import verdicts
from ladders.test_taste import unsourced
from planted import Plant

import puzzles
from puzzles import Alternative, Mistake
from puzzles._author import cells, notebook, proof, repository
from puzzles._puzzle import variant

pytestmark = pytest.mark.newest

ROW_SUM = puzzles.find("row_sum")
WRONG: Mistake = ROW_SUM.mistake("keeps only the last block's sum")


def test_a_broken_solution(plant: Plant) -> None:
    broken = plant(("o_ref[...] = x_ref[...] * 2", "o_ref[...] = x_ref[...] * 4"))
    assert "the solution is rejected" in str(proof.solution_problem(broken, (0,)))


def test_other_words_of_a_mistake() -> None:
    reworded = dataclasses.replace(WRONG, says="what no verdict says")
    assert proof.mistake_problem(ROW_SUM, reworded, (0,)) is not None
    assert proof.mistake_problem(ROW_SUM, WRONG, (0,)) is None


def test_an_alternative_that_is_wrong() -> None:
    other = Alternative(WRONG.name, WRONG.edits, WRONG.code)
    assert "is rejected" in str(proof.alternative_problem(ROW_SUM, other, thorough=False))


def test_a_diagram_that_is_not_today_s(tmp_path: Path) -> None:
    shutil.copytree(repository.ROOT / "diagrams", tmp_path / "diagrams")
    assert notebook.out_of_date(tmp_path, []) == {}
    drawn = tmp_path / "diagrams" / "basics" / "row_sum.svg"
    drawn.write_text(drawn.read_text() + "<!-- by hand -->")
    assert list(notebook.out_of_date(tmp_path, [])) == ["diagrams/basics/row_sum.svg"]


def test_a_fact_without_a_source() -> None:
    assert list(unsourced(["VMEM has 7 MiB."], [])) == ["VMEM has 7 MiB."]


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
