"""One fault, one message, at its own place; and what prose names, states and gives away."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
import types
from pathlib import Path

import pytest
from planted import FRONT, Rung, line

from puzzles import __main__ as cli
from puzzles import _ladders
from puzzles._author import commands, gate, leaks, lint, prose, review, scaffold, tree, vague, wait

BROKEN = "x = 1\ny = (\n"
TWO = FRONT.format('"broken", "toy_warm_up"')
BODY = "    o_ref[...] = x_ref[...] * 2\n"
HINT = "Every element of the block is treated alike, so the block can be treated as one value."
PROSE = "# Fill the one with twice the other."


def test_a_module_that_does_not_load_spoils_no_later_rung(rung: Rung, tmp_path: Path) -> None:
    (tmp_path / "toy" / "broken.py").write_text(BROKEN)
    puzzle = rung(front=TWO)
    assert gate.verify_rung(puzzle.name, use_libtpu=False, quick=True).problems == []
    (problem,) = gate.verify_rung("broken", use_libtpu=False).problems
    assert problem.startswith("toy/broken.py:2: SyntaxError: '(' was never closed")


def test_a_rung_that_needs_a_broken_one_says_so_and_no_more(rung: Rung, tmp_path: Path) -> None:
    (tmp_path / "toy" / "broken.py").write_text(BROKEN)
    needs = '    return 2 * x + find("broken").solution(x)\n'
    imports = ("from puzzles import INTERPRET", "from puzzles import INTERPRET, find")
    puzzle = rung(("    return 2 * x\n", needs), imports, front=TWO)
    assert gate.verify_rung(puzzle.name, use_libtpu=False).problems == [
        "toy/toy_warm_up.py: not verified: it needs broken.py, which does not load"
    ]


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do not know the ladders that a test makes."""

    def reports(rungs, *options):
        return [gate.verify_rung(name, *options) for name in rungs]

    monkeypatch.setattr(gate, "_reports", reports)


def test_an_unknown_ladder_before_is_told_once_where_it_is_named(
    rung: Rung, in_this_process: None, capsys: pytest.CaptureFixture
) -> None:
    puzzle = rung(front=FRONT.format('"toy_warm_up",').replace("basics", "basix"))
    assert gate.verify([puzzle.name], quick=True) == 1
    out = capsys.readouterr().out
    assert out.count("basix") == 1
    assert (
        "BAD toy/__init__.py:3: AFTER names no ladder: no ladder is called 'basix'; did you mean "
        "'basics'?" in out
    )


def test_a_front_page_is_looked_at_though_only_a_rung_is_named(
    rung: Rung, in_this_process: None, capsys: pytest.CaptureFixture
) -> None:
    puzzle = rung(front=FRONT.format('"toy_warm_up",').replace("TITLE", "HEADING"))
    assert gate.verify([f"toy/{puzzle.name}"], quick=True) == 1
    assert "BAD toy/__init__.py:1: a ladder needs TITLE: say what" in capsys.readouterr().out


def test_a_folder_that_no_entry_point_names_is_not_an_unknown_puzzle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "acme" / "rockets").mkdir(parents=True)
    (tmp_path / "acme" / "rockets" / "__init__.py").write_text("RUNGS = ()\n")
    settings = '[tool.pallas-puzzles]\nbranch = "main"\npackage = "acme"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    for command in (["verify", "rockets/any"], ["new", "puzzle", "rockets", "moon"]):
        assert cli.main(command) == 1
        assert capsys.readouterr().err == (
            "error: acme/rockets is there, and no entry point names it: add `rockets = "
            '"acme.rockets"` under [project.entry-points."pallas_puzzles.ladders"] in '
            "pyproject.toml, then pip install -e .\n"
        )


