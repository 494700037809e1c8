"""Reports as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from puzzles._examine.examination import versions
from puzzles._examine.subprocesses import Reply
from puzzles._launch import in_file
from puzzles._rules import RULES, address

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(reports: Sequence[Reply]) -> dict[str, Any]:
    """A run with the findings of all reports; unsuccessful if a report could not be made."""
    results = [result for report in reports for result in _results(report)]
    rules = [
        {
            "id": kind,
            "shortDescription": {"text": RULES[kind].asks},
            "fullDescription": {"text": f"{RULES[kind].means} {address(kind)}"},
        }
        for kind in sorted({result["ruleId"] for result in results})
    ]
    each, driver = versions(), {"name": "pallas-puzzles", "rules": rules}
    if own := each.get("pallas-puzzles"):  # installed
        driver["version"] = own
    run = {
        "tool": {"driver": driver | {"properties": {"versions": each}}},
        "invocations": [{"executionSuccessful": not any(report.unread for report in reports)}],
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _results(report: Reply) -> Iterator[dict[str, Any]]:
    for finding in report.findings:
        result: dict[str, Any] = {
            "ruleId": finding.kind,
            "level": finding.severity,
            "message": {"text": f"{report.target}: {finding.words}"},
        }
        if place := in_file(finding.line):
            region = {"startLine": place.line_number, "startColumn": place.column or 1}
            where = {"artifactLocation": {"uri": _address_of(place.file)}, "region": region}
            result["locations"] = [{"physicalLocation": where}]
        yield result


def _address_of(file: str) -> str:
    """The URI of a file, relative to the working directory (the repository's root) if below it."""
    path, here = Path(file), os.getcwd()
    if not path.is_relative_to(here):
        return path.as_uri()
    return quote(path.relative_to(here).as_posix())
