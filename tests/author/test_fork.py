"""What an author meets: the scaffold, a fork under another name, a ladder from another package."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import sample
from planted import Rung

import puzzles
from puzzles import __main__ as cli
from puzzles._author import gate, notebook, proof, repository, scaffold

pytestmark = pytest.mark.newest  # JAX changes nothing here

ROOT = repository.ROOT
TESTS = Path(__file__).parents[1]
FORK = "somebody/kernels"
GUIDE = (ROOT / "CLAUDE.md").read_text(encoding="utf-8")


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    """What a clone of the repository holds, with what is not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    folder = tmp_path / "fork"
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def run(
    folder: Path, *command: str, path: Path | None = None, status: int = 0, **settings: str
) -> str:
    """What a command prints; it must succeed. `path` is where Python finds packages first."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(path or folder),
            "JAX_PLATFORMS": "cpu",
            **settings,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fails(folder: Path, *command: str, path: Path | None = None) -> str:
    """What `python -m puzzles` prints in a project where it must fail."""
    done = subprocess.run(
        [sys.executable, "-m", "puzzles", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path or folder), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    return done.stdout + done.stderr


def retarget(folder: Path) -> None:
    """Do what the guide says: edit one setting."""
    path = folder / "pyproject.toml"
    url = repository.repository().url
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(url, f"https://github.com/{FORK}"), encoding="utf-8")


@pytest.mark.slow
def test_a_fork_under_another_name_shows_no_trace_of_ours(fork: Path) -> None:
    ours = repository.repository().slug
    retarget(fork)
    run(fork, "-m", "puzzles", "build")
    traces = [
        path.relative_to(fork).as_posix()
        for path in sorted(fork.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != "LICENSE"
        if {ours, ours.split("/")[0]} & {*re.findall(r"[\w-]+/[\w-]+|[\w-]+", _text(path))}
    ]
    assert traces == []
    for name in ("README.md", *(f"{n}.ipynb" for n in notebook.ladders())):
        assert FORK in _text(fork / name), name


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


# The drill: what CLAUDE.md tells an author to do, from a clone to a learner's notebook

KERNEL = (
    ("    return 2 * x\n", "    return x * jax.nn.sigmoid(x)\n"),
    (
        "    o_ref[...] = x_ref[...] * 2\n",
        "    x = x_ref[...]\n    o_ref[...] = x / (1 + jnp.exp(-x))\n",
    ),
    (
        "# Fill the one with twice the other.",
        "# Fill the one with the other's SiLU, x / (1 + e⁻ˣ).",
    ),
    (
        "One line: the output Ref on the left, the input Ref in a product on the right.",
        "Two lines: read the block once, then a quotient with `jnp.exp` in it.",
    ),
    ("twice a matrix", "SiLU of a matrix"),
)


WAYS = sample.some(["new ladder", "both scaffolds"])  # each takes half a minute


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.skipif("new ladder" not in WAYS, reason="the other way is this sample's")
def test_the_fork_drill_from_a_new_ladder_to_a_learners_notebook(
    fork: Path, tmp_path: Path
) -> None:
    retarget(fork)
    said = run(fork, "-m", "puzzles", "new", "ladder", "activations")
    assert said.splitlines() == [
        "wrote puzzles/activations/__init__.py",
        "wrote puzzles/activations/activations_warm_up.py",
        "wrote tests/facts/activations.toml",
        "next: python -m puzzles verify activations",
    ]
    said = run(fork, "-m", "puzzles", "new", "puzzle", "activations", "silu", "--bare")
    assert said.splitlines()[-1] == "next: python -m puzzles verify activations/silu"
    assert fails(fork, "build", "--check").startswith("out of date: ")

    # a real kernel; its mistakes are edits of text that is gone, and the gate says so
    path = fork / "puzzles" / "activations" / "silu.py"
    text = path.read_text(encoding="utf-8")
    for old, new in KERNEL:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    said = fails(fork, "verify", "--quick", "activations/silu")
    assert "mistake 'adds two' cannot be made: occurs 0 times instead of once" in said
    assert "silu.py:1: left undone: Still the scaffold's example: make it yours." in said
    text = text.split("\n", 1)[1]
    first, last = text.index("        Mistake("), text.index("    ],\n    alternatives=[")
    text = text[:first] + MISTAKES + text[last:]
    first, last = text.index("        Alternative("), text.index("    ],\n    audit=audit")
    text = text[:first] + ALTERNATIVES + text[last:]
    path.write_text(text, encoding="utf-8")
    said = run(fork, "-m", "puzzles", "verify", "--quick", "activations/silu", status=2)
    assert re.search(r"^\[1/1\] ok  activations/silu .*mistakes 3/3 .*alternatives 2/2", said, re.M)
    assert "silu.py:" not in said

    # the notebooks: learner's and solved
    run(fork, "-m", "puzzles", "build")
    run(fork, "-m", "puzzles", "build", "--check")
    run(fork, "-m", "puzzles", "build", "--solved", str(tmp_path / "solved"))
    learner = _text(fork / "activations.ipynb")
    assert "YOUR CODE HERE" in learner
    assert "jnp.exp(-x)" not in learner
    nbval = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120", "-p", "no:python"]
    config = ["-p", "no:cacheprovider", "-c", os.devnull, "--color=no", "-q"]
    notebook = str(tmp_path / "solved" / "activations.ipynb")
    run(fork, "-m", "pytest", *nbval, *config, notebook, PUZZLES_STRICT="1")

    # the wheel alone gives a learner their notebook
    target = tmp_path / "site"
    build = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    run(fork, *build, str(fork))
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(target)
    cells = _code(fork / "activations.ipynb")
    shown = _session(str(target), tmp_path, cells)
    assert [cell["error"] for cell in shown] == [None] * len(cells)
    assert sum("not solved yet" in cell["shown"] for cell in shown) == 2
    ours = len(puzzles.ladders())
    assert f"\n{ours + 1} ladders, " in _text(fork / "README.md")


def _code(notebook: Path) -> list[str]:
    cells = json.loads(_text(notebook))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _session(packages: str, folder: Path, cells: list[str]) -> list[dict]:
    """What each cell showed when they ran one after another, with `packages` on Python's path."""
    done = subprocess.run(
        [sys.executable, TESTS / "run_cells.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": packages, "JAX_PLATFORMS": "cpu"},
        input=json.dumps([cells]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]


MISTAKES = """\
        Mistake(
            "forgets the minus sign",
            old="jnp.exp(-x)",
            new="jnp.exp(x)",
            says="e⁻ˣ is small where x is large, so that SiLU leaves large x alone",
        ),
        Mistake(
            "gives the sigmoid alone",
            old="x / (1 + jnp.exp(-x))",
            new="1 / (1 + jnp.exp(-x))",
            says="SiLU is x times its sigmoid",
        ),
        Mistake(
            "takes the whole matrix in one step",
            old="bm, bn = 8, 128",
            new="bm, bn = M, N",
            says="cut the matrix into blocks",
            stage="work",
        ),
"""
ALTERNATIVES = """\
        Alternative(
            "multiplies by the sigmoid",
            old="x / (1 + jnp.exp(-x))",
            new="x * jax.nn.sigmoid(x)",
        ),
        Alternative(
            "knows the logistic function by its tangent",
            old="x / (1 + jnp.exp(-x))",
            new="x * (0.5 + 0.5 * jnp.tanh(x / 2))",
        ),
"""


# A ladder that another package brings


@pytest.mark.slow
def test_a_ladder_of_another_package_that_does_not_load_is_a_warning(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pallas_puzzles.ladders]\nrockets = no_such_module\n")
    code = (
        "import warnings, puzzles\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    print(puzzles.ladders()[0])\n"
        "print(caught[0].message)"
    )
    packages = Path(os.pathsep.join(map(str, (tmp_path, ROOT))))
    first, warning = run(tmp_path, "-c", code, path=packages).splitlines()
    assert first == "basics"
    assert warning == (
        "the ladder 'rockets' of another package cannot be loaded: ModuleNotFoundError(\"No module "
        "named 'no_such_module'\"). Mend or remove its entry point in the group "
        "pallas_puzzles.ladders."
    )


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
    with pytest.raises(repository.BuildError, match=r"is no Python package: name yours as"):
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
        ("RUNGS = ()\n", 'RUNGS = (\n    "new",\n)\n'),
        ('RUNGS = ("a",)\nX = 1\n', 'RUNGS = (\n    "a",\n    "new",\n)\nX = 1\n'),
    ],
)
def test_a_rung_is_added_as_the_last(front: str, after: str) -> None:
    assert scaffold.with_rung(front, "new") == after


