"""An author's first steps: the scaffold, a renamed fork, a ladder from another package."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import sample
from planted import Plant, clone, ipython

import puzzles
from puzzles import __main__ as cli
from puzzles import _ladders
from puzzles._author import proof, repository, review, scaffold

pytestmark = pytest.mark.newest  # JAX changes nothing here

ROOT = repository.ROOT
CPU = {"JAX_PLATFORMS": "cpu"}
GUIDE = (ROOT / "docs" / "authoring.md").read_text(encoding="utf-8")


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def _code(notebook: Path) -> list[str]:
    cells = json.loads(_text(notebook))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _session(packages: str, folder: Path, cells: list[str]) -> list[dict]:
    """The output of each cell, run one after another with `packages` on Python's path."""
    return ipython([cells], folder, {**os.environ, "PYTHONPATH": packages, **CPU})[0]


# A ladder that another package brings


def test_a_ladder_of_another_package_that_does_not_load_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = importlib.metadata.EntryPoint("rockets", "no_such_module", _ladders.ENTRY_POINTS)
    monkeypatch.setattr(_ladders.importlib.metadata, "entry_points", lambda group: [entry])
    says = r"the ladder 'rockets' of another package cannot be loaded: .*No module named 'no_such_m"
    with pytest.warns(UserWarning, match=says):
        assert list(_ladders._brought_ladders()) == []


def test_a_scaffolded_project_is_complete_and_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "acme_kernels"
    written = scaffold.new_project("acme_kernels", "layer_norm", tmp_path)
    assert sorted(path.relative_to(project).as_posix() for path in written) == [
        name for name in PROJECT if not name.endswith((".svg", ".ipynb"))
    ]
    monkeypatch.syspath_prepend(project)
    module = importlib.import_module("acme_kernels.layer_norm")
    monkeypatch.setattr(_ladders, "_ladder_modules", lambda: {"layer_norm": module})
    monkeypatch.chdir(project)
    assert cli.main(["build"]) == cli.main(["build", "--check"]) == 0
    complete(project)
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_kernels"]:
        del sys.modules[name]


PROJECT = [
    ".github/workflows/ci.yml",
    ".gitignore",
    "Makefile",
    "README.md",
    "acme_kernels/__init__.py",
    "acme_kernels/layer_norm/__init__.py",
    "acme_kernels/layer_norm/layer_norm_warm_up.py",
    "acme_kernels/layer_norm/layer_norm_warm_up.toml",
    "diagrams/draw.py",
    "diagrams/layer_norm/layer_norm_warm_up.svg",
    "layer_norm.ipynb",
    "pyproject.toml",
]


def complete(project: Path) -> None:
    """A project that was built has these files, and each of them its own names."""
    found = (p.relative_to(project).as_posix() for p in project.rglob("*") if p.is_file())
    made = sorted(n for n in found if not re.search(r"\.venv/|\.proofs/|__pycache__", n))
    assert made == PROJECT
    assert "my_" not in "".join(_text(project / name) for name in made)
    readme = _text(project / "README.md")
    assert "| **Layer norm: what this ladder leads to** | 1 | [![Open in Colab]" in readme
    assert (
        "\n1 ladder, 1 puzzle, 4 known mistakes that the checker recognises, and 3 other" in readme
    )
    setup, *_ = _code(project / "layer_norm.ipynb")
    assert 'find_spec("acme_kernels") and find_spec("puzzles")' in setup
    assert "git+https://github.com/your-name/acme_kernels@main" in setup


# What `new` refuses


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("ladder", "basics"), "there is a ladder called 'basics' already: choose another name"),
        (("ladder", "Layer-Norm"), "use lower case and underscores, as in 'layer_norm'"),
        (
            ("ladder", "lambda"),
            "'lambda' cannot name a Python function as this project writes them",
        ),
        (("ladder", "rockets", "add_ten"), "the ladder basics has a puzzle called 'add_ten'"),
        (("puzzle", "basics", "add_ten"), "the ladder basics has a puzzle called 'add_ten'"),
        (("puzzle", "basisc", "x"), "no ladder is called 'basisc'; did you mean 'basics'?"),
        (("puzzle", "basics", "_audits"), "cannot name a Python function"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    names: tuple[str, ...], says: str, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["new", *names]) == 1
    assert says in capsys.readouterr().err