def test_a_folder_of_this_package_without_rungs_is_no_ladder(tmp_path: Path) -> None:
    (tmp_path / "puzzles" / "rockets").mkdir(parents=True)
    (tmp_path / "puzzles" / "rockets" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").touch()
    said = "puzzles/rockets/__init__.py has no RUNGS, so it is no ladder: add them"
    assert tree.unlisted(tmp_path, "rockets") == said
    assert tree.unlisted(tmp_path, "basics") is None
    assert tree.unlisted(tmp_path, "row_summ") is None


# What gives the answer away


@pytest.mark.parametrize(
    ("shown", "leak"),
    [
        ("`o_ref[...] = x_ref[...] * 2`", "a line of the solution, `o_ref[...] = x_ref[...] * 2`"),
        ("`o_ref[...] = 2 * x_ref[...]`", "the solution's `o_ref[...] = x_ref[...] * 2` in other"),
        ("`o_ref[...] = (2.0 * x_ref[...])`", "the solution's `o_ref[...] = x_ref[...] * 2` in"),
        ("`o_ref[...] = 2 * x_ref[...] + 1`", None),
        ("`o_ref[...] = x_ref[...] * 2, 1`", None),
        ("`o_ref[...] = 2 * y_ref[...]`", None),
    ],
)
@pytest.mark.parametrize("where", [HINT, PROSE])
def test_an_answer_in_other_words_is_a_leak(
    rung: Rung, shown: str, leak: str | None, where: str
) -> None:
    found = leaks.leaks(rung((where, f"{where[:2]}{shown}")))
    assert len(found) == (leak is not None)
    assert leak is None or leak in found[0]


def test_a_part_of_a_line_is_no_leak() -> None:
    cells = [types.SimpleNamespace(source="return h, h\nreturn hh\nx = h.y", cell_type="code")]
    assert not leaks._shows(cells, "return h")
    assert not leaks._shows(cells, "x = h")
    cells[0].source = "return h  # done"
    assert leaks._shows(cells, "return h")


def test_an_argument_is_shown_though_others_follow() -> None:
    cells = [types.SimpleNamespace(source="f(grid=(4, 2), x=1)", cell_type="code")]
    assert leaks._shows(cells, "grid=(4, 2),")
    assert not leaks._shows(cells, "grid=(4, 2)")


# What prose names and states


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("As in `row_summ`.", "`row_summ` is no rung and no name of the code: mend the name"),
        ("As in `flash_attention`.", "`flash_attention`, of splash_attention, is a rung that no"),
        ("As in `flash_attention`, later.", None),
        ("As in `row_sum` and `toy_warm_up`, with `x_ref`, `index_map`, `pallas_call()`.", None),
    ],
)
def test_a_rung_that_prose_names_is_one_that_was_met(
    rung: Rung, text: str, says: str | None
) -> None:
    puzzle = rung((PROSE, f"# {text}"))
    found = list(prose.unknown_rungs(puzzle))
    assert len(found) == (says is not None)
    if says is not None:
        assert says in found[0]
        assert found[0].startswith(f"toy/toy_warm_up.py:{line(puzzle, text)}: ")


@pytest.mark.parametrize(
    "figure", ["3 MiB", "820 GB/s", "197 TFLOP/s", "2.5 µs", "1,024 KiB", "12 ms", "64 FLOPs"]
)
def test_a_figure_with_a_unit_wants_a_source(rung: Rung, tmp_path: Path, figure: str) -> None:
    puzzle = rung((PROSE, f"# Blocks are small. A v5e has\n# {figure} of it. That is all."))
    (problem,) = prose.unsourced(puzzle)
    at = line(puzzle, f"# {figure} of it")
    assert problem == (
        f"toy/toy_warm_up.py:{at}: `{figure}` has no source: put the sentence and where it is "
        "from, or the test that shows it, into tests/facts/toy.toml"
    )
    facts = tmp_path / "tests" / "facts" / "toy.toml"
    facts.parent.mkdir(parents=True)
    facts.write_text(f'[[fact]]\nrung = "toy_warm_up"\nsays = "A v5e has {figure} of it."\n')
    assert list(prose.unsourced(puzzle)) == []
    facts.write_text('[[fact]]\nrung = "toy_warm_up"\nsays = "Blocks are small."\n')
    assert len(list(prose.unsourced(puzzle))) == 1


def test_sizes_without_a_unit_want_no_source(rung: Rung) -> None:
    assert list(prose.unsourced(rung((PROSE, "# In 8 steps, 128 columns, 3 msgs.")))) == []


