"""SARIF: the findings on their lines, in the form that its standard asks for."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from puzzles._examine.examination import Examination, versions
from puzzles._examine.sarif import sarif
from puzzles._examine.subprocesses import Reply, Request, looked_at
from puzzles._launch import Finding

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("no_libtpu")
def test_a_finding_stands_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    stream = looked_at(Request("docs/kernels.py:stream", ("f32[32,128]",)))
    document = sarif([stream, Reply.unlooked("m:f", "it has no kernel")])
    (run,) = document["runs"]
    (result,) = (one for one in run["results"] if one["ruleId"] == "hazard")
    assert (document["version"], result["level"]) == ("2.1.0", "error")
    assert document["$schema"].endswith("sarif-2.1.0.json")
    driver = run["tool"]["driver"]
    assert driver["name"] == "pallas-puzzles"
    assert driver["properties"]["versions"] == versions()
    assert versions()["jax"] == jax.__version__
    assert driver.get("version") == versions().get("pallas-puzzles")
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["hazard"]
    where = result["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "docs/kernels.py"
    text = (ROOT / "docs/kernels.py").read_text().splitlines()
    line, column = where["region"]["startLine"], where["region"]["startColumn"]
    assert text[line - 1].strip() == "o_ref[...] = buffers[step % 2] * 2.0"
    assert text[line - 1][column - 1 :].startswith("buffers[step % 2]")
    assert "buffers" in result["message"]["text"]
    assert not run["invocations"][0]["executionSuccessful"]


def test_a_finding_without_a_line_stands_at_its_function() -> None:
    found = Examination("f", (Finding("vmem", "error", "too much"),))
    report = Reply.of("m:f", found, test_a_finding_without_a_line_stands_at_its_function)
    assert [one.line.file for one in report.findings] == [__file__]
