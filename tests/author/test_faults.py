"""Every kind of fault in faults.toml is reported with its place and its remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import sample
from planted import FRONT, Plant, verified

from puzzles._author import repository, review, scaffold
from puzzles._record import edits_of

pytestmark = pytest.mark.newest  # JAX changes nothing here

LISTED = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
FAULTS, UNSEEN = LISTED["fault"], LISTED["unseen"]


@pytest.fixture
def told(plant: Plant, tmp_path: Path):
    """What `verify --quick` says of the scaffold's puzzle with a fault, and of its ladder."""

    def verify(fault: dict) -> list[str]:
        edits, front = list(edits_of(fault)), FRONT.format('"toy_warm_up",')
        texts = [scaffold.puzzle_text("toy_warm_up", suffix=end) for end in (".py", ".toml")]
        for first, last in fault.get("cut", ()):
            text = next(text for text in texts if first in text)
            start = text.index(first)
            edits.append((text[start : text.index(last, start)], ""))
        for old, new in edits_of({"edits": fault.get("front", ())}):
            assert old in front, old
            front = front.replace(old, new)
        for name in fault.get("files", ()):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        try:
            plant(*edits, front=front)
        except AssertionError:  # an edit of text that is not there
            raise
        except Exception:  # the module cannot be imported: the gate is to say so
            pass
        if "place" not in fault:
            return verified("toy_warm_up", quick=True).problems
        files = review.project_problems(tmp_path, ["toy"]) if "files" in fault else ()
        return [*review.ladder_problems("toy"), *(one for one in files if "stray" in one)]

    return verify


@pytest.mark.graduate
@pytest.mark.parametrize("fault", sample.share(FAULTS, 8), ids=lambda fault: fault["kind"])
def test_a_planted_fault_is_told_with_its_place_and_remedy(told, tmp_path: Path, fault) -> None:
    problems = told(fault)
    place = fault.get("place")
    if place is None:
        files = [tmp_path / "toy" / f"toy_warm_up{end}" for end in (".py", ".toml")]
        place = next(
            f"toy/{file.name}:{number}"
            for file in files
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
            if fault["at"] in line
        )
    found = [one for one in problems if one.startswith(f"{place}: ") and fault["says"] in one]
    assert len(found) == 1, (place, problems)


def test_a_puzzle_without_a_fault_has_no_problem(told, tmp_path: Path) -> None:
    assert told({}) == told({"place": "toy", "files": ["toy/_shared.py"]}) == []


@pytest.mark.parametrize("fault", UNSEEN, ids=lambda fault: fault["kind"])
def test_what_is_listed_as_unseen_is_not_seen(told, fault) -> None:
    assert fault["why"]
    assert told(fault) == []


def test_the_readme_says_how_many_kinds_are_told() -> None:
    assert len({fault["kind"] for fault in FAULTS}) == len(FAULTS)
    page = (repository.ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
    kinds = len(FAULTS) + len(UNSEEN)
    words = f"We plant {kinds} kinds of faults in a new puzzle; `verify` reports {len(FAULTS)}"
    assert words in page
