"""Promises to a CI job: exit codes, and one JSON document, whatever a kernel prints."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
import sample

from puzzles.__main__ import main
from puzzles._examine import shell, subprocesses, targets
from puzzles._launch import Finding

MODULES = tomllib.loads(Path(__file__).with_name("modules.toml").read_text("utf-8"))["shell"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("kernels", "names no function: write module:function"),
        ("no_such_module:f", "'no_such_module' cannot be imported: ModuleNotFoundError: No module"),
        ("./no_such_file.py:f", "'./no_such_file.py' is not a file"),
        ("json:nothing", "'json' has no 'nothing'"),
        ("syntax:fn", "'syntax' cannot be imported: SyntaxError: "),
        ("raises:fn", "'raises' cannot be imported: RuntimeError: no TPU here"),
        ("exits_early:fn", "'exits_early' cannot be imported: SystemExit: 0"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_names_no_function_is_one_sentence(target: str, says: str) -> None:
    with pytest.raises(targets.TargetError) as told:
        targets.load(target)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.usefixtures("folder")
def test_a_path_is_a_module_also_within_a_package() -> None:
    assert targets.load("./fine.py:fn")(1) == 1
    assert targets.load("apart/types.py:fn")(1) == 1, "a module of Python has that name"
    assert targets.load("package/inner.py:fn")(1) == 1


UNSEEN = [
    ("raises:fn", "RuntimeError: no TPU here"),
    ("exits:fn", "SystemExit: 0"),
    ("dies:fn", "its Python ended with exit code -6"),
    ("hangs:fn", "it was not done after 3 seconds"),
]


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize(("target", "says"), sample.some(UNSEEN))
@pytest.mark.usefixtures("folder")
def test_what_could_not_be_looked_at_exits_with_2(
    target, says, capfd: pytest.CaptureFixture
) -> None:
    assert (
        main(["examine", target, "f32[8,128]", "--timeout", "3" if "hangs" in target else "600"])
        == 2
    )
    assert says in capfd.readouterr().out


@sample.in_turn
@pytest.mark.usefixtures("folder")
def test_standard_output_is_one_json_document(capfd: pytest.CaptureFixture) -> None:
    assert main(["examine", "printing:double", "f32[16,128]", "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["code"] == 0
    assert all(one in said.err for one in ("a module may print", "and C, below"))
    assert "step 1" not in said.out + said.err  # a kernel prints when it is run for its numbers


def report(*severities: str, unread: str = "", gaps: tuple[str, ...] = ()) -> subprocesses.Reply:
    findings = tuple(Finding("idle", severity, "says") for severity in severities)
    return subprocesses.Reply("m:f", "text", {}, findings, unread, gaps)


@pytest.mark.parametrize(
    ("seen", "typed", "code"),
    [
        (report(), [], 0),
        (report("error", gaps=("memory",)), ["--strict"], 1),
        (report("warning"), [], 0),
        (report("warning"), ["--fail-on", "warning"], 1),
        (report("note"), ["--fail-on", "warning"], 0),
        (report("note"), ["--fail-on", "note"], 1),
        (report(unread="no kernel"), [], 2),
        (report(gaps=("memory",)), [], 0),
        (report(gaps=("memory",)), ["--strict"], 2),
    ],
)
def test_exit_codes(seen, typed, code, monkeypatch) -> None:
    monkeypatch.setattr(shell, "run_request", lambda *_: seen)
    assert main(["examine", "m:f", *typed]) == code


def test_a_folder_is_on_the_path_once(folder_here: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("first", "second"):
        (folder_here / f"{name}.py").write_text("def fn():\n    pass\n", encoding="utf-8")
        targets.load(f"{name}:fn")
        targets.load(f"{name}.py:fn")
    assert sys.path.count(str(folder_here)) == 1
    assert sys.path[0] == str(folder_here)
