"""Notebooks for learners and with solutions: built from one text, and run as people and CI do."""

import functools
import json
import os
import re
import subprocess
import sys
import types

import jax
import nbclient
import nbformat
import pytest
import sample
from planted import clone, ipython

import puzzles
from puzzles import _regions
from puzzles._author import cells as cells_module
from puzzles._author import notebook as builder
from puzzles._author import repository, review
from puzzles._ladders import ladder_module
from puzzles._rules import PAGE

ROOT = repository.ROOT
LADDERS = puzzles.ladders()
PUZZLES = [puzzle for name in LADDERS for puzzle in puzzles.ladder(name)]
# On Colab's JAX all are run; on the newest one in turn solved, and a fresh one by `make graduate`.
ON_COLAB = sample.PARTS > 1
IN_TURN = LADDERS if ON_COLAB else sample.share(LADDERS, 4)


@pytest.fixture(scope="module")
def learner():
    """Those that are committed: that they are what `build` writes, one test proves."""
    paths = {name: ROOT / f"{name}.ipynb" for name in LADDERS}
    return {name: nbformat.read(path, as_version=4) for name, path in paths.items()}


@pytest.fixture(scope="module")
def solved():
    return {name: builder.built(name, solved=True) for name in LADDERS}


def code(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def of_puzzles(notebook, *names):
    """The notebook with the setup cell and the cells of these puzzles only."""
    kept = [c for c in notebook.cells if c.id.rsplit("-", 1)[0] in ("setup", *names)]
    return nbformat.NotebookNode({**notebook, "cells": kept})


# Their contents


@pytest.mark.parametrize("name", LADDERS)
def test_notebooks_are_valid_and_hold_no_outputs(name, learner, solved):
    for notebook in (learner[name], solved[name]):
        nbformat.validate(notebook)
        assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
        assert "accelerator" not in notebook.metadata
        assert all(not cell.get("outputs") for cell in notebook.cells)
        assert all(cell.get("execution_count") is None for cell in notebook.cells)


@pytest.mark.parametrize("name", LADDERS)
def test_cell_ids_are_unique_and_say_what_a_cell_is(name, learner, solved):
    ids = [cell.id for cell in learner[name].cells]
    assert len(set(ids)) == len(ids)
    assert ids[:3] == [f"{name}-title", f"{name}-intro", "setup"]
    for puzzle in ladder_module(name).PUZZLES:
        own = [i for i in ids if re.fullmatch(rf"{puzzle}-(\d+|hints)", i)]
        assert own == [f"{puzzle}-{n}" for n in range(1, len(own))] + [f"{puzzle}-hints"]
    without_hints = [i for i in ids if not i.endswith("-hints")]
    assert [cell.id for cell in solved[name].cells] == without_hints


@pytest.mark.parametrize("name", LADDERS)
def test_solution_marks_and_author_cells_stay_behind(name, learner, solved):
    for notebook in (learner[name], solved[name]):
        text = "\n".join(cell.source for cell in notebook.cells)
        for mark in (_regions.BEGIN, _regions.END, "PUZZLE = ", "[[mistake]]"):
            assert mark not in text
        # a comment with shapes comes before the decorator of a kernel's first statement
        assert re.search(r"^ *@.*\n *#", text, re.MULTILINE) is None


@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda p: p.name)
def test_no_cell_of_a_puzzle_shows_a_line_of_its_solution(puzzle):
    assert list(cells_module.leaks(puzzle)) == []


@pytest.mark.parametrize("name", LADDERS)
def test_the_main_road_is_a_part_of_the_ladder_in_order(name, learner):
    module = ladder_module(name)
    assert [one for one in module.PUZZLES if one in module.MAIN_ROAD] == [*module.MAIN_ROAD]
    headings = [cell.source.split("\n")[0] for cell in learner[name].cells]
    starred = [one.split(":")[0].split()[-1] for one in headings if one.endswith(" ★")]
    assert starred == [*module.MAIN_ROAD]


def test_a_ladder_ends_with_the_way_on(learner):
    ids = [cell.id for cell in learner["basics"].cells]
    assert ids[-3:] == ["basics-outro", "basics-progress", "basics-examine"]
    (outro,) = (cell.source for cell in learner["basics"].cells if cell.id == "basics-outro")
    assert set(re.findall(r"`(\w+)\.ipynb`", outro)) == {*LADDERS} - {"basics"}


