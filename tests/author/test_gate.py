"""What `verify` finds in a puzzle and in a project, and in which words."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import jax
import pytest
from planted import FRONT, Rung, line

import puzzles
from puzzles import _author
from puzzles._author import gate, proof, report, review, tree

pytestmark = pytest.mark.newest  # JAX changes nothing here


def test_the_scaffolds_puzzle_has_no_problem(rung: Rung) -> None:
    puzzle = rung()
    report = gate.verify_rung(puzzle.name, use_libtpu=False)
    assert report.problems == []
    assert (report.counts["mistakes"], report.counts["alternatives"]) == ("4/4", "3/3")
    assert str(report).startswith("ok  toy/toy_warm_up ")


DOUBLE = "    o_ref[...] = x_ref[...] * 2\n"
FIRST_ROW = """"fills the first row of each block only",
            old="o_ref[...] = x_ref[...] * 2",
            new="o_ref[0] = x_ref[0] * 2",
"""


def test_two_nan_mistakes_say_which_is_named_and_what_to_do(rung: Rung) -> None:
    nothing = 'old="o_ref[...] = x_ref[...] * 2",\n            new="y = x_ref[...]",'
    puzzle = rung((FIRST_ROW.rstrip(), f'"leaves garbage",\n            {nothing}'))
    twin = puzzles.Mistake(
        "multiplies garbage",
        old="o_ref[...] = x_ref[...] * 2",
        new="o_ref[...] = o_ref[...] * 2",
        says="what is in the buffer is garbage",
    )
    assert proof.mistake_problem(puzzle, twin, seeds=(0,)) == (
        f"toy/toy_warm_up.py:{line(puzzle, 'PUZZLE = ')}: mistake 'multiplies garbage' gives the "
        "same values as "
        "'leaves garbage' "
        "on M=16, N=384 (seed 0), and the first of the list is named: list this one before it, or "
        "put a case that tells them apart first"
    )


def test_a_module_that_does_not_parse_is_a_problem_with_its_line(
    rung: Rung, tmp_path: Path
) -> None:
    rung(front=FRONT.format('"toy_warm_up", "broken", "gone"'))
    (tmp_path / "toy" / "broken.py").write_text("x = 1\ny = (\n")
    (problem,) = gate.verify_rung("broken", use_libtpu=False).problems
    assert problem.startswith("toy/broken.py:2: SyntaxError: '(' was never closed")
    assert gate.verify_rung("gone", use_libtpu=False).problems == [
        "toy/__init__.py: RUNGS names 'gone', and there is no gone.py: write it, or take it out"
    ]


def test_each_result_has_a_name_or_none_has(rung: Rung) -> None:
    puzzle = rung(("    hints=[", '    results=["m", "l"],\n    hints=['))
    place = f"toy/toy_warm_up.py:{line(puzzle, 'results=')}"
    problem = proof.solution_problem(puzzle, seeds=(0,))
    assert problem == f"{place}: 2 names for 1 results: name each of them"


def test_an_audit_that_refuses_the_solution_or_raises_is_named(rung: Rung) -> None:
    puzzle = rung(("launch.steps > 1, (", "launch.steps > 99, ("))
    problem = proof.solution_problem(puzzle, seeds=(0,))
    assert problem is not None
    place = f"toy/toy_warm_up.py:{line(puzzle, 'audit=audit')}"
    assert problem.startswith(
        f"{place}: the audit rejects the solution (seed 0); mend one of them:"
    )


def test_an_audit_that_is_too_strict_for_an_alternative_is_to_be_loosened(rung: Rung) -> None:
    puzzle = rung(("launch.steps > 1, (", "launch.steps > 4, ("))
    (wide,) = [a for a in puzzle.alternatives if a.name == "takes larger blocks"]
    problem = proof.alternative_problem(puzzle, wide)
    assert problem is not None
    assert "'takes larger blocks' is rejected: loosen the audit, or call it a mistake:" in problem


def test_files_are_not_compared_while_a_module_does_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    broken = report.Report("a/b", problems=["a/b.py:3: NameError: x"])
    monkeypatch.setattr(gate, "_reports", lambda *_: iter([broken]))
    said = "BAD the project's files were not compared: mend the rungs above first"
    assert gate.verify(["basics"], quick=True) == 1
    assert said in capsys.readouterr().out
    assert gate.verify(["add_ten"], quick=True) == 1  # no file would have been compared
    assert said not in capsys.readouterr().out


def test_a_module_that_no_ladder_names_is_not_an_unknown_puzzle(rung: Rung, tmp_path: Path) -> None:
    rung()
    (tmp_path / "toy" / "other.py").touch()
    with pytest.raises(
        puzzles.UnknownPuzzle, match=r"other\.py is not among RUNGS in toy/__init__"
    ):
        gate.verify(["toy/other"])


WHOLE = f"    ### BEGIN SOLUTION\n{DOUBLE}    ### END SOLUTION\n"


@pytest.mark.parametrize(
    ("region", "says"),
    [
        (
            """\
    ### BEGIN SOLUTION
    if True:
        y = x_ref[...]
    ### END SOLUTION
        o_ref[...] = y * 2
