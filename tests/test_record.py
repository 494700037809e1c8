"""Records: the TOML files of known mistakes and other right answers."""

from __future__ import annotations

from pathlib import Path

import pytest

import puzzles
from puzzles import _record
from puzzles._record import Alternative, Mistake, Record

pytestmark = pytest.mark.newest  # JAX changes nothing here

TEXT = '''\
[[mistake]]
name = "adds one"
says = """
one is not \\
ten"""
replace = '10'
with = '1'

[[alternative]]
name = "subtracts, and has a `name = \\"line\\"`"
code = "def f():\\n    pass\\n"

[[alternative.edits]]
replace = \'\'\'
+ 10
\'\'\'
with = "- -10\\n"

[[alternative.edits]]
replace = 'x'
with = ""
'''


def test_a_record_holds_mistakes_and_alternatives_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TEXT, encoding="utf-8")
    other = Alternative(
        'subtracts, and has a `name = "line"`',
        (("+ 10\n", "- -10\n"), ("x", "")),
        "def f():\n    pass\n",
    )
    record = _record.read(tmp_path / "a.toml", "a.toml")
    assert record == Record((Mistake("adds one", (("10", "1"),), says="one is not ten"),), (other,))
    assert other.apply("x + 10\n") == " - -10\n\ndef f():\n    pass\n"
    assert [_record.line_number(TEXT, one) for one in ("adds one", other.name, "gone")] == [
        2,
        10,
        1,
    ]


def test_a_puzzle_without_a_file_has_an_empty_record(tmp_path: Path) -> None:
    assert _record.read(tmp_path / "a.toml", "a.toml") == Record()


def test_a_record_is_read_when_it_is_needed_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def read(*names: object) -> Record:
        reads.append(names)
        return Record()

    monkeypatch.setattr(_record, "read", read)
    monkeypatch.delitem(puzzles.find("add_ten").__dict__, "answers", raising=False)
    puzzle = puzzles.find("add_ten")
    assert puzzles.judge(puzzle, puzzle.solution).passed
    assert reads == []
    assert puzzle.mistakes == puzzle.alternatives == ()
    assert reads == [(puzzle.path.with_suffix(".toml"), "puzzles/basics/add_ten.toml")]
    del puzzle.__dict__["answers"]