def test_a_ladder_of_another_package_is_entered_where_others_are() -> None:
    table = '[project.entry-points."pallas_puzzles.ladders"]\n'
    one = scaffold.with_entry_point("[project]\n", "norms", "acme")
    assert one == f'[project]\n\n{table}norms = "acme.norms"\n'
    two = scaffold.with_entry_point(f"{one}\n[tool.x]\n", "scans", "acme")
    entered = tomllib.loads(two)["project"]["entry-points"]["pallas_puzzles.ladders"]
    assert entered == {"norms": "acme.norms", "scans": "acme.scans"}


def test_a_copy_has_its_own_name_shows_the_same_picture_and_holds_as_the_rung_does(
    rung: Rung,
) -> None:
    text = scaffold.rung_text("toy_warm_up", "row_sum")
    assert text.startswith("# ✎ Still a copy of row_sum: make it yours.\n")
    assert re.findall(r"row_sum\w*", text) == ["row_sum", "row_sum"]  # in the line above, a path
    copy = rung((scaffold.rung_text("toy_warm_up"), text))
    assert proof.solution_problem(copy, seeds=(0,)) is None
    assert proof.starter_problem(copy) is None
    assert [proof.mistake_problem(copy, one, seeds=(0,)) for one in copy.mistakes[:3]] == [None] * 3
    picture = "there is no image diagrams/basics/row_sum.svg: draw it, or mend the link"
    assert [problem.split(": ", 1)[1] for problem in gate._text(copy)] == [picture]  # not in toy


