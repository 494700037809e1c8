"""SARIF: the findings on their lines, in the form that its standard asks for."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from puzzles import examine
from puzzles._examine.apart import Asked, Report, looked_at
from puzzles._examine.sarif import sarif

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def at_the_root(no_libtpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@functools.cache
def stream() -> Report:
    return looked_at(Asked("docs/kernels.py:stream", ("f32[32,128]",)))


def test_a_finding_stands_on_its_line() -> None:
    document = sarif([stream()])
    (run,) = document["runs"]
    (result,) = (one for one in run["results"] if one["ruleId"] == "hazard")
    assert (document["version"], result["level"]) == ("2.1.0", "error")
    assert document["$schema"].endswith("sarif-2.1.0.json")
    assert run["tool"]["driver"]["name"] == "pallas-puzzles"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["hazard"]
    where = result["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "docs/kernels.py"
    text = (ROOT / "docs/kernels.py").read_text().splitlines()
    assert text[where["region"]["startLine"] - 1].strip() == "o_ref[...] = buffers[step % 2] * 2.0"
    assert "buffers" in result["message"]["text"]
    assert run["invocations"][0]["executionSuccessful"]


def test_what_was_not_looked_at_is_told() -> None:
    (run,) = sarif([Report.unlooked("m:f", "it has no kernel")])["runs"]
    (told,) = run["invocations"][0]["toolExecutionNotifications"]
    assert told["message"]["text"] == "m:f: it has no kernel"
    assert told["level"] in ("error", "warning", "note")
    assert not run["invocations"][0]["executionSuccessful"]


def test_a_finding_without_a_line_stands_at_its_function() -> None:
    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    found = examine(lambda x: x, shape)
    report = Report.of("m:f", found, test_a_finding_without_a_line_stands_at_its_function)
    assert report.home is not None
    assert report.home[0] == __file__
