"""`python -m puzzles`: what it says, and what it leaves alone."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from puzzles import __main__ as cli
from puzzles import _author
from puzzles._author import commands, notebook, repository

pytestmark = pytest.mark.newest  # JAX changes nothing here

GENERATED = sorted(notebook.generated())


@pytest.fixture
def copy(tmp_path):
    """A copy of what `build` reads and writes."""
    for name in ("pyproject.toml", *GENERATED):
        shutil.copy(repository.ROOT / name, tmp_path)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repository.ROOT / "puzzles", tmp_path / "puzzles", ignore=unwanted)
    return tmp_path


def run(folder, *arguments):
    """Exit code, stdout and stderr of `python -m puzzles` in `folder`, on the package there."""
    done = subprocess.run(
        [sys.executable, "-m", "puzzles", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"},
    )
    return done.returncode, done.stdout, done.stderr


def contents(folder):
    return {p: p.read_bytes() for p in folder.glob("*.*")}


@pytest.mark.slow
def test_check_names_every_file_that_is_out_of_date_and_build_mends_them(copy):
    before = contents(copy)
    assert run(copy, "build", "--check") == (0, "", "")

    module = copy / "puzzles" / "basics" / "add_ten.py"
    module.write_text(module.read_text(encoding="utf-8").replace("Add ten to", "Add 10 to"))
    (copy / "grouped_matmul.ipynb").unlink()
    with (copy / "README.md").open("a", encoding="utf-8") as readme:
        readme.write("Prose outside the table is nobody's but the author's.\n")
    stale = contents(copy)
    code, out, err = run(copy, "build", "--check")
    assert (code, out) == (1, "")
    assert err == ("out of date: basics.ipynb, grouped_matmul.ipynb. Run python -m puzzles build\n")
    assert contents(copy) == stale

    assert run(copy, "build")[:2] == (0, "wrote basics.ipynb\nwrote grouped_matmul.ipynb\n")
    assert run(copy, "build")[:2] == (0, "everything is up to date\n")
    after = contents(copy)
    assert b"Add 10 to" in after[copy / "basics.ipynb"]
    assert after[copy / "grouped_matmul.ipynb"] == before[copy / "grouped_matmul.ipynb"]


@pytest.mark.slow
def test_solved_notebooks_go_where_they_are_asked_to(copy):
    before = contents(copy)
    code, out, _ = run(copy, "build", "--solved", "some/where")
    assert code == 0
    written = {path.name for path in (copy / "some" / "where").iterdir()}
    assert written == {name for name in GENERATED if name.endswith(".ipynb")}
    assert set(out.splitlines()) == {f"wrote some/where/{name}" for name in written}
    assert contents(copy) == before


@pytest.mark.slow
def test_a_rung_is_a_notebook_again_as_soon_as_it_is_saved(copy):
    module = copy / "puzzles" / "basics" / "add_ten.py"
    notebook.write(copy)
    # What a shell starts in the background ignores interrupts, and so would its children.
    heeded = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    watch = "from puzzles.__main__ import main; raise SystemExit(main(['build', '--watch']))"
    command = [sys.executable, "-c", f"{heeded}\n{watch}"]
    settings = {**os.environ, "PYTHONPATH": str(copy), "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, cwd=copy, env=settings, stdout=subprocess.PIPE) as watching:
        assert watching.stdout.readline() == b"everything is up to date\n"
        module.write_text(module.read_text(encoding="utf-8").replace("Add ten to", "Add 10 to"))
        assert watching.stdout.readline() == b"wrote basics.ipynb\n"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) == 0
    assert b"Add 10 to" in (copy / "basics.ipynb").read_bytes()


@pytest.mark.parametrize(("old", "new"), [("/blob/master/", "/blob/old/"), (" rungs, ", " rngs, ")])
def test_a_readme_with_an_old_table_or_count_is_out_of_date(copy, old, new):
    notebook.write(copy)
    readme = copy / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(text.replace(old, new), encoding="utf-8")
    assert notebook.out_of_date(copy) == ["README.md"]
    notebook.write(copy)
    assert readme.read_text(encoding="utf-8") == text


def test_a_readme_without_a_table_is_left_alone(copy):
    (copy / "README.md").write_text("# Mine\n", encoding="utf-8")
    assert "README.md" not in notebook.generated(copy)


@pytest.mark.parametrize("missing", ["jupytext", "nbformat"])
def test_a_missing_extra_names_the_install_line(missing, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    for module in ("puzzles._author.cells", "puzzles._author.notebook"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr(_author, "notebook")
    assert cli.main(["build"]) == 1
    said = capsys.readouterr().err
    assert said == f"error: building notebooks needs {missing}: pip install -e '.[author]'\n"


def test_a_module_that_cannot_be_built_is_one_sentence(monkeypatch, capsys):
    def broken(*_):
        raise repository.BuildError("puzzles/basics/x.py: nothing to solve")

    monkeypatch.setattr(notebook, "write", broken)
    assert cli.main(["build"]) == 1
    assert capsys.readouterr().err == "error: puzzles/basics/x.py: nothing to solve\n"


def test_a_rung_without_a_module_stops_a_build_in_one_sentence(monkeypatch, capsys):
    from puzzles._ladders import ladder_module

    monkeypatch.setattr(ladder_module("basics"), "RUNGS", ("add_ten", "gone"))
    assert cli.main(["build", "--check"]) == 1
    assert "RUNGS names 'gone', and there is no gone.py" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["bild"], ["build", "--check", "--solved", "x"]])
def test_a_wrong_command_shows_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: python -m puzzles" in capsys.readouterr().err


def test_verify_passes_the_names_on(monkeypatch):
    asked = []
    monkeypatch.setattr(_author, "verify", lambda names, *how: asked.extend([*names, *how]) or 3)
    assert cli.main(["verify", "--quick", "--fresh", "add_ten", "row_sum"]) == 3
    assert asked == ["add_ten", "row_sum", True, True]


@pytest.mark.parametrize(
    ("given", "there", "then"),
    [(None, False, "cpu"), (None, True, None), ("tpu", False, "tpu")],
)
def test_jax_looks_for_no_tpu_where_there_is_none(given, there, then, monkeypatch):
    monkeypatch.setattr(commands, "has_tpu", lambda: there)
    monkeypatch.setattr(commands.jax.config, "update", lambda *_: None)
    monkeypatch.setenv("JAX_PLATFORMS", given or "any")  # so that it is put back afterwards
    if given is None:
        monkeypatch.delenv("JAX_PLATFORMS")
    commands.look_for_no_tpu()
    assert os.environ.get("JAX_PLATFORMS") == then
