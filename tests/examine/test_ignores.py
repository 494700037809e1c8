"""`# examine: ignore[rule] why`, `module:make` and the settings in pyproject.toml."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import puzzles
from puzzles.__main__ import main
from puzzles._examine import targets

X = jax.ShapeDtypeStruct((32, 128), jnp.float32)
MODULES = tomllib.loads(Path(__file__).with_name("modules.toml").read_text("utf-8"))
TEXT = MODULES["ignores"]["written"]
IGNORE = "examine: ignore[out-of-bounds]"


@pytest.fixture
def module(folder_here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    def write(above: str = "pass", within: str = "", store: str = "") -> ModuleType:
        file = folder_here / "written.py"
        text = TEXT.replace("ABOVE", above).replace("WITHIN", within)
        file.write_text(text.replace("* 2", f"* 2  # {store}"))
        spec = importlib.util.spec_from_file_location("written", file)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "written", made)
        spec.loader.exec_module(made)
        return made

    return write


@pytest.mark.parametrize(
    "where", [{"above": f"# {IGNORE} the last"}, {"within": f"{IGNORE} the last"}]
)
def test_a_comment_with_a_reason_ignores_a_finding(module, where: dict) -> None:
    found = puzzles.examine(module(**where).beyond, X)
    assert found.findings == ()
    (told,) = found.ignored
    assert told.startswith("out-of-bounds at written.py:")
    assert told.endswith(": the last")
    assert told in str(found)
    assert json.loads(found.to_json())["ignored"] == [told]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"within": IGNORE}, "write the reason after `ignore[out-of-bounds]`"),
        ({"within": "examine: ignore[hazard] the last"}, "this target has no finding `hazard`"),
        ({"above": f"y = 1  # {IGNORE} of another line"}, ""),
    ],
)
def test_a_comment_that_ignores_nothing(module, where: dict, says: str) -> None:
    found = puzzles.examine(module(**where).beyond, X)
    assert [one.kind for one in found.findings] == ["out-of-bounds"]
    assert says in " ".join(found.ignored)
    assert bool(found.ignored) == bool(says)


@pytest.mark.parametrize(("comment", "code"), [
    ("examine: ignore[not-looked] libtpu is not here", 0),
    ("examine: ignore[not-looked]", 2),
    ("examine: ignore[hazard] libtpu is not here", 2),
    ("", 2),
])  # fmt: skip
def test_strict_accepts_a_gap_with_a_reason(folder_here, capsys, comment, code) -> None:
    text = TEXT.replace("ABOVE", "pass").replace("i + 1", "i").replace("WITHIN", comment)
    (folder_here / "gaps.py").write_text(text)
    assert main(["examine", "gaps.py:make", "--strict", "--json"]) == code
    data = json.loads(capsys.readouterr().out)
    assert (data["code"], data["schema"], data["findings"]) == (code, 1, [])
    assert data["versions"]["jax"] == jax.__version__
    assert data["seconds"] >= 0
    assert any("not-looked at gaps.py:14" in line for line in data["ignored"]) == (code == 0)
    assert any("write the reason" in line for line in data["ignored"]) == comment.endswith("]")


@pytest.mark.parametrize("where", ["within", "store"])
@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("not-looked", "has no gap"),
        ("hazard", "has no finding `hazard`"),
        ("dearer", "no comment accepts a cost; `--accept-costs` does"),
    ],
)
def test_a_comment_without_use_is_reported(module, monkeypatch, where, rule, says) -> None:
    monkeypatch.setattr("puzzles._examine.examination.Examination.gaps", ())
    made = module(**{where: f"examine: ignore[{rule}] it was once needed"})
    (said,) = puzzles.examine(made.beyond, X).ignored
    assert said.endswith(says)


def test_a_finding_in_json_has_path_and_line(folder_here, capsys) -> None:
    (folder_here / "at.py").write_text(TEXT.replace("ABOVE", "pass"))
    assert main(["examine", "at.py:make", "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["findings"]
    assert (one["file"], one["line_number"]) == (str((folder_here / "at.py").resolve()), 13)
    assert one["column"] is None  # JAX keeps no column of an index map


def test_a_finding_at_an_equation_has_a_column(folder_here, capsys) -> None:
    text = TEXT.replace("x_ref[...] * 2", "2 * x_ref[pl.ds(pl.program_id(0), 8)]")
    text = text.replace("ABOVE", "pass").replace("i + 1", "i")
    (folder_here / "column.py").write_text(text)
    assert main(["examine", "column.py:make", "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["findings"]
    line = text.splitlines()[one["line_number"] - 1]
    assert line[one["column"] - 1 :].startswith("x_ref[")


def test_numpy_arrays_are_traced_as_arrays_of_jax(module) -> None:
    found = puzzles.examine(module().beyond, np.zeros((32, 128), np.float32))
    assert [one.kind for one in found.findings] == ["out-of-bounds"]


def test_make_returns_a_function_and_its_arguments() -> None:
    assert targets.made(lambda: (abs, 1, 2), []) == (abs, [1, 2])
    assert targets.made(lambda: (abs, (1, 2)), []) == (abs, [1, 2])
    for fn in (abs, lambda: 3, lambda: (1, 2), lambda: 1 / 0):
        assert targets.made(fn, []) == (fn, [])
    assert targets.made(abs, [1]) == (abs, [1])


def test_settings_stand_in_pyproject(module, capsys: pytest.CaptureFixture) -> None:
    module()
    Path("pyproject.toml").write_text(
        "[tool.puzzles.examine]\n"
        "targets = ['written.py:make', \"written.py:beyond 'f32[32, 128]'\"]\n"
        "chips = ['v6e', 'v5e']\nbaseline = 'costs.json'\ntimeout = 300\n"
    )
    assert main(["examine", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["code"] == 1
    assert [one["name"] for one in said["examinations"]] == ["beyond", "beyond"]
    assert said["examinations"][0]["chips"] == ["v6e", "v5e"]
    assert len(json.loads(Path("costs.json").read_text())) == 2
    assert main(["examine", "written.py:make", "--chips", "v5e", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["chips"] == ["v5e"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("chip = 'v5e'", "[tool.puzzles.examine] of pyproject.toml: error: unrecognized"),
        ("fail-on = 'all'", "argument --fail-on: invalid choice: 'all'"),
        ("targets = 'm:f'", "a list of texts is asked for"),
        ("targets = [", "pyproject.toml cannot be read"),
        ("", "name a target"),
    ],
)
def test_settings_that_cannot_be_read_exit_with_2(
    line: str, says: str, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(f"[tool.puzzles.examine]\n{line}\n")
    try:
        code = main(["examine"])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert says in capsys.readouterr().err
