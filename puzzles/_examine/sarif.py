"""Reports as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from puzzles._examine.apart import Report
from puzzles._rules import RULES, address, home

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(reports: Sequence[Report]) -> dict[str, Any]:
    """One run with the findings of all reports, and a notification for what was not looked at."""
    results = [one for report in reports for one in _results(report)]
    kinds = sorted({one["ruleId"] for one in results})
    unread = [
        {"level": "error", "message": {"text": f"{report.target}: {report.unread}"}}
        for report in reports
        if report.unread
    ]
    done = {"executionSuccessful": not unread, "toolExecutionNotifications": unread}
    driver: dict[str, Any] = {"name": "pallas-puzzles", "rules": [_rule(kind) for kind in kinds]}
    if home():
        driver["informationUri"] = home()
    run = {"tool": {"driver": driver}, "invocations": [done], "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(kind: str) -> dict[str, Any]:
    rule = RULES[kind]
    made: dict[str, Any] = {
        "id": kind,
        "shortDescription": {"text": rule.asks},
        "fullDescription": {"text": rule.means},
    }
    return made | ({"helpUri": address(kind)} if home() else {})


def _results(report: Report) -> Iterator[dict[str, Any]]:
    for finding, place in zip(report.findings, report.places, strict=True):
        result: dict[str, Any] = {
            "ruleId": finding.kind,
            "level": finding.severity,
            "message": {"text": f"{report.target}: {finding.words}"},
        }
        where = place or report.home
        if where:
            file, number = where
            result["locations"] = [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": _address_of(file)},
                        "region": {"startLine": number},
                    }
                }
            ]
        yield result


def _address_of(file: str) -> str:
    """Relative to the folder that this runs in, where it is below; that is a repository's root."""
    path, here = Path(file), os.getcwd()
    if not path.is_relative_to(here):
        return path.as_uri()
    return quote(path.relative_to(here).as_posix())
