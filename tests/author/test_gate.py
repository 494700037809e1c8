"""What `verify` finds in a puzzle and in a project, and in which words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import pytest
from planted import FRONT, Plant, line, verified

import puzzles
from puzzles import __main__ as cli
from puzzles._author import gate, proof, report, review, scaffold

pytestmark = pytest.mark.newest  # JAX changes nothing here


def test_the_scaffolds_puzzle_has_no_problem(plant: Plant) -> None:
    puzzle = plant()
    report = verified(puzzle.name)
    assert report.problems == []
    assert any("toy_warm_up.toml:4: left undone: Record" in one for one in report.undone)
    assert (report.counts["mistakes"], report.counts["alternatives"]) == ("4/4", "3/3")
    assert str(report).startswith("ok  toy/toy_warm_up ")


def test_files_are_not_compared_while_a_module_does_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    broken = report.Report("a/b", problems=["a/b.py:3: NameError: x"], raised=True)
    monkeypatch.setattr(gate, "_reports", lambda *_: iter([broken]))
    said = "BAD the project's files were not compared: fix the puzzles above first"
    assert gate.verify(["add_ten"], quick=True) == 1
    assert said in capsys.readouterr().out


def test_what_a_scaffold_asks_for_is_listed_until_it_is_done(plant: Plant) -> None:
    puzzle = plant()
    asked = review.undone(puzzle.path, puzzle.file)
    at = line(puzzle, "✎ Write three hints")
    assert f"toy/toy_warm_up.py:{at}: left undone: Write three hints: the idea, the API, the " in (
        "\n".join(asked)
    )
    text = puzzle.path.read_text(encoding="utf-8")
    assert len(asked) == text.count("✎")
    puzzle.path.write_text(text.replace("✎", ""), encoding="utf-8")
    assert review.undone(puzzle.path, puzzle.file) == []


def test_what_is_generated_and_edited_by_hand_is_named(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    plant()
    settings = '[project.urls]\nRepository = "https://github.com/a/b"\n[tool.pallas-puzzles]\n'
    (tmp_path / "pyproject.toml").write_text(settings + 'branch = "main"\n')
    (tmp_path / "README.md").write_bytes((scaffold.PROJECT / "README.md").read_bytes())
    (tmp_path / "diagrams").mkdir()
    (tmp_path / "diagrams" / "draw.py").write_text('DIAGRAMS = {"toy/plot": lambda: "<svg/>"}\n')
    monkeypatch.chdir(tmp_path)
    assert cli.main(["build"]) == 0
    assert cli.main(["build", "--check"]) == 0
    edited = {
        "diagrams/toy/plot.svg": ("svg", "gsv"),
        "toy.ipynb": ("twice", "thrice"),
        "README.md": ("| 1 |", "| 2 |"),
    }
    for name, (old, new) in edited.items():
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new), encoding="utf-8")
    capsys.readouterr()
    assert cli.main(["build", "--check"]) == 1
    says = f"out of date: {', '.join(edited)}. Run python -m puzzles build\n"
    assert capsys.readouterr().err == says
    assert [one for one in review.project_problems(tmp_path, ["toy"]) if "stray" not in one] == [
        f"{name} is out of date: python -m puzzles build" for name in edited
    ]


def test_a_front_page_is_looked_at_though_only_a_puzzle_is_named(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def reports(puzzles, libtpu, quick, _):  # other processes do not know the ladder of a test
        return [verified(name, libtpu, quick) for name in puzzles]

    monkeypatch.setattr(gate, "_reports", reports)
    puzzle = plant(front=FRONT.format('"toy_warm_up",').replace("TITLE", "HEADING"))
    assert gate.verify([f"toy/{puzzle.name}"], quick=True) == 1
    assert "BAD toy/__init__.py:1: a ladder needs TITLE: say what" in capsys.readouterr().out


# The command


def test_the_total_counts_puzzles_problems_and_what_is_left_undone() -> None:
    good = report.Report("a/b")
    bad = report.Report("a/c", problems=["x"], undone=["y", "z"])
    assert report.total([good, bad], 0, 0, 9.7) == (
        "2 puzzles, 1 puzzle with problems, 2 things left undone (exit status 2), in 10 s"
    )
    assert report.total([good], 1, 1, 0) == (
        "1 puzzle, 0 puzzles with problems, 1 problem of the project as a whole, 1 thing left "
        "undone (exit status 2), in 0 s"
    )
    assert str(bad).splitlines()[1:] == ["    x", "    y", "    z"]


def test_a_production_shape_without_the_data_that_maps_read_compares_nothing() -> None:
    puzzle = puzzles.find("paged_attention")
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in puzzle.scale()]
    (problem,) = proof.scale_problems(dataclasses.replace(puzzle, scale=lambda: tuple(shapes)))
    assert "reads data that `scale` does not give, so no cost is compared" in problem


@pytest.mark.parametrize(
    ("problems", "undone", "status"), [(["x"], ["y"], 1), ([], ["y"], 2), ([], [], 0)]
)
def test_what_is_left_undone_has_an_exit_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, problems: list[str], undone: list[str], status: int
) -> None:
    one = report.Report("a/b", {"cases": "1"}, problems, undone=undone)
    monkeypatch.setattr(gate, "_reports", lambda *_: iter([one]))
    assert gate.verify(["row_sum"], quick=True) == status


@pytest.mark.parametrize("name", ["basics/ad_ten", "ad_ten"])
def test_a_name_that_is_none_is_one_sentence(name: str) -> None:
    with pytest.raises(puzzles.UnknownPuzzleError, match="add_ten"):
        gate.verify([name])


def test_puzzles_are_chosen_by_every_name_once() -> None:
    names = ["pipelines", "row_sum", "basics/row_sum"]
    assert gate.selected(names, []) == [
        *puzzles._ladders.ladder_module("pipelines").PUZZLES,
        "row_sum",
    ]