@pytest.mark.parametrize("name", LADDERS)
def test_the_last_cell_examines_a_launch(name, learner):
    *lines, call = learner[name].cells[-1].source.splitlines()
    names = {**vars(puzzles), "jax": jax, "jnp": jax.numpy, "functools": functools}
    exec("\n".join(lines), names)
    examination = eval(call, names)
    assert examination.launches
    assert examination.code == 0, str(examination)


@pytest.mark.newest
def test_the_project_fits_together_and_only_its_setting_names_the_repository(tmp_path):
    """The committed notebooks are those that `build` writes; in a fork, they name only the fork."""
    assert [problem for name in LADDERS for problem in review.ladder_problems(name)] == []
    assert list(review.project_problems(ROOT, LADDERS)) == []
    fork = "https://github.com/somebody/kernels"
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    url = repository.repository().url
    (tmp_path / "pyproject.toml").write_text(text.replace(url, fork), encoding="utf-8")
    (tmp_path / "README.md").write_bytes((ROOT / "README.md").read_bytes())
    built = builder.generated(tmp_path, IN_TURN)
    for name, content in built.items():
        assert "somebody/kernels" in content, name
        assert url.removeprefix("https://github.com/") not in content, name
    owner = repository.repository().slug.split("/")[0].encode()
    files = [ROOT / name for name in clone() if not (ROOT / name).is_symlink()]
    naming = {path.relative_to(ROOT).as_posix() for path in files if owner in path.read_bytes()}
    notebooks = (f"{name}.ipynb" for name in LADDERS)
    assert naming <= {"CITATION.cff", "LICENSE", "pyproject.toml", "README.md", PAGE, *notebooks}


def test_a_module_becomes_cells(plant):
    puzzle = plant(
        ("# Fill the one", "# ![A toy](diagrams/toy.svg)\n# Fill the one"),
        ("# %%\n# ✎ Write the ref", '# %% active="ipynb"\n# %timeit 1\n\n# %%\n# ✎ Write the ref'),
    )
    text, _, extra, function, hints = cells_module.puzzle_cells(puzzle, 7, repository.repository())
    assert text.source.startswith("## 7. toy_warm_up: twice a matrix\n\nA kernel sees one block")
    assert "![A toy](https://raw." in text.source
    assert (extra.source, extra.metadata) == ("%timeit 1", {})
    gap = "def toy_warm_up_kernel(x_ref, o_ref):\n    ...  # YOUR CODE HERE (about 1 line)\n"
    assert gap in function.source
    assert function.source.endswith("\n\ncheck(toy_warm_up)")
    first, _, third = hints.source.split("\n\n</details>\n\n")
    assert first == f"<details>\n<summary>Hint 1</summary>\n\n{puzzle.hints[0]}"
    assert third.endswith("</details>")


@pytest.mark.parametrize(
    ("shown", "secret", "leak"),
    [
        ("Try `return  h`.", "return h", True),
        ("return h  # done", "return h", True),
        ("return hh", "return h", False),
        ("x = h.y", "x = h", False),
        ("f(grid=(4, 2), x=1)", "grid=(4, 2),", True),
    ],
)
def test_a_line_is_shown_as_a_whole_and_not_as_a_part_of_another(shown, secret, leak):
    assert cells_module._shows(types.SimpleNamespace(source=shown), secret) == leak


def test_a_line_without_a_name_of_its_own_gives_nothing_away():
    lines = ["else:", "])", "y = [", "x,", "return _"]
    assert not any(map(cells_module._says_something, lines))
    assert cells_module._says_something("y = [x]")


# Refusals of the builder


@pytest.mark.parametrize("url", ["https://gitlab.com/a/b", "https://github.com/a"])
def test_a_repository_that_colab_cannot_open_is_refused(url):
    with pytest.raises(repository.BuildError, match="Repository"):
        repository.Repository(url, "main").badge("basics")


def test_an_installed_copy_says_that_it_needs_the_repository(tmp_path):
    with pytest.raises(repository.BuildError, match="a clone of the repository"):
        repository.repository(tmp_path)


