"""`python -m puzzles`: its messages, and the files that it leaves alone."""

import os
import shutil
import sys

import pytest
import sample

from puzzles import __main__ as cli
from puzzles import _author
from puzzles._author import commands, notebook, repository

pytestmark = pytest.mark.newest  # JAX changes nothing here


@sample.in_turn
def test_a_readme_without_a_table_is_left_alone(tmp_path):
    shutil.copy(repository.ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "README.md").write_text("# Mine\n", encoding="utf-8")
    assert list(notebook.generated(tmp_path, ["basics"])) == ["basics.ipynb"]


@pytest.mark.parametrize("missing", ["jupytext", "nbformat"])
def test_a_missing_extra_names_the_install_line(missing, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    for module in ("puzzles._author.cells", "puzzles._author.notebook"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr(_author, "notebook")
    assert cli.main(["build"]) == 1
    said = capsys.readouterr().err
    assert said == f"error: this needs {missing}: pip install -e '.[author]'\n"


def test_a_puzzle_without_a_module_stops_a_build_in_one_sentence(monkeypatch, capsys):
    from puzzles._ladders import ladder_module

    monkeypatch.setattr(ladder_module("basics"), "PUZZLES", ("add_ten", "gone"))
    assert cli.main(["build", "--check"]) == 1
    assert "PUZZLES names 'gone', and there is no gone.py" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["bild"], ["build", "--solved", "x"]])
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