""",
            "the starter does not parse: line",
        ),
        (
            """\
    if True:
    ### BEGIN SOLUTION
        y = x_ref[...]
    else:
        y = x_ref[...]
    ### END SOLUTION
    o_ref[...] = y * 2
""",
            "the region does not parse alone (unexpected indent): a region holds whole statements",
        ),
        (
            f"    ### BEGIN SOLUTION\n    # nothing\n    ### END SOLUTION\n{DOUBLE}",
            "a region holds whole statements, list elements or keyword arguments",
        ),
        (f"    ### BEGIN SOLUTION\n{DOUBLE}", "'### BEGIN SOLUTION' without"),
    ],
)
def test_a_region_that_cannot_be_cut_out_is_named(rung: Rung, region: str, says: str) -> None:
    problem = proof.starter_problem(rung((WHOLE, region)))
    assert problem is not None
    assert problem.startswith("toy/toy_warm_up.py:")
    assert says in problem


def test_what_a_scaffold_asks_for_is_listed_until_it_is_done(rung: Rung) -> None:
    puzzle = rung()
    asked = review.undone(puzzle)
    at = line(puzzle, "✎ Write three hints")
    assert f"toy/toy_warm_up.py:{at}: left undone: Write three hints: the idea, the API, the " in (
        "\n".join(asked)
    )
    text = puzzle.path.read_text(encoding="utf-8")
    assert len(asked) == text.count("✎")
    puzzle.path.write_text(text.replace("✎", ""), encoding="utf-8")
    assert review.undone(puzzle) == []


# A project as a whole


def problems(root: Path) -> list[str]:
    return list(tree.tree_problems(root, ["toy"]))


def test_stray_files_are_named(rung: Rung, tmp_path: Path) -> None:
    rung()
    (tmp_path / "toy" / "old.py").touch()
    (tmp_path / "toy" / "notes.txt").touch()
    (tmp_path / "toy" / "_shared.py").touch()
    (tmp_path / "lost.ipynb").touch()
    (tmp_path / "diagrams" / "toy").mkdir(parents=True)
    (tmp_path / "diagrams" / "toy" / "lost.svg").touch()
    strays = list(tree.strays(tmp_path, ["toy"]))
    assert strays == [
        "toy/notes.txt: a stray file: add 'notes' to RUNGS in toy/__init__.py, give a shared "
        "module a name that begins with _, or delete it",
        "toy/old.py: a stray file: add 'old' to RUNGS in toy/__init__.py, give a shared module a "
        "name that begins with _, or delete it",
        "lost.ipynb: a stray notebook: no ladder is called 'lost'; delete it",
        "diagrams/toy/lost.svg: a stray diagram: no rung of toy shows it; link or delete it",
    ]


def test_a_second_puzzle_of_a_name_is_named(rung: Rung) -> None:
    rung(front=FRONT.format('"toy_warm_up", "add_ten"'))
    assert list(tree.duplicates()) == [
        "toy/__init__.py: a second puzzle called 'add_ten', which basics has already: rename one, "
        "since check() finds a puzzle by its name"
    ]


def test_rungs_and_parts_that_are_not_there_are_named(rung: Rung) -> None:
    rung(front=FRONT.format('"toy_warm_up", "gone"') + 'PARTS = {"other": "## Part"}\n')
    assert list(tree.missing("toy")) == [
        "toy/__init__.py: RUNGS names 'gone', and there is no gone.py: write it, or take it out",
        "toy/__init__.py: PARTS begins a part at 'other', which is not among RUNGS",
    ]


def test_a_file_and_its_puzzle_have_one_name(rung: Rung) -> None:
    rung(("def toy_warm_up(", "def warmer("), ("solution=toy_warm_up,", "solution=warmer,"))
    assert list(tree.missing("toy")) == [
        "toy/toy_warm_up.py: its puzzle is called 'warmer': give file and function one name"
    ]


def test_a_generated_file_that_is_out_of_date_is_named(rung: Rung, tmp_path: Path) -> None:
    rung()
    settings = '[project.urls]\nRepository = "https://github.com/a/b"\n[tool.pallas-puzzles]\n'
    (tmp_path / "pyproject.toml").write_text(settings + 'branch = "main"\n')
    assert problems(tmp_path) == ["toy.ipynb is out of date: python -m puzzles build"]


def test_without_the_authors_extra_the_install_line_is_named(
    rung: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung()
    monkeypatch.setitem(sys.modules, "jupytext", None)
    for module in ("cells", "notebook"):
        monkeypatch.delitem(sys.modules, f"puzzles._author.{module}", raising=False)
        monkeypatch.delattr(_author, module, raising=False)
    (said,) = problems(tmp_path)
    assert said.startswith("the notebooks cannot be checked: ")
    assert said.endswith("pip install 'pallas-puzzles[author]'")


# The command


def test_the_total_counts_rungs_problems_and_what_is_left_undone() -> None:
    good = report.Report("a/b", mistakes=4)
    bad = report.Report(
        "a/c", problems=["x"], notes=["w"], undone=["y", "z"], mistakes=3, wait=1.25
    )
    assert report.total([good, bad], 0, 0, 9.7) == (
        "2 rungs, 7 mistakes, 1 rung with problems, 2 things left undone (exit status 2), "
        "slowest first check 1.2 s (aim 3): a/c, in 10 s"
    )
    assert report.total([good], 1, 1, 0) == (
        "1 rung, 4 mistakes, 0 rungs with problems, 1 problem of the project as a whole, 1 thing "
        "left undone (exit status 2), in 0 s"
    )
    assert str(bad).splitlines()[1:] == ["    x", "    note: w", "    y", "    z"]


def test_a_report_says_the_time_that_passed_and_what_took_it() -> None:
    right = report.Report("a", parts={"text": 1.0, "TPU": 2.0}, began=10.0, ended=14.0)
    wrong = report.Report("a", parts={"mistakes": 8.1}, began=12.0, ended=22.3)
    others = report.Report("a", parts={"alternatives": 5.0}, began=11.0, ended=21.0)
    whole = report.together("a/a", right, wrong, others)
    assert str(whole).endswith("(12.3 s, slowest: mistakes 8.1 s)")


def test_a_production_shape_without_the_data_that_maps_read_compares_nothing() -> None:
    puzzle = puzzles.find("paged_attention")
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in puzzle.scale()]
    (problem,) = proof.scale_problems(dataclasses.replace(puzzle, scale=lambda: tuple(shapes)))
    assert "reads data that `scale` does not give, so no cost is compared" in problem


def test_of_a_refused_solution_other_answers_tell_nothing() -> None:
    right = report.Report("a", problems=["the solution"], refused=True)
    counts = {"alternatives": "0/2", "TPU": "-"}
    others = report.Report("a", problems=["one", "two"], counts=counts)
    whole = report.together("a/a", right, report.Report("a"), others)
    assert whole.problems == ["the solution"]
    assert whole.counts["alternatives"] == "-"


def test_a_part_of_a_report_is_done_before_its_seconds_are_taken() -> None:
    one = report.Report("a")
    assert one.of("text", lambda: iter([1, 2])) == [1, 2]
    assert one.of("text", lambda: None) is None
    assert list(one.parts) == ["text"]
    with pytest.raises(KeyError):
        one.of("TPU", {}.__getitem__, 1)
    assert "TPU" in one.parts


@pytest.mark.parametrize(
    ("problems", "undone", "status"), [(["x"], ["y"], 1), ([], ["y"], 2), ([], [], 0)]
)
def test_what_is_left_undone_has_an_exit_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, problems: list[str], undone: list[str], status: int
) -> None:
    one = report.Report("a/b", {"cases": "1"}, problems, undone=undone)
    monkeypatch.setattr(gate, "_reports", lambda *_: iter([one]))
    assert gate.verify(["row_sum"], quick=True) == status


@pytest.mark.slow
def test_verify_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(gate, "has_libtpu", lambda: False)
    assert gate.verify(["classify_blocks"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("libtpu is not installed, so nothing is compiled for a TPU: ")
    gate.verify(["classify_blocks", "active_tiles", "splash_attention/classify_blocks"], quick=True)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("quick: one random key, nothing compiled for a TPU")
    assert [text[:6] for text in out if text.startswith("[")] == ["[1/2] ", "[2/2] "]
    assert out[-1].startswith("2 rungs, ")


@pytest.mark.parametrize("name", ["splash_attention/add_ten", "basics/ad_ten", "ad_ten"])
def test_a_name_that_is_none_is_one_sentence(name: str) -> None:
    with pytest.raises(puzzles.UnknownPuzzle, match="add_ten"):
        gate.verify([name])
