"""`record` and `edit`: a whole answer becomes an entry of a puzzle's record, and is shown again."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
import sample
from planted import Plant

import puzzles
from puzzles import Puzzle, _record, _regions
from puzzles import __main__ as cli
from puzzles._author import scaffold
from puzzles._author.answers import Change, _bare, change_of
from puzzles._author.recording import with_answer
from puzzles._record import Alternative, Record

pytestmark = pytest.mark.newest  # JAX changes nothing here

KNOWN = [
    (puzzle, change)
    for ladder in puzzles.ladders()
    for puzzle in puzzles.ladder(ladder)
    for change in (*puzzle.mistakes, *puzzle.alternatives)
]
TWICE = "o_ref[...] = x_ref[...] * 2"
KERNEL = "def toy_warm_up_kernel(x_ref, o_ref):\n    {}\n"


def definitions(text: str) -> dict[str, str]:
    """The last definition of each top-level name, without layout, comments and annotations."""
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.Assign)]
    names = [n.name if isinstance(n, ast.FunctionDef) else ast.unparse(n.targets) for n in nodes]
    return dict(zip(names, map(_bare, nodes), strict=True))


@pytest.mark.graduate
def test_a_whole_answer_becomes_a_change_that_gives_it(tmp_path: Path) -> None:
    toml, changes = "", []
    for puzzle, known in sample.share(KNOWN, 12):
        answer = _regions.without_marks(known.apply(puzzle.text))
        found = change_of(puzzle, answer)
        change = dataclasses.replace(known, edits=found.edits, code=found.code)
        assert definitions(change.apply(puzzle.text)) == definitions(answer), known.name
        changes.append(dataclasses.replace(change, name=f"{puzzle.name}: {known.name}"))
        toml = with_answer(toml, changes[-1])
    (tmp_path / "all.toml").write_text(toml, encoding="utf-8")
    record = _record.read(tmp_path / "all.toml", "all.toml")
    assert sorted(map(repr, (*record.mistakes, *record.alternatives))) == sorted(map(repr, changes))


@pytest.mark.parametrize(
    ("body", "edits"),
    [
        ("o_ref[...] = x_ref[...] * 3", [(TWICE, "o_ref[...] = x_ref[...] * 3")]),
        ("o_ref[...] = (\n        x_ref[...] * 2  # twice\n    )", None),
        ("y = x_ref[...]\n    o_ref[...] = y * y", []),
    ],
    ids=["a line", "layout", "another body"],
)  # fmt: skip
def test_only_what_differs_is_edited(plant: Plant, body: str, edits: list | None) -> None:
    puzzle = plant()
    if edits is None:
        with pytest.raises(puzzles._author.BuildError, match="defines nothing that differs"):
            change_of(puzzle, KERNEL.format(body))
        return
    change = change_of(puzzle, KERNEL.format(body))
    assert list(change.edits) == edits
    assert change.code == ("" if edits else KERNEL.format(body))


def test_annotations_make_no_difference(plant: Plant) -> None:
    puzzle = plant()
    answer = re.sub(r": Float\[.*?\]| -> Float\[.*?\]", "", puzzle.text)
    change = change_of(puzzle, answer.replace("bm, bn = 8, 128", "bm, bn = 16, 128"))
    assert change == Change((("bm, bn = 8, 128", "bm, bn = 16, 128"),), "")


def test_an_answer_is_read_from_an_issue_and_from_a_notebook(plant: Plant) -> None:
    puzzle = plant()
    code = KERNEL.format("pltpu.sync_copy(x_ref, o_ref)") + "\ncheck(toy_warm_up)\n"
    cells = [dict(cell_type="code", source=["x = 1\n"]), dict(cell_type="code", source=[code])]
    parts = {"python": code, "text": "✗ toy_warm_up: the values are wrong\n", "Text": "0.7.2\n"}
    issue = "".join(f"### Part\r\n\r\n```{kind}\r\n{one}```\r\n" for kind, one in parts.items())
    texts = (code, issue, json.dumps(dict(cells=cells)), f"%time\n{code}")
    changes = {change_of(puzzle, text) for text in texts}
    assert len(changes) == 1
    setup = "from jax.experimental.pallas import tpu as pltpu\n"  # which the setup cell imports
    assert changes == {Change(((TWICE, "pltpu.sync_copy(x_ref, o_ref)"),), setup)}


def recorded(puzzle: Puzzle, folder: Path, name: str, body: str, *options: str) -> int:
    """The exit status of `record` for an answer in a file of this name."""
    (folder / name).write_text(KERNEL.format(body), encoding="utf-8")
    return cli.main(["record", puzzle.name, str(folder / name), *options])


def test_an_answer_is_recorded_with_its_stage_and_its_message_and_shown(
    plant: Plant, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    puzzle = plant()
    before = puzzle.answers
    says = 'three times x is not twice x: "2 * x" is x + x, and neither of the two is x + x + x'
    assert (
        recorded(puzzle, tmp_path, "triples_it.py", "o_ref[...] = x_ref[...] * 3", "--says", says)
        == 0
    )
    said = capsys.readouterr().out
    assert "-    o_ref[...] = x_ref[...] * 2\n+    o_ref[...] = x_ref[...] * 3\n" in said
    assert f"Your numbers are those of a kernel that triples it: {says}." in said
    assert recorded(puzzle, tmp_path, "adds_a_ref.py", "o_ref[...] = x_ref + x_ref[...]") == 0
    assert "✗ toy_warm_up: your code raises" in capsys.readouterr().out
    assert (
        recorded(
            puzzle,
            tmp_path,
            "adds_it_twice.py",
            "o_ref[...] = x_ref[...] + x_ref[...]\n    o_ref[...] += 0",
        )
        == 0
    )
    text = puzzle.record_path.read_text(encoding="utf-8")
    example = scaffold.puzzle_text("toy_warm_up", suffix=".toml")
    assert [line for line in text.splitlines() if line not in example] != []
    assert all(line in text for line in example.splitlines())
    after = _record.read(puzzle.record_path, "toy.toml")
    assert after.mistakes[:-2] == before.mistakes
    assert after.alternatives[:-1] == before.alternatives
    assert [(one.name, one.stage) for one in after.mistakes[-2:]] == [
        ("triples it", "values"),
        ("adds a ref", "error"),
    ]
    assert after.mistakes[-2].says == says
    assert after.mistakes[-1].says.startswith("A Ref is a handle to memory")
    del puzzle.__dict__["answers"]
    capsys.readouterr()
    assert cli.main(["edit", puzzle.name, "triples"]) == 0
    at = text.splitlines().index('name = "triples it"') + 1
    assert capsys.readouterr().out.startswith(
        f"toy/toy_warm_up.toml:{at}: triples it\nvalues: {says}"
    )


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("answer.py", "o_ref[...] = x_ref[...]", "'answer' does not say what the answer does"),
        ("copies_it.py", "o_ref[...] = x_ref[...]", 'wrong values need --says "why, and the'),
        ("is_open.py", "...", "fill every gap of the answer"),
        ("adds_two_again.py", "o_ref[...] = x_ref[...]  +  2", "toy_warm_up has this answer"),
        ("is_cut_off.py", "o_ref[...", "the answer is not Python: '[' was never closed"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_recorded_changes_nothing(
    plant: Plant, tmp_path: Path, capsys: pytest.CaptureFixture, name: str, body: str, says: str
) -> None:
    puzzle = plant()
    before = puzzle.record_path.read_bytes()
    assert recorded(puzzle, tmp_path, name, body) == 1
    assert says in capsys.readouterr().err
    assert puzzle.record_path.read_bytes() == before


def test_an_answer_with_the_words_of_no_verdict_gets_the_verdicts_own(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    puzzle = plant()
    monkeypatch.setattr("sys.stdin", io.StringIO(KERNEL.format("o_ref[...] = x_ref.T")))
    assert cli.main(["record", puzzle.name, "-", "--name", "turns it", "--says", "no one"]) == 0
    (mistake,) = _record.read(puzzle.record_path, "toy.toml").mistakes[4:]
    assert mistake.says in str(puzzles.judge(puzzle, puzzles.mutate(puzzle, mistake)))


def test_an_answer_that_is_not_there_is_told_which_are(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["edit", "row_sum", "keeps"]) == 1
    said = capsys.readouterr().err
    assert "'keeps' is not one answer of row_sum; there are:\n  keeps only the last" in said
    assert Record() != puzzles.find("row_sum").answers != Alternative("keeps")
