"""Learner notebooks and solved ones: built from one text, and run as people and CI run them."""

import ast
import json
import os
import re
import subprocess
import sys
import types
from functools import cache
from pathlib import Path

import nbclient
import nbformat
import pytest
import sample

import puzzles
from puzzles import _regions
from puzzles._author import cells as rung_text
from puzzles._author import leaks, repository
from puzzles._author import notebook as builder
from puzzles._ladders import ladder_module
from puzzles._puzzle import Puzzle

ROOT = repository.ROOT
TESTS = Path(__file__).parents[1]
LADDERS = puzzles.ladders()
RUNGS = [puzzle for name in LADDERS for puzzle in puzzles.ladder(name)]
# Notebooks are solved on the JAX that Colab has, each of them; on the newest, where every solution
# is judged beside its mistakes, one in four.
SOLVED = LADDERS if sample.PARTS > 1 else sample.share(LADDERS, 4)


@pytest.fixture(scope="module")
def learner():
    return {name: builder.learner_notebook(name) for name in LADDERS}


@pytest.fixture(scope="module")
def solved():
    return {name: builder.solved_notebook(name) for name in LADDERS}


def code(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def of_rungs(notebook, *names):
    """The notebook with the setup cell and the cells of these rungs only."""
    kept = [c for c in notebook.cells if c.id.rsplit("-", 1)[0] in ("setup", *names)]
    return nbformat.NotebookNode({**notebook, "cells": kept})


# What is in them


@pytest.mark.parametrize("name", LADDERS)
def test_a_rebuild_gives_the_same_bytes(name, learner):
    again = builder.dumps(builder.learner_notebook(name))
    assert again == builder.dumps(learner[name])
    assert again.endswith("}\n")
    assert "\r" not in again


def test_committed_files_are_up_to_date():
    assert builder.out_of_date() == []


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
    for rung in ladder_module(name).RUNGS:
        own = [i for i in ids if re.fullmatch(rf"{rung}-(\d+|hints)", i)]
        assert own == [f"{rung}-{n}" for n in range(1, len(own))] + [f"{rung}-hints"]
    without_hints = [i for i in ids if not i.endswith("-hints")]
    assert [cell.id for cell in solved[name].cells] == without_hints


@pytest.mark.parametrize("name", LADDERS)
def test_rungs_are_numbered_in_order_and_checked_once(name, learner, solved):
    rungs = list(ladder_module(name).RUNGS)
    for notebook in (learner[name], solved[name]):
        text = "\n".join(cell.source for cell in notebook.cells)
        headings = re.findall(r"^## (\d+)\. (\w+): ", text, re.MULTILINE)
        assert headings == [(str(n), rung) for n, rung in enumerate(rungs, 1)]
        assert re.findall(r"^check\((\w+)\)$", text, re.MULTILINE) == rungs


@pytest.mark.parametrize("name", LADDERS)
def test_solution_marks_and_author_cells_stay_behind(name, learner, solved):
    for notebook in (learner[name], solved[name]):
        text = "\n".join(cell.source for cell in notebook.cells)
        assert _regions.BEGIN not in text
        assert _regions.END not in text
        assert "PUZZLE = " not in text
        assert "Mistake(" not in text


@pytest.mark.parametrize("puzzle", RUNGS, ids=lambda p: p.name)
def test_no_cell_of_a_rung_shows_a_line_of_its_solution(puzzle):
    assert leaks.leaks(puzzle) == []


@pytest.mark.parametrize("puzzle", RUNGS, ids=lambda p: p.name)
def test_each_rung_has_a_gap_or_a_bug_and_hints_folded_up(puzzle, learner):
    own = re.compile(rf"{puzzle.name}-(\d+|hints)")  # a ladder may be called like its last rung
    cells = [c for c in learner[puzzle.ladder].cells if own.fullmatch(c.id)]
    if puzzle.starter is None:
        assert any("# YOUR CODE HERE" in cell.source for cell in cells)
    hints = cells[-1].source
    assert hints.count("<summary>Hint") == len(puzzle.hints) > 0
    assert hints.count("</summary>\n\n") == len(puzzle.hints)


@pytest.mark.parametrize("name", LADDERS)
def test_the_setup_cell_is_the_same_everywhere(name, learner, solved):
    """Up to a ladder's own lines, before the import that starts JAX and at the end."""
    ladder, start = ladder_module(name), "\nfrom puzzles import INTERPRET"
    first, more = (getattr(ladder, lines, "").strip() for lines in ("SETUP_FIRST", "SETUP"))
    before, after = code(learner[LADDERS[0]])[0].split(start)
    before += f"\n{first}\n" if first else ""
    after += f"\n\n{more}" if more else ""
    assert code(learner[name])[0] == code(solved[name])[0] == before + start + after


def unnamed(folder):
    """What the Python files of a folder name and define nowhere, as ruff lists it."""
    select = ["--isolated", "--no-cache", "--quiet", "--output-format=concise", "--select=F821"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *select, str(folder)],
        capture_output=True,
        text=True,
    )
    assert done.returncode < 2, done.stderr
    return done.stdout.splitlines()