def test_a_project_without_its_package_is_told_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pallas-puzzles]\nbranch = 'main'\n")
    with pytest.raises(repository.BuildError, match=r"is not a Python package: name yours as"):
        scaffold.new_ladder("rockets", tmp_path)


def test_a_ladder_of_nobody_cannot_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pallas-puzzles]\nbranch = 'main'\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["build"]) == 1
    assert "install this project (pip install -e .), so that its" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("front", "after"),
    [
        ("PUZZLES = ()\n", 'PUZZLES = (\n    "new",\n)\n'),
        ('PUZZLES = ("a",)\nX = 1\n', 'PUZZLES = (\n    "a",\n    "new",\n)\nX = 1\n'),
    ],
)
def test_a_puzzle_is_added_as_the_last(front: str, after: str) -> None:
    assert scaffold.with_puzzle(front, "new") == after
    with pytest.raises(repository.BuildError, match=r"add 'new' yourself"):
        scaffold.with_puzzle("X = 1\n", "new")


def test_a_ladder_of_another_package_is_entered_where_others_are() -> None:
    table = '[project.entry-points."pallas_puzzles.ladders"]\n'
    one = scaffold.with_entry_point("[project]\n", "norms", "acme")
    assert one == f'[project]\n\n{table}norms = "acme.norms"\n'
    two = scaffold.with_entry_point(f"{one}\n[tool.x]\n", "scans", "acme")
    entered = tomllib.loads(two)["project"]["entry-points"]["pallas_puzzles.ladders"]
    assert entered == {"norms": "acme.norms", "scans": "acme.scans"}


def test_a_copy_has_its_own_name_shows_the_same_picture_and_holds_as_the_puzzle_does(
    plant: Plant,
) -> None:
    example, text = (scaffold.puzzle_text("toy_warm_up", like) for like in (None, "row_sum"))
    record = scaffold.puzzle_text("toy_warm_up", "row_sum", suffix=".toml")
    assert text.startswith("# ✎ Still a copy of row_sum: make it yours.\n")
    assert re.findall(r"row_sum\w*", text) == ["row_sum", "row_sum"]  # in the line above, a path
    texts = [(scaffold.puzzle_text("toy_warm_up", suffix=".toml"), record), (example, text)]
    copy = plant(*texts)
    assert proof.solution_problem(copy, seeds=(0,)) is None
    assert proof.starter_problem(copy) is None
    assert [proof.mistake_problem(copy, one, seeds=(0,)) for one in copy.mistakes[:3]] == [None] * 3
    picture = "there is no image diagrams/basics/row_sum.svg: draw it, or fix the link"
    told = [problem.split(": ", 1)[1] for problem in review.text_problems(copy)]
    assert told == [picture]  # not in toy


def test_what_is_bare_has_one_comment_left_to_do() -> None:
    bare = scaffold.puzzle_text("moon", bare=True)
    assert re.findall("✎.*", bare) == ["✎ Still the scaffold's example: make it yours."]
    assert "One new idea; every word" not in bare
    assert "#            128 columns  128 columns\n" in bare
    ast.parse(bare)


def test_where_the_package_is_from_is_known_without_its_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = repository.upstream()
    assert here == repository.repository()
    monkeypatch.setattr(repository, "ROOT", tmp_path)
    assert repository.upstream() == repository.Repository(here.url, "HEAD")


# The guide


def commands() -> list[str]:
    """Every command of the guide for authors, without its comment."""
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_map_is_short_and_the_agents_file_points_to_it() -> None:
    assert 40 <= len((ROOT / "CLAUDE.md").read_text(encoding="utf-8").splitlines()) <= 80
    assert os.readlink(ROOT / "AGENTS.md") == "CLAUDE.md"
    assert len(commands()) >= 10


def run(folder: Path, *command: str, path: Path | None = None, **settings: str) -> str:
    """The output of a command, which must succeed. `path`: the first folder of Python's path."""
    own = {"PYTHONPATH": str(path or folder), **CPU, **settings}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@sample.drill