# How they run


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment for processes that run notebooks, without the user's own settings."""
    for name in [name for name in os.environ if name.startswith("PUZZLES_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return monkeypatch


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("name", LADDERS if ON_COLAB or sample.ALL else [])
def test_run_all_on_a_fresh_notebook_reaches_the_end(name, learner, environment, tmp_path):
    notebook = nbformat.from_dict(learner[name])
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    said = {cell.id: _texts(cell) for cell in notebook.cells if cell.cell_type == "code"}
    greeting = f"Pallas Puzzles {puzzles.__version__}. JAX {jax.__version__} "
    assert said["setup"].startswith(greeting), said["setup"]
    assert "solved. Next: " in said["setup"]
    assert said["setup"].count("\n") <= 1
    checks = [c.id for c in notebook.cells if re.search(r"^check\(", c.source, re.MULTILINE)]
    assert len(checks) == len(ladder_module(name).PUZZLES)
    for cell in checks:
        puzzle = cell.rsplit("-", 1)[0]
        assert said[cell].startswith(f"· {puzzle}: not solved yet"), said[cell]
        assert said[cell].count("not solved yet") == 1
    if checks:
        assert f"{name}: 0 of {len(checks)} solved" in said[f"{name}-progress"]


def _texts(cell):
    """The output of a code cell, as text."""
    parts = [o.text if "text" in o else o.data.get("text/plain", "") for o in cell.outputs]
    return "".join(parts)


PRETEND = """
import importlib.util
from IPython import get_ipython

missing = set({missing!r})


def pip(line):
    print("pip", line)
    if {network}:
        missing.clear()


get_ipython().register_magic_function(pip)
real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in missing else real(name)
"""


@sample.in_turn
def test_the_setup_cell_installs_only_what_is_missing(learner, environment, tmp_path):
    setup = code(learner[LADDERS[0]])[0]
    pretences = [([], True), (["puzzles"], True), (["jaxtyping"], True), (["puzzles"], False)]
    restore = "importlib.util.find_spec = real"
    sessions = [
        [PRETEND.format(missing=missing, network=network), setup, restore]
        for missing, network in pretences
    ]
    *installed, offline = [cells[1] for cells in ipython(sessions, tmp_path, os.environ)]
    assert [cell["error"] for cell in installed] == [None] * 3
    install = f"pip install -q {repository.repository().install}\n"
    before = [cell["shown"].partition("Pallas Puzzles ")[:2] for cell in installed]
    assert before == [(lines, "Pallas Puzzles ") for lines in ("", install, install)]
    assert offline["error"].startswith("AssertionError('not installed: is there a network?")


def nbval(folder, **settings):
    """Run the notebooks in `folder`: the outcome by (file, cell number), and all the output."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env"]
        + ["--nbval-cell-timeout=120", "-p", "no:python", "-p", "no:cacheprovider"]
        + ["--color=no", "-rA", "-q", "."],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **settings},
    )
    cells = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)::Cell (\d+)", done.stdout, re.MULTILINE)
    return {(file, int(cell)): outcome for outcome, file, cell in cells}, done.stdout


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("name", IN_TURN)
def test_solved_notebooks_pass_in_strict_mode(name, environment, tmp_path):
    text = builder.dumps(builder.built(name, solved=True))
    (path,) = builder.write(tmp_path / "solved", {"solved.ipynb": text})
    outcomes, text = nbval(path.parent, PUZZLES_STRICT="1")
    assert len(outcomes) == len(code(nbformat.read(path, as_version=4))), text
    assert set(outcomes.values()) == {"PASSED"}, text


@pytest.mark.slow
def test_a_broken_solution_and_an_unsolved_puzzle_fail_in_strict_mode(
    learner, solved, environment, tmp_path
):
    wrong = puzzles.find("add_ten").mistakes[0]
    broken = of_puzzles(solved["basics"], "add_ten")
    _, *unsolved = of_puzzles(learner["basics"], "vector_add").cells
    both = json.loads(json.dumps({**broken, "cells": [*broken.cells, *unsolved]}))
    (cell,) = [c for c in both["cells"] if "check(add_ten)" in c["source"]]
    cell["source"] = wrong.apply(cell["source"])
    folder = tmp_path / "notebooks"
    folder.mkdir()
    text = builder.dumps(nbformat.from_dict(both))
    (folder / "both.ipynb").write_text(text, encoding="utf-8")
    outcomes, text = nbval(folder, PUZZLES_STRICT="1")
    assert sum(outcome != "PASSED" for outcome in outcomes.values()) == 2, text
    assert wrong.says in text
    assert "not solved yet" in text
