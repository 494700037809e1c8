"""Progress outlasts the kernel if it can be stored, and says so if not."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

import puzzles
from puzzles import _progress
from puzzles._author.notebook import built


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As in a notebook whose kernel has just started, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_progress, "in_notebook", lambda: True)
    return tmp_path


def restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "_solved", set())


def test_a_restart_forgets_nothing(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _progress.add("add_ten") is None
    restart(monkeypatch)
    assert _progress.solved() == {"add_ten"}
    assert _progress.add("row_sum") is None
    restart(monkeypatch)
    assert _progress.solved() == {"add_ten", "row_sum"}
    assert [path.name for path in notebook.iterdir()] == [_progress.FILE]


def test_two_notebooks_in_one_folder_keep_both_their_puzzles(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _progress.add("add_ten")
    mine = _progress._solved
    restart(monkeypatch)
    _progress.add("attention")
    monkeypatch.setattr(_progress, "_solved", mine)
    _progress.add("row_sum")
    restart(monkeypatch)
    assert _progress.solved() == {"add_ten", "attention", "row_sum"}


def test_the_card_of_a_pass_shows_progress_once(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr("puzzles._check.display", lambda *both: shown.append(both))
    restart(monkeypatch)
    puzzles.check(puzzles.find("add_ten").solution)
    ((text, page),) = shown
    assert (text.count("1/17"), text.count("Next: ")) == (1, 1)
    assert (page.count("1/17"), page.count("Next: "), page.count("■")) == (1, 1, 0)


def test_a_side_road_is_named_beside_the_main_road(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[tuple[str, str]] = []
    monkeypatch.setattr("puzzles._check.display", lambda *shown: pages.append(shown))
    _progress.add("add_ten")
    puzzles.check(puzzles.find("vector_add").solution)
    text, page = pages[-1]
    assert "Next: add_reversed_blocks, or scale_blocks ★." in text
    links = re.findall(r'<a href="#([^"]+)" style="color:inherit">(\w+)</a>', page)
    cells = built("basics").cells
    headings = [cell.source.split("\n")[0].removeprefix("## ") for cell in cells]
    for anchor, name in links:
        (heading,) = (one for one in headings if f" {name}: " in one)
        assert anchor == html.escape(heading.replace(" ", "-"))
    assert [(name, "★" in anchor) for anchor, name in links] == [
        ("add_reversed_blocks", False),
        ("scale_blocks", True),
    ]


def test_it_says_where_it_is_kept(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("puzzles._check.display", lambda text, page: shown.append(text))
    monkeypatch.setattr("puzzles._check._passed", {})
    solution = puzzles.find("add_ten").solution
    assert puzzles.checked("add_ten") == (solution, "the reference")
    puzzles.check(solution)
    assert puzzles.checked("add_ten") == (solution, "yours")
    assert "basics ■□□□□□□□□□□□□□□□□ 1/17. Next: vector_add." in shown[-1]
    restart(monkeypatch)
    puzzles.progress()
    lines = shown[-1].splitlines()
    assert lines[0] == "basics: 1 of 17 solved, 1 of 11 ★ ■□□□□□□□□□□□□□□□□"
    assert lines[-1] == f"Kept in {notebook / _progress.FILE}; delete that file to begin again."
    (notebook / _progress.FILE).unlink()
    restart(monkeypatch)
    puzzles.progress()
    assert shown[-1].startswith("basics: 0 of 17 solved")


def test_a_folder_that_cannot_be_written_is_said_and_costs_nothing(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(_progress.Path, "write_text", refuse)
    shown: list[str] = []
    monkeypatch.setattr("puzzles._check.display", lambda text, page: shown.append(text))
    verdict = puzzles.check(puzzles.find("add_ten").solution)
    assert verdict is not None
    assert verdict.passed
    said = "Progress cannot be kept here (Read-only file system): it lasts until the kernel stops."
    assert said in shown[-1]
    puzzles.progress()
    assert shown[-1].startswith("basics: 1 of 17 solved")
    assert shown[-1].endswith(said)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"solved": 3}', '{"solved": [3, "add_ten"]}', "é"]
)
def test_a_file_that_is_not_ours_to_read_is_not_an_error(notebook: Path, text: str) -> None:
    (notebook / _progress.FILE).write_bytes(text.encode("latin-1"))
    assert _progress.solved() <= {"add_ten"}
    assert _progress.add("row_sum") is None
    assert "row_sum" in json.loads((notebook / _progress.FILE).read_text())["solved"]


def test_a_write_that_breaks_off_leaves_what_was_there(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _progress.add("add_ten")
    before = (notebook / _progress.FILE).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_progress.Path, "replace", full)
    said = _progress.add("row_sum")
    assert said is not None
    assert "No space left on device" in said
    assert (notebook / _progress.FILE).read_bytes() == before


def test_scripts_and_ci_leave_no_file(
    notebook: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("PUZZLES_STRICT", "1")
    _progress.add("add_ten")
    monkeypatch.delenv("PUZZLES_STRICT")
    monkeypatch.setattr(_progress, "in_notebook", lambda: False)
    _progress.add("row_sum")
    puzzles.progress()
    assert "This count lasts as long as this session." in capsys.readouterr().out
    assert list(notebook.iterdir()) == []


def test_a_pass_names_the_next_puzzle_that_is_not_solved(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("puzzles._check.display", lambda text, page: shown.append(text))
    ladder = puzzles.ladder("basics")
    for one in ladder[1:3]:
        _progress.add(one.name)
    puzzles.check(ladder[0].solution)
    assert f"3/{len(ladder)}. Next: {ladder[3].name}.\n\n" in shown[-1]  # the details follow
    for one in ladder[2:]:
        _progress.add(one.name)
    monkeypatch.setattr(_progress, "_solved", _progress.solved() - {ladder[1].name})
    (notebook / _progress.FILE).unlink()
    puzzles.check(ladder[0].solution)
    assert f"{len(ladder) - 1}/{len(ladder)}. Next: {ladder[1].name}.\n\n" in shown[-1]
    _progress.add(ladder[1].name)
    puzzles.check(ladder[0].solution)
    assert f"{len(ladder)}/{len(ladder)}. All of it is solved.\n\n" in shown[-1]