def test_both_scaffolds_go_from_nothing_to_green_by_the_guides_own_commands(
    tmp_path: Path,
) -> None:
    """In their order; a clone's `make` is a dry run, since it would install environments."""
    fork, site = tmp_path / "fork", tmp_path / "site"
    for name in clone():
        (fork / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, fork / name, follow_symlinks=False)
    folder, said = fork, ""
    packages = os.pathsep.join(map(str, (tmp_path / "acme_kernels", site, fork)))
    _python(fork / ".venv-test", str(fork))
    settings = {**os.environ, "NAMES": "--quick"}  # for the project; here `verify` compiles
    for command in commands():
        words = shlex.split(command)
        if words[0] == "cd":
            folder = (folder / words[1]).resolve()
            _install(folder, site, fork)
            _python(folder / ".venv", packages)
            continue
        if words[0] == "make" and folder == fork:
            words.insert(1, "--dry-run")
        done = subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True)
        left = 2 if "verify" in words else 0  # the scaffold's comments
        assert done.returncode == left, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "BAD" not in done.stdout
        said += f"$ {command}\n{done.stdout}"
    assert re.search(
        r"^\[1/1\] ok  reductions/row_max .*mistakes 4/4 .*alternatives 3/3", said, re.M
    )
    assert "row_max.py:3: left undone: Say in the line above what this puzzle teaches." in said
    assert "reductions/__init__.py:3: left undone: Write the title" in said
    assert re.search(
        r"^    pyproject.toml:\d+: left undone: Write your repository's address", said, re.M
    )
    run(fork, "-m", "puzzles", "build", "--check")
    solved = tmp_path / "solved"
    run(fork, "-c", SOLVE.format(folder=str(solved)))
    nbval = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120", "-p", "no:python"]
    config = ["-p", "no:cacheprovider", "-c", os.devnull, "--color=no", "-q"]
    notebook = str(solved / "reductions.ipynb")
    run(fork, "-m", "pytest", *nbval, *config, notebook, PUZZLES_STRICT="1")
    cells = _code(fork / "reductions.ipynb")
    shown = _session(str(fork), tmp_path, cells)
    assert [cell["error"] for cell in shown] == [None] * len(cells)
    assert sum("not solved yet" in cell["shown"] for cell in shown) >= 2
    assert f"\n{len(puzzles.ladders()) + 1} ladders, " in _text(fork / "README.md")

    project = tmp_path / "acme_kernels"
    assert "[1/1] ok  layer_norm/layer_norm_warm_up " in said
    complete(project)
    cells = _code(project / "layer_norm.ipynb")
    solved = [cell.replace("...  # YOUR CODE HERE (about 1 line)", ANSWER) for cell in cells]
    shown = _session(packages, tmp_path, [*solved, "check(add_ten := find('add_ten').solution)"])
    assert [cell["error"] for cell in shown] == [None] * len(shown)
    assert any(cell["shown"].startswith("✓ layer_norm_warm_up: solved") for cell in shown)
    assert "✓ add_ten: solved" in shown[-1]["shown"]


ANSWER = "o_ref[...] = x_ref[...] * 2"
SOLVE = """
from pathlib import Path
from puzzles._author import notebook
text = notebook.dumps(notebook.built("reductions", solved=True))
notebook.write(Path({folder!r}), {{"reductions.ipynb": text}})
"""


def _python(folder: Path, packages: str) -> None:
    """This Python as an environment of a project, so that nothing has to be installed."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / ".installed").touch()


def _install(project: Path, site: Path, fork: Path) -> None:
    """An editable installation: pip's metadata of a project, and a path to its source."""
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    run(project, *install, str(site), str(project), path=fork)
    shutil.rmtree(site / project.name)


@pytest.mark.parametrize(
    "guide", sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")}), ids=lambda path: path.name
)
def test_a_guide_names_files_and_targets_that_are_there(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    for name in re.findall(r"`((?:puzzles|tests|diagrams|docs|\.ci)/[\w./]+\.\w+)`", text):
        assert "NAME" in name or (ROOT / name).exists(), name
    for name in re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", prose):
        assert (guide.parent / name).exists(), name
    for name in re.findall(r"`(_\w+)\.py`", text):
        assert (ROOT / "puzzles" / f"{name}.py").exists(), name
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    targets.add("test-jax-newest")  # of the pattern rule for versions of JAX
    for name in re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", text, re.M):
        assert "".join(name) in targets, name