def test_what_is_bare_has_one_comment_left_to_do() -> None:
    bare = scaffold.rung_text("moon", bare=True)
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


def test_a_front_page_without_rungs_is_left_to_its_author() -> None:
    with pytest.raises(repository.BuildError, match=r"add 'new' yourself"):
        scaffold.with_rung("X = 1\n", "new")


# The guide


def commands() -> list[str]:
    """Every command of CLAUDE.md, without what is optional or said about it."""
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_guide_is_short_and_the_agents_file_points_to_it() -> None:
    assert 60 <= len(GUIDE.splitlines()) <= 170
    assert os.readlink(ROOT / "AGENTS.md") == "CLAUDE.md"
    assert len(commands()) >= 10


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.skipif("both scaffolds" not in WAYS, reason="the other way is this sample's")
def test_both_scaffolds_go_from_nothing_to_green_by_the_guides_own_commands(
    fork: Path, tmp_path: Path
) -> None:
    """In their order; a clone's `make` says what it would do, since it makes environments."""
    site, folder, said = tmp_path / "site", fork, ""
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
    assert "row_max.py:3: left undone: Say in the line above what this rung teaches." in said
    assert "reductions/__init__.py:3: left undone: Write the title" in said
    assert re.search(
        r"^    pyproject.toml:\d+: left undone: Write your repository's address", said, re.M
    )
    run(fork, "-m", "puzzles", "build", "--check")

    project = tmp_path / "acme_kernels"
    assert "[1/1] ok  layer_norm/layer_norm_warm_up " in said
    found = (p.relative_to(project).as_posix() for p in project.rglob("*") if p.is_file())
    made = sorted(name for name in found if not re.search(r"\.venv/|__pycache__", name))
    assert made == [
        ".github/workflows/ci.yml",
        ".gitignore",
        "Makefile",
        "README.md",
        "acme_kernels/__init__.py",
        "acme_kernels/layer_norm/__init__.py",
        "acme_kernels/layer_norm/layer_norm_warm_up.py",
        "diagrams/draw.py",
        "diagrams/layer_norm/layer_norm_warm_up.svg",
        "layer_norm.ipynb",
        "pyproject.toml",
        "tests/facts/layer_norm.toml",
    ]
    readme = _text(project / "README.md")
    assert "| **Layer norm: what this ladder leads to** | 1 | [![Open in Colab]" in readme
    assert "\n1 ladder, 1 rung, 4 mistakes, all rejected, and 3 other correct solutions" in readme
    assert "my_" not in "".join(_text(project / name) for name in made)

    cells = _code(project / "layer_norm.ipynb")
    assert 'find_spec("acme_kernels") and find_spec("puzzles")' in cells[0]
    assert "git+https://github.com/your-name/acme_kernels@main" in cells[0]
    solved = [cell.replace("...  # YOUR CODE HERE (about 1 line)", ANSWER) for cell in cells]
    shown = _session(packages, tmp_path, [*solved, "check(add_ten := find('add_ten').solution)"])
    assert [cell["error"] for cell in shown] == [None] * len(shown)
    assert any(cell["shown"].startswith("✓ layer_norm_warm_up: solved") for cell in shown)
    assert "✓ add_ten: solved" in shown[-1]["shown"]


ANSWER = "o_ref[...] = x_ref[...] * 2"


def _python(folder: Path, packages: str) -> None:
    """This Python as an environment of a project, where nothing has to be installed."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / ".installed").touch()


def _install(project: Path, site: Path, fork: Path) -> None:
    """As an editable installation: what pip notes of a project, and its source where it lies."""
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    run(project, *install, str(site), str(project), path=fork)
    shutil.rmtree(site / project.name)


def test_the_guide_names_files_that_are_there() -> None:
    for name in re.findall(r"`((?:puzzles|tests|diagrams|\.ci)/[\w./]+\.\w+)`", GUIDE):
        assert "NAME" in name or (ROOT / name).exists(), name
    for name in re.findall(r"`(_\w+)\.py`", GUIDE):
        assert (ROOT / "puzzles" / f"{name}.py").exists(), name
