"""The Makefile: what `make lab` does to a learner's folder, and when it installs."""

import os
import re
import shutil
import subprocess

import pytest

import puzzles
from puzzles._author import repository

NOTEBOOKS = sorted(f"{name}.ipynb" for name in puzzles.ladders())

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def copy(tmp_path):
    for name in ("Makefile", "pyproject.toml", *NOTEBOOKS):
        shutil.copy(repository.ROOT / name, tmp_path)
    shutil.copytree(repository.ROOT / "diagrams", tmp_path / "diagrams")
    return tmp_path


def make(folder, *arguments):
    # `make test` runs this under a make of its own, whose flags would add lines to the output.
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={name: value for name, value in quiet.items() if name != "MFLAGS"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lab_copies_what_is_missing_and_never_overwrites(copy):
    mine = copy / "my"
    said = make(copy, "copy")
    assert sorted(said.splitlines()) == [f"my/{name} is new" for name in NOTEBOOKS]
    assert sorted(path.name for path in mine.iterdir()) == sorted(["diagrams", *NOTEBOOKS])

    first, second, *_ = NOTEBOOKS
    (mine / first).write_text("my solutions")
    os.utime(mine / first, (0, 0))  # older than the notebook that it came from
    (mine / second).unlink()
    assert make(copy, "copy") == f"my/{second} is new\n"
    assert (mine / first).read_text() == "my solutions"
    assert "https://raw.githubusercontent.com" not in (mine / second).read_text()
    assert "(diagrams/" in (mine / second).read_text()


def test_the_diagrams_of_copies_are_in_their_folder(copy):
    """JupyterLab answers 403 for a file outside its folder, also behind a link."""
    mine = copy / "my"
    mine.mkdir()
    (mine / "diagrams").symlink_to("../diagrams")  # as an earlier version left it
    make(copy, "copy")
    texts = ((mine / name).read_text() for name in NOTEBOOKS)
    drawn = {path for text in texts for path in re.findall(r"\((diagrams/[^)]+\.svg)", text)}
    assert drawn
    for path in drawn:
        assert (mine / path).resolve().is_relative_to(mine.resolve())
        assert (mine / path).is_file()
    assert (copy / "diagrams").is_dir()


@pytest.mark.parametrize(
    ("target", "stamp"),
    [
        ("lab", ".venv/.installed-lab"),
        ("test", ".venv-test/.installed"),
        ("test-colab", ".venv-colab/.installed"),
    ],
)
def test_an_environment_is_made_once_and_again_when_pyproject_changes(copy, target, stamp):
    assert "pip install" in make(copy, "--dry-run", target)
    (copy / stamp).parent.mkdir()
    (copy / stamp).touch()
    os.utime(copy / "pyproject.toml", (0, 0))
    assert "pip install" not in make(copy, "--dry-run", target)
    os.utime(copy / "pyproject.toml", (2**31, 2**31))
    assert "pip install" in make(copy, "--dry-run", target)


def test_make_alone_lists_the_targets_by_who_needs_them(copy):
    said = make(copy)
    assert re.findall(r"(?m)^\w.*$", said) == [
        "for learners",
        "for authors of puzzles",
        "for this repository",
    ]
    targets = set(re.findall(r"(?m)^  ([a-z-]+) ", said))
    assert {"lab", "test", "test-colab", "build", "verify", "bench", "lint"} <= targets


def test_a_learners_folder_and_the_environments_are_git_ignored():
    lines = (repository.ROOT / ".gitignore").read_text().splitlines()
    assert {"/my/", ".venv*"} <= set(lines)
