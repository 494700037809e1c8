"""The wheel alone, as on Colab: no extras, an empty folder, no repository in sight."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import sample
from hatchling.builders.wheel import WheelBuilder
from planted import ipython

import puzzles
from puzzles._author import notebook, repository

PLUGIN = "pytest_pallas_puzzles.py"
COLAB_JAX, COLAB_IPYTHON = "0.7.2", "7.34.0"
EXTRAS = ("jupytext", "nbformat", "nbclient", "libtpu", "flatbuffers", "jupyterlab", "pytest")


def environment(folder, wheel):
    """Python of a fresh environment with the wheel, this JAX and the IPython that goes with it."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    ipython = f"ipython=={COLAB_IPYTHON}" if jax.__version__ == COLAB_JAX else "ipython"
    packages = [wheel, f"jax=={jax.__version__}", ipython]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def code(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_the_wheel_holds_the_package_and_nothing_else():
    listed = ["git", "ls-files", "-co", "--exclude-standard", "puzzles", PLUGIN]
    done = subprocess.run(listed, cwd=repository.ROOT, capture_output=True, text=True, check=True)
    there = {name for name in done.stdout.splitlines() if (repository.ROOT / name).exists()}
    assert {"puzzles/basics/add_ten.py", PLUGIN, "puzzles/_author/_project/.gitignore"} <= there
    files = WheelBuilder(str(repository.ROOT)).recurse_included_files()
    assert {one.distribution_path for one in files} == there


@sample.drill
def test_the_wheel_needs_no_extras_to_run_the_notebook_and_judge_a_solution(tmp_path):
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path]
    subprocess.run([sys.executable, "-m", "pip", *build, repository.ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    python, folder = environment(tmp_path / "environment", wheel), tmp_path / "empty"
    folder.mkdir()
    probe = (
        "import importlib.util as u, json, puzzles;"
        f"here = [n for n in {EXTRAS!r} if u.find_spec(n)];"
        "print(json.dumps([puzzles.__file__, here]))"
    )
    alone = [
        python,
        "-I",
    ]  # so that the current folder and PYTHONPATH are not importable
    settings = {"JAX_PLATFORMS": "cpu", "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*alone, "-c", probe], capture_output=True, check=True, cwd=folder, env=settings
    )
    file, here = json.loads(done.stdout)
    assert Path(file).is_relative_to(tmp_path / "environment")
    assert here == []

    puzzle = puzzles.find("add_ten")
    mistake = puzzle.mistakes[0]
    learner = code(notebook.built("basics"))
    good = next(c for c in code(notebook.built("basics", solved=True)) if "check(add_ten)" in c)
    bad = mistake.apply(good)
    attempts = [bad, good, "hint(add_ten)", "solution(add_ten)", "progress()"]
    session = [*learner, *attempts]
    (shown,) = ipython([session], folder, settings, alone)
    assert [cell["error"] for cell in shown] == [None] * len(session), shown
    said = [cell["shown"] for cell in shown]
    assert said[0].startswith("Pallas Puzzles "), "the setup cell installs nothing if it need not"
    assert "\n".join(said[: len(learner)]).count("not solved yet") == len(puzzles.ladder("basics"))
    wrong, right, hint, solution, progress = said[len(learner) :]
    assert wrong.startswith("✗ add_ten: the values are wrong")
    assert mistake.says in wrong
    assert right.startswith("✓ add_ten: solved")
    assert puzzle.hints[0] in hint
    assert "o_ref[...] = x_ref[...] + 10" in solution
    assert f"basics: 1 of {len(puzzles.ladder('basics'))} solved" in progress
