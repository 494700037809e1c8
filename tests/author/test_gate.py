"""What `verify` finds in a puzzle and in a project, and in which words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from planted import FRONT, Rung, line

import puzzles
from puzzles import _author
from puzzles._author import gate, leaks, proof, report, review, scaffold, tree


def test_the_scaffolds_puzzle_has_no_problem(rung: Rung) -> None:
    puzzle = rung()
    report = gate.verify_rung(puzzle.name, use_libtpu=False)
    assert report.problems == []
    assert (report.counts["mistakes"], report.counts["alternatives"]) == ("4/4", "3/3")
    assert str(report).startswith("ok  toy/toy_warm_up ")


HINT = "Every element of the block is treated alike, so the block can be treated as one value."


DOUBLE = "    o_ref[...] = x_ref[...] * 2\n"
OUTSIDE = '"doubles outside the kernel"'
ITSELF = '"adds the block to itself"'
FIRST_ROW = """"fills the first row of each block only",
            old="o_ref[...] = x_ref[...] * 2",
            new="o_ref[0] = x_ref[0] * 2",
"""
TWICE = """"adds two twice",
            old="x_ref[...] * 2",
            new="x_ref[...] + 2.0",
"""


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        (
            'new="x_ref[...] + 2"',
            'new="2 * x_ref[...]"',
            '"adds two"',
            "mistake 'adds two' survives (seed 0): add a case, or an assertion to the audit",
        ),
        (
            'stage="pallas"',
            'stage="work"',
            OUTSIDE,
            "is caught at stage 'pallas', not 'work' (seed 0)",
        ),
        (
            'stage="pallas"',
            'stage="work"',
            OUTSIDE,
            "Set stage='pallas' if that is where it belongs",
        ),
        (
            'says="works on the data',
            'says="dances on the data',
            OUTSIDE,
            "is rejected, but not in its own words 'dances on the data outside the kernel'",
        ),
        (
            'says="twice x is x + x, not x + 2"',
            'says=" "',
            '"adds two"',
            "says nothing: `says` tells the learner why it is wrong",
        ),
        (
            'old="x_ref[...] * 2"',
            'old="x_ref[...] * 3"',
            '"adds two"',
            "cannot be made: occurs 0 times instead of once: 'x_ref[...] * 3'; mend its `old`",
        ),
        (
            'new="x_ref[...] + 2"',
            'new="x_ref[...] +"',
            '"adds two"',
            "mistake 'adds two' cannot be made: invalid syntax",
        ),
        (
            FIRST_ROW,
            TWICE,
            '"adds two twice"',
            "'adds two' and 'adds two twice' give equal values: add a case that tells them apart",
        ),
        (
            'new="x_ref[...] + x_ref[...]"',
            'new="x_ref[...] + 3.0"',
            ITSELF,
            "alternative 'adds the block to itself' is rejected: mend it, or call it a mistake",
        ),
        (
            'new="x_ref[...] + x_ref[...]"',
            'new="x_ref[...] +"',
            ITSELF,
            "alternative 'adds the block to itself' cannot be made: invalid syntax",
        ),
        (
            DOUBLE,
            DOUBLE.replace("2", "4"),
            "def toy_warm_up(",
            "the solution is rejected (seed 0); mend it, or its spec",
        ),
    ],
)
def test_code_that_does_not_hold_is_named_with_its_place_and_remedy(
    rung: Rung, old: str, new: str, at: str, says: str
) -> None:
    puzzle = rung((old, new))
    mistakes = [m for m in puzzle.mistakes if f'"{m.name}"' == at]
    alternatives = [a for a in puzzle.alternatives if f'"{a.name}"' == at]
    problems = [proof.mistake_problem(puzzle, one, seeds=(0,)) for one in mistakes]
    problems += [proof.alternative_problem(puzzle, one) for one in alternatives]
    problems += proof.twins(puzzle)
    if not mistakes and not alternatives:
        problems.append(proof.solution_problem(puzzle, seeds=(0,)))
    found = [problem for problem in problems if problem and says in problem]
    assert len(found) == 1, problems
    assert found[0].startswith(f"toy/toy_warm_up.py:{line(puzzle, at)}: ")


PLOT = "# ![A plot](diagrams/toy/plot.svg)\n# Fill the one with"


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        (
            "hints=[\n",
            "hints=[\n        ' ',\n",
            "hints=",
            "hint 1 is empty: write it, or take it out",
        ),
        (
            f'        "{HINT}",\n',
            "",
            "hints=",
            "2 hints: give an idea, an API and the shape of the code",
        ),
        (
            HINT,
            "Write `o_ref[...] = x_ref[...] * 2`.",
            "hints=",
            "a hint contains a line of the solution, `o_ref[...] = x_ref[...] * 2`: say it in",
        ),
        (
            "# Fill the one with",
            "# That is, o_ref[...] = x_ref[...] * 2.\n# Fill the one with",
            "# That is, o_ref",
            "a cell of this rung contains a line of the solution",
        ),
        (
            "A kernel for one block is a kernel for the whole array: the grid does the rest.",
            "",
            "explain=",
            "no explanation: say why the solution works",
        ),
        (
            "dict(M=16, N=384)",
            "dict(M=128, N=128)",
            "cases=",
            "a case with equal dims, {'M': 128, 'N': 128}, hides swapped axes: make them differ",
        ),
        (
            '"takes larger blocks"',
            '"adds two"',
            '"adds two"',
            "two mistakes or alternatives are called 'adds two': rename one",
        ),
        (
            "# ```text",
            "# ```",
            "# %% [markdown]",
            "this prose has no picture: add an image or a ```text drawing, or set picture=False",
        ),
        (
            "# Fill the one with",
            PLOT,
            "diagrams/toy/plot.svg",
            "the image has only 2 words for who cannot see it: describe it in its alt text",
        ),
        (
            "# Fill the one with",
            PLOT.replace("A plot", ""),
            "diagrams/toy/plot.svg",
            "the image has no words for who cannot see it: describe it in its alt text",
        ),
        (
            "# Fill the one with",
            PLOT,
            "diagrams/toy/plot.svg",
            "there is no image diagrams/toy/plot.svg: draw it, or mend the link",
        ),
        (
            DOUBLE,
            "    o_ref[...] = pl.reciprocal(x_ref[...])\n",
            "pl.reciprocal",
            "`pl.reciprocal` is used here, and no text up to this rung mentions it: say what it",
        ),
        (
            "        interpret=INTERPRET",
            "        debug=False,\n        interpret=INTERPRET",
            "debug=False",
            "`debug` is used here, and no text up to this rung mentions it",
        ),
    ],
)
def test_a_text_that_is_not_complete_is_named_with_its_place_and_remedy(
    rung: Rung, old: str, new: str, at: str, says: str
) -> None:
    puzzle = rung((old, new))
    problems = [*review.text_problems(puzzle), *leaks.leaks(puzzle)]
    found = [problem for problem in problems if says in problem]
    assert len(found) == 1, problems
    assert found[0].startswith(f"toy/toy_warm_up.py:{line(puzzle, at)}: ")


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


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        (
            "    return (jnp.asarray(rng",
            "    return (np.asarray(rng",
            "(np.asarray(",
            "NameError: name 'np' is not defined. Mend it first: nothing more of this rung was",
        ),
        ("    return 2 * x\n", "    return 2 * x.T.foo\n", "x.T.foo", "AttributeError: "),
    ],
)
def test_what_raises_in_an_authors_code_is_a_problem_with_its_place(
    rung: Rung, old: str, new: str, at: str, says: str
) -> None:
    puzzle = rung((old, new))
    report = gate.verify_rung(puzzle.name, use_libtpu=False)
    assert len(report.problems) == 1
    assert report.problems[0].startswith(f"toy/toy_warm_up.py:{line(puzzle, at)}: ")
    assert says in report.problems[0]
    assert str(report).startswith("BAD toy/toy_warm_up ")


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


def test_too_few_mistakes_are_counted(rung: Rung) -> None:
    text = scaffold.rung_text("toy_warm_up")
    first, last = text.index("        Mistake(\n"), text.index("    ],\n    # ✎ Add other")
    puzzle = rung((text[first:last], ""))
    wanted = "0 mistakes: at least 3 are wanted; what do people write?"
    place = f"toy/toy_warm_up.py:{line(puzzle, 'mistakes=')}"
    assert f"{place}: {wanted}" in list(review.text_problems(puzzle))


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


def test_a_starter_that_would_pass_is_named(rung: Rung) -> None:
    aside = f"    ### BEGIN SOLUTION\n    y = 1\n    ### END SOLUTION\n{DOUBLE}"
    puzzle = rung((WHOLE, aside))
    assert proof.starter_problem(puzzle) == (
        f"toy/toy_warm_up.py:{line(puzzle, '### BEGIN')}: the starter passes as it stands: "
        "put what "
        "the learner has to write into the region"
    )


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
    assert str(report.together("a/a", right, wrong)).endswith("(12.3 s, slowest: mistakes 8.1 s)")


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
    assert gate.verify(["row_sum"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("libtpu is not installed, so nothing is compiled for a TPU: ")
    gate.verify(["row_sum", "add_ten", "basics/row_sum"], quick=True)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("quick: one random key, nothing compiled for a TPU")
    assert [text[:6] for text in out if text.startswith("[")] == ["[1/2] ", "[2/2] "]
    assert out[-1].startswith("2 rungs, ")


@pytest.mark.parametrize("name", ["splash_attention/add_ten", "basics/ad_ten", "ad_ten"])
def test_a_name_that_is_none_is_one_sentence(name: str) -> None:
    with pytest.raises(puzzles.UnknownPuzzle, match="add_ten"):
        gate.verify([name])
