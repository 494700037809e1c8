"""The baseline of costs: a dearer launch fails in numbers, by its name."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest
from launches import by_rows

import puzzles
from puzzles.__main__ import main
from puzzles._examine import costs

MODULES = tomllib.loads(Path(__file__).with_name("modules.toml").read_text("utf-8"))
CHEAP = MODULES["costs"]["add"]
DEARER = CHEAP.replace("lambda i: (0, 0)", "lambda i: (i % 2, 0)")
TYPED = ("f32[32,128]", "f32[16,128]", "--baseline", "costs.json")


@pytest.fixture
def wrote(folder_here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the module that is examined."""
    # Python's cache cannot tell two files of the same length, written in the same second, apart.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        Path("add.py").write_text(text)

    return write


def ran(*more: str) -> int:
    return main(["examine", "./add.py:add", *TYPED, *more])


def test_a_dearer_launch_fails_in_numbers_until_it_is_meant(wrote, capsys) -> None:
    wrote(CHEAP)
    assert ran() == 0
    assert "are written to costs.json" in capsys.readouterr().err
    (kept,) = json.loads(Path("costs.json").read_text()).values()
    block = 8 * 128 * 4
    assert kept["add_kernel"]["bytes"] == 9 * block
    assert kept["add_kernel"]["steps"] == 4
    assert ran() == 0
    wrote(DEARER)
    capsys.readouterr()
    assert ran("--json", "--sarif", "found.sarif") == 1
    (one,) = (f for f in json.loads(capsys.readouterr().out)["findings"] if f["kind"] == "dearer")
    says = one["says"]
    assert one["launch"] == "add_kernel"
    assert f"{12 * block:,} bytes of HBM read and written, not {9 * block:,}" in says
    (result, *_) = json.loads(Path("found.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "dearer"
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "add.py"
    assert ran("--tolerance", "40") == 0, "a third more bytes, a quarter more VMEM"
    assert ran("--tolerance", "30") == 1
    assert ran("--update-baseline") == 1, "it accepts no cost that rose"
    assert ran("--accept-costs") == 0
    assert ran() == 0


def test_a_cheaper_launch_lowers_the_file_if_asked(wrote, capsys) -> None:
    def kept() -> dict:
        return json.loads(Path("costs.json").read_text())

    wrote(DEARER)
    ran()
    high = kept()
    high["gone:fn"] = {}
    (name,) = (name for name in high if name != "gone:fn")
    low = high[name]["add_kernel"]["steps"]
    high[name]["add_kernel"]["steps"] = low - 1  # one count is higher, others are lower now
    Path("costs.json").write_text(json.dumps(high))
    wrote(CHEAP)
    capsys.readouterr()
    assert ran("--tolerance", "50") == 0
    assert "costs less than in costs.json" in capsys.readouterr().err
    assert kept() == high
    target = "./add.py:add 'f32[32,128]' 'f32[16,128]'"
    Path("pyproject.toml").write_text(f"[tool.puzzles.examine]\ntargets = [{target!r}]\n")
    assert main(["examine", "--baseline", "costs.json", "--update-baseline"]) == 1
    assert "'gone:fn', which is no target" in capsys.readouterr().err
    assert kept().keys() == {name}
    now = kept()[name]["add_kernel"]
    assert now == high[name]["add_kernel"] | {"bytes": 36_864, "vmem": now["vmem"]}
    assert now["vmem"] < high[name]["add_kernel"]["vmem"]


def test_a_launch_that_is_not_in_the_file_fails(wrote, capsys) -> None:
    wrote(CHEAP)
    ran()
    wrote(CHEAP.replace("add_kernel", "sum_kernel"))
    assert ran() == 1
    text = capsys.readouterr().out
    assert "`sum_kernel` is not in costs.json" in text
    assert re.search(r"^seconds +\d+\.\d$", text, re.MULTILINE)


def test_two_launches_of_one_name_are_two() -> None:
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    each = puzzles.trace(lambda x: by_rows(kernel)(by_rows(kernel)(x)), jnp.ones((32, 128)))
    assert list(costs.costs(each)) == ["kernel", "kernel #2"]


@pytest.mark.usefixtures("wrote")
def test_a_file_that_holds_no_costs_exits_with_2(capsys) -> None:
    Path("costs.json").write_text("{")
    assert ran() == 2
    assert "holds no costs" in capsys.readouterr().err


@pytest.mark.usefixtures("wrote")
@pytest.mark.parametrize("option", ["--update-baseline", "--accept-costs"])
def test_a_baseline_is_named_before_it_is_updated(option, capsys) -> None:
    assert main(["examine", "./add.py:add", option]) == 2
    assert "--baseline FILE" in capsys.readouterr().err
