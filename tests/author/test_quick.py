"""`make quick` runs the tests of the files that differ from the last commit, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import quick

import puzzles

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "tests", "puzzles"),
    [
        ("puzzles/_program/run.py", ["tests/test_house.py", "tests/program"], []),
        ("puzzles/_draw/walk.js", ["tests/test_house.py", "tests/draw"], []),
        ("puzzles/_check.py", ["tests/test_house.py", "tests/judge"], []),
        ("puzzles/basics/row_sum.py", [], ["basics/row_sum"]),
        ("puzzles/basics/row_sum.toml", [], ["basics/row_sum"]),
        ("puzzles/basics/_audits.py", [], ["basics"]),
        ("puzzles/basics/__init__.py", [], ["basics"]),
        ("tests/compile/test_compiler.py", ["tests/compile/test_compiler.py"], []),
        ("tests/browser/test_lab.py", [], []),
        ("README.md", [], []),
    ],
)
def test_a_changed_file_is_tested_where_it_belongs(
    file: str, tests: list[str], puzzles: list[str]
) -> None:
    assert (ROOT / file).exists()
    assert quick.tests_of([file]) == tests
    assert quick.puzzles_of([file]) == puzzles


def test_of_a_puzzle_its_prose_is_asked_and_of_a_ladder_all() -> None:
    assert quick.taste_of(["basics/row_sum", "add_ten"])[-2:] == ["-k", "row_sum or add_ten"]
    assert "-k" not in quick.taste_of(["basics"])


def test_every_part_of_the_package_has_tests() -> None:
    package = Path(puzzles.__file__).parent
    for path in package.glob("_*"):
        if path.suffix == ".py" or (path / "__init__.py").exists():
            inside = path if path.suffix else path / "__init__.py"
            found = quick.tests_of([inside.relative_to(ROOT).as_posix()])
            assert len(found) > 1 or path.stem == "__init__", path
            assert all((ROOT / name).exists() for name in found), found