# What else is asked of a rung


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("cut the matrix", None),
        ("cut", "is known by 'cut': quote 3 words of its own verdict"),
        ("1 step:", None),
        ("step", "is known by 'step': quote"),
        ("8", "is known by '8', which the verdict on 'adds two' holds as well: quote 3 words"),
    ],
)
def test_what_a_mistake_says_is_of_its_own_verdict(rung: Rung, says: str, why: str | None) -> None:
    puzzle = rung(('says="cut the matrix into blocks"', f'says="{says}"'))
    found = list(vague.vague_problems(puzzle))
    assert len(found) == (why is not None), found
    if why is not None:
        at = line(puzzle, '"takes the whole matrix in one step"')
        assert found[0].startswith(f"toy/toy_warm_up.py:{at}: mistake 'takes the whole matrix in ")
        assert why in found[0]


def test_a_first_check_that_takes_long_is_noted_and_held_against_nobody(
    rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    puzzle = rung()
    assert wait.first_check(puzzle) > 0
    assert list(wait.wait_notes(puzzle, wait.LONGEST)) == []
    monkeypatch.setattr(gate, "first_check", lambda _: 4.25)
    report = gate.verify_rung(puzzle.name, use_libtpu=False, quick=True)
    assert (report.problems, report.wait) == ([], 4.25)
    assert (
        f"\n    note: toy/toy_warm_up.py:{line(puzzle, 'cases=')}: a first check takes 4.2 s here, "
        "and a learner should wait 3 s at most: make the cases smaller"
    ) in str(report)


def test_ruff_reads_a_rung(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    puzzle = rung(("    M, N = x.shape\n", "    M, N = x.shape\n    unused = 1\n"))
    at = line(puzzle, "unused = 1")
    (problem,) = lint.lint_problems(puzzle)
    assert problem.startswith(f"toy/toy_warm_up.py:{at}: F841 ")
    assert problem.endswith("(ruff)")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    assert list(lint.lint_problems(puzzle)) == []


@pytest.mark.parametrize(
    ("given", "there", "then"),
    [(None, False, "cpu"), (None, True, None), ("tpu", False, "tpu")],
)
def test_jax_looks_for_no_tpu_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, given: str | None, there: bool, then: str | None
) -> None:
    monkeypatch.setattr(commands, "has_tpu", lambda: there)
    monkeypatch.setattr(commands.jax.config, "update", lambda *_: None)
    monkeypatch.setenv("JAX_PLATFORMS", "any")  # so that it is put back afterwards
    if given is None:
        monkeypatch.delenv("JAX_PLATFORMS")
    else:
        monkeypatch.setenv("JAX_PLATFORMS", given)
    commands.look_for_no_tpu()
    assert os.environ.get("JAX_PLATFORMS") == then


def test_what_a_broken_rung_told_counts_as_told(rung: Rung, tmp_path: Path) -> None:
    (tmp_path / "toy" / "broken.py").write_text("# pl.reciprocal\n" + BROKEN)
    puzzle = rung((BODY, "    o_ref[...] = pl.reciprocal(x_ref[...])\n"), front=TWO)
    assert list(review.unexplained(puzzle)) == []


def test_a_new_ladder_has_its_list_of_facts_and_a_new_puzzle_adds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").touch()
    settings = '[tool.pallas-puzzles]\nbranch = "main"\npackage = "acme"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    monkeypatch.syspath_prepend(tmp_path)
    written = scaffold.new_ladder("rockets", tmp_path)
    facts = tmp_path / "tests" / "facts" / "rockets.toml"
    assert written[-2:] == [facts, tmp_path / "pyproject.toml"]
    module = importlib.import_module("acme.rockets")
    monkeypatch.setattr(_ladders, "_ladder_modules", lambda: {"rockets": module})
    assert scaffold.new_puzzle("rockets", "moon")[-1] == facts
    listed = tomllib.loads(facts.read_text(encoding="utf-8"))["fact"]
    assert [fact["rung"] for fact in listed] == ["rockets_warm_up", "moon"]
    for fact in listed:
        text = (tmp_path / "acme" / "rockets" / f"{fact['rung']}.py").read_text(encoding="utf-8")
        assert fact["says"] in text
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]