class Unannotated(ast.NodeTransformer):
    """Shapes in annotations look like names."""

    def visit_arg(self, node):
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node):
        node.returns = None
        return self.generic_visit(node)


@pytest.mark.parametrize("name", LADDERS)
def test_the_cells_of_a_rung_need_the_setup_cell_and_no_other_rung(name, solved, tmp_path):
    setup, *_ = code(solved[name])
    magic = re.compile(r"(?m)^( *)[%!].*")
    for folder, first in (("with", magic.sub(r"\1pass", setup)), ("without", "")):
        (tmp_path / folder).mkdir()
        for rung in ladder_module(name).RUNGS:
            text = "\n".join([first, *code(of_rungs(solved[name], rung))[1:]])
            plain = ast.unparse(Unannotated().visit(ast.parse(text)))
            (tmp_path / folder / f"{rung}.py").write_text(plain, encoding="utf-8")
    assert unnamed(tmp_path / "with") == []
    assert unnamed(tmp_path / "without")


def test_everything_that_names_the_repository_comes_from_its_setting(tmp_path):
    fork = "https://github.com/somebody/kernels"
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    url = repository.repository().url
    (tmp_path / "pyproject.toml").write_text(text.replace(url, fork), encoding="utf-8")
    (tmp_path / "README.md").write_bytes((ROOT / "README.md").read_bytes())
    for name, content in builder.generated(tmp_path).items():
        assert "somebody/kernels" in content, name
        assert url.removeprefix("https://github.com/") not in content, name


def test_images_are_shown_by_raw_address():
    where = repository.Repository("https://github.com/a/b", "main")
    raw = "https://raw.githubusercontent.com/a/b/main/diagrams/basics/grid.svg"
    assert where.with_images("![A grid](diagrams/basics/grid.svg)") == f"![A grid]({raw})"
    tag = '<img width="400" src="diagrams/basics/grid.svg">'
    assert where.with_images(tag) == f'<img width="400" src="{raw}">'
    assert where.with_images("see diagrams/basics/grid.svg") == "see diagrams/basics/grid.svg"


# What a builder refuses

