"""A repository with settings, a baseline, SARIF, a plugin and `--strict`, by its two commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import sample

from puzzles._compile import has_libtpu

ROOT = Path(__file__).parents[2]
TEXTS = tomllib.loads(Path(__file__).with_name("modules.toml").read_text("utf-8"))["repository"]
SARIF = ("puzzles", "examine", "--sarif", "found.sarif")
PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
PLUGIN = ("-p", "no:pallas-puzzles", "-p", "pytest_pallas_puzzles")


@pytest.fixture
def ran(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a module of Python in a new repository."""
    suffixes = {"pyproject": "toml"}
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.{suffixes.get(name, 'py')}").write_text(text)
    paths = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu"}

    def run(*typed: str) -> subprocess.CompletedProcess[str]:
        command, given = [sys.executable, "-m", *typed], os.environ | paths
        return subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)

    return run


def edited(folder: Path, old: str, new: str) -> None:
    file = folder / "kernels.py"
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


@sample.in_turn
@pytest.mark.skipif(not has_libtpu(), reason="--strict is red without libtpu")
def test_the_commands_are_green_until_a_cost_rises_or_a_wait_is_missing(ran, tmp_path) -> None:
    def rules() -> list[tuple[str, str]]:
        (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
        places = [one["locations"][0]["physicalLocation"] for one in run["results"]]
        assert run["tool"]["driver"]["properties"]["versions"]["jax"]
        assert all(place["region"]["startColumn"] > 1 for place in places)
        uris = (place["artifactLocation"]["uri"] for place in places)
        return [(one["ruleId"], uri) for one, uri in zip(run["results"], uris, strict=True)]

    first = ran(*SARIF)
    assert (first.returncode, rules()) == (0, []), first.stdout
    assert "are written to costs.json" in first.stderr
    assert "not-looked at kernels.py:" in first.stdout
    assert ran(*PYTEST, *PLUGIN).returncode == 0

    edited(tmp_path, "lambda i: (0, 0)", "lambda i: (i % 2, 0)")
    dear = ran(*SARIF)
    assert (dear.returncode, rules()) == (1, [("dearer", "kernels.py")]), dear.stdout
    assert "49,152 bytes of HBM read and written, not 36,864" in dear.stdout

    edited(tmp_path, "lambda i: (i % 2, 0)", "lambda i: (0, 0)")
    edited(tmp_path, "    copy.wait()\n    o_ref[...] = buffer[...] * 2",
           "    o_ref[...] = buffer[...] * 2\n    copy.wait()")  # fmt: skip
    race = ran(*SARIF)
    assert (race.returncode, rules()) == (1, [("hazard", "kernels.py")]), race.stdout
    red = ran(*PYTEST, *PLUGIN)
    assert (red.returncode, "hazard · stream_kernel" in red.stdout) == (1, True), red.stdout