TOY = '''"""Toy."""

import jax
from jaxtyping import Array

# %% [markdown]
# ## toy: a toy
#
# ![A toy](diagrams/toy.svg)

# %%
def toy(x: Array) -> Array:
    ### BEGIN SOLUTION
    return jax.numpy.sin(x)
    ### END SOLUTION

# %% active="ipynb"
# %timeit 1
# print(jnp.pi)

# %% tags=["author"]
from puzzles import Puzzle

PUZZLE = Puzzle(
    spec=toy, solution=toy, inputs=lambda key: (), cases=[{}], hints=["a < b"], explain=""
)
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    def build(old: str = "", new: str = "") -> list:
        assert old in TOY
        path = tmp_path / f"toy{len(list(tmp_path.iterdir()))}.py"
        path.write_text(TOY.replace(old, new) if old else TOY, encoding="utf-8")
        module = types.ModuleType("ladder.toy")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "ladder.toy", module)
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), module.__dict__)
        assert isinstance(module.PUZZLE, Puzzle)
        return rung_text.rung_cells(module.PUZZLE, 7, repository.repository())

    return build


def test_a_module_becomes_cells(toy):
    text, function, extra, hints = toy()
    assert text.source.startswith("## 7. toy: a toy\n\n![A toy](https://raw.")
    assert function.source == (
        "def toy(x: Array) -> Array:\n    ...  # YOUR CODE HERE (about 1 line)\n\ncheck(toy)"
    )
    assert (extra.source, extra.metadata) == ("%timeit 1\nprint(jnp.pi)", {})
    assert hints.source == ("<details>\n<summary>Hint 1</summary>\n\na < b\n\n</details>")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("import jax\n", "import jax\nimport scipy\n", "setup cell does not import 'scipy'"),
        ("import jax\n", "import numpy as jax\n", r"setup cell does not import 'jax' \(numpy\)"),
        ("import jax\n", "import jax\nBLOCK = 8\n", ":4: only imports may stand before"),
        ("return jax.numpy", "return os.path", ":14: os is defined neither in the setup cell"),
        (
            "# print(jnp.pi)",
            "# print((jnp.pi)",
            r":\d\d: SyntaxError: '\(' was never closed, in a",
        ),
        ("## toy: a toy", "## A toy", "must be Markdown, beginning '## toy: '"),
        ("    ### END SOLUTION\n", "", ":13: '### BEGIN SOLUTION' without"),
        (
            "### BEGIN SOLUTION\n    return jax.numpy.sin(x)\n    ### END SOLUTION",
            "return x",
            "nothing",
        ),
    ],
)
def test_a_module_that_makes_no_notebook_is_named_with_the_reason(toy, old, new, says):
    with pytest.raises(repository.BuildError, match=rf"ladder/toy\d+\.py.*{says}"):
        toy(old, new)


@pytest.mark.parametrize(
    ("old", "new", "leak"),
    [
        ("# ## toy: a toy\n", "# ## toy: a toy\n#\n# Try `return jax.numpy.sin(x)`.\n", True),
        ('"a < b"', '"write return  jax.numpy.sin(x)"', True),
        ("# print(jnp.pi)", "# y = 1\n# print(y)", False),
    ],
)
def test_a_leak_is_found_in_cells_and_hints(toy, old, new, leak):
    toy(old, new)
    found = leaks.leaks(sys.modules["ladder.toy"].PUZZLE)
    assert len(found) == leak
    assert all("`return jax.numpy.sin(x)`" in problem for problem in found)


def test_lines_that_give_nothing_away_are_no_leaks(toy):
    toy("    return jax.numpy.sin(x)\n", "    y = [\n        x,\n    ]\n    return y[0]\n")
    assert leaks.leaks(sys.modules["ladder.toy"].PUZZLE) == []


@pytest.mark.parametrize("needed", ["TITLE", "INTRO"])
def test_a_ladder_without_a_title_or_an_intro_is_named(needed, monkeypatch):
    monkeypatch.delattr(ladder_module("basics"), needed)
    with pytest.raises(repository.BuildError, match=rf"basics/__init__\.py: .* needs {needed}"):
        builder.learner_notebook("basics")


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
    """An environment for processes that run notebooks: no settings of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("PUZZLES_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return monkeypatch


@pytest.mark.slow
@pytest.mark.parametrize("name", LADDERS)
def test_run_all_on_a_fresh_notebook_reaches_the_end(name, learner, environment, tmp_path):
    notebook = nbformat.from_dict(learner[name])
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    said = {cell.id: _texts(cell) for cell in notebook.cells if cell.cell_type == "code"}
    assert said["setup"] == ""
    checks = [c.id for c in notebook.cells if re.search(r"^check\(", c.source, re.MULTILINE)]
    assert len(checks) == len(ladder_module(name).RUNGS)
    for cell in checks:
        rung = cell.rsplit("-", 1)[0]
        assert said[cell].startswith(f"· {rung}: not solved yet"), said[cell]
        assert said[cell].count("not solved yet") == 1
    if checks:
        assert f"{name}: 0 of {len(checks)} solved" in said[f"{name}-progress"]


def _texts(cell):
    """What a code cell showed, as text."""
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


@pytest.mark.slow
def test_the_setup_cell_installs_only_what_is_missing(learner, environment, tmp_path):
    setup = code(learner[LADDERS[0]])[0]
    pretences = [([], True), (["puzzles"], True), (["jaxtyping"], True), (["puzzles"], False)]
    restore = "importlib.util.find_spec = real"
    sessions = [
        [PRETEND.format(missing=missing, network=network), setup, restore]
        for missing, network in pretences
    ]
    *installed, offline = [cells[1] for cells in ipython(sessions, tmp_path)]
    assert [cell["error"] for cell in installed] == [None] * 3
    install = f"pip install -q {repository.repository().install}\n"
    assert [cell["shown"] for cell in installed] == ["", install, install]
    assert offline["error"].startswith("AssertionError('not installed: is there a network?")


def ipython(sessions, folder):
    """What each cell of each session showed and raised."""
    done = subprocess.run(
        [sys.executable, TESTS / "run_cells.py"],
        input=json.dumps(sessions),
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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


@cache
def solved_run(name, folder):
    """Outcomes of a solved ladder, cell by cell, then of some rungs alone in an empty namespace.

    One kernel runs both, since it compiles a program once; what nbval said comes with them.
    """
    (path,) = builder.write_solved(folder, names=(name,))
    whole = nbformat.read(path, as_version=4)
    alone = [of_rungs(whole, rung).cells for rung in sample.some(ladder_module(name).RUNGS, 2)]
    fresh = nbformat.v4.new_code_cell("%reset -f", id="reset")
    cells = [cell for rung in alone for cell in (fresh, *rung)]
    numbered = [nbformat.from_dict({**c, "id": f"alone-{n}"}) for n, c in enumerate(cells)]
    both = nbformat.NotebookNode({**whole, "cells": [*whole.cells, *numbered]})
    path.write_text(builder.dumps(both), encoding="utf-8")
    outcomes, text = nbval(folder, PUZZLES_STRICT="1")
    assert len(outcomes) == len(code(whole)) + sum(c.cell_type == "code" for c in cells), text
    first = len(code(whole))
    together = {cell: outcome for (_, cell), outcome in outcomes.items() if cell < first}
    return together, {c: o for (_, c), o in outcomes.items() if c >= first}, text


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each ladder, the same for all tests of this module."""
    return {name: tmp_path_factory.mktemp(f"solved_{name}") for name in LADDERS}


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("name", SOLVED)
def test_solved_notebooks_pass_in_strict_mode(name, folders, environment):
    together, _, text = solved_run(name, folders[name])
    assert set(together.values()) == {"PASSED"}, text


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("name", SOLVED)
def test_a_puzzle_can_be_solved_alone_after_the_setup_cell(name, folders, environment):
    _, alone, text = solved_run(name, folders[name])
    assert set(alone.values()) == {"PASSED"}, text


@pytest.mark.slow
def test_a_broken_solution_and_an_unsolved_puzzle_fail_in_strict_mode(
    learner, solved, environment, tmp_path
):
    puzzle = puzzles.find("add_ten")
    wrong = puzzle.mistakes[0]
    fine, broken = of_rungs(solved["basics"], "add_ten"), of_rungs(solved["basics"], "add_ten")
    broken = nbformat.from_dict(json.loads(json.dumps(broken)))
    cell = next(c for c in broken.cells if "check(add_ten)" in c.source)
    assert wrong.old in cell.source
    cell.source = cell.source.replace(wrong.old, wrong.new)
    unsolved = of_rungs(learner["basics"], "add_ten")
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name, notebook in {"fine": fine, "broken": broken, "unsolved": unsolved}.items():
        (folder / f"{name}.ipynb").write_text(builder.dumps(notebook), encoding="utf-8")
    outcomes, text = nbval(folder, PUZZLES_STRICT="1")
    failed = {file for (file, _), outcome in outcomes.items() if outcome != "PASSED"}
    assert failed == {"broken.ipynb", "unsolved.ipynb"}, text
    assert wrong.says in text
    assert "not solved yet" in text
