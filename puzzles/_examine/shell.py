"""`python -m puzzles examine module:function 'f32[1024,512]' …`: the reports, and exit codes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from puzzles._examine import costs
from puzzles._examine.apart import Asked, Report, apart
from puzzles._examine.sarif import sarif
from puzzles._examine.settings import settle
from puzzles._examine.targets import Unfit
from puzzles._launch import SEVERITIES


def command(given: argparse.Namespace) -> int:
    """Examine what was typed, or what the settings name, and print; the shell's exit code.

    0: nothing found of `--fail-on` or worse; 1: something; 2: it could not be looked at.
    """
    try:
        targets = settle(given)
        if given.update_baseline and not given.baseline:
            raise Unfit("--update-baseline needs the file: --baseline FILE")
        kept = costs.read(given.baseline) if given.baseline else {}
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    reports, codes = [], set()
    for target in targets:
        report = _report(target, given, kept)
        report.data["code"] = _code(report, given.fail_on, given.strict)
        if not given.json:
            print(report.text, end="\n\n" if len(targets) > 1 else "\n", flush=True)
        if report.data["code"] == 2 and not report.unread:
            missed = "\n  ".join(report.gaps)
            print(f"strict: not looked at in {report.target}:\n  {missed}", file=sys.stderr)
        reports.append(report)
        codes.add(report.data["code"])
    code = next(code for code in (1, 2, 0) if code in codes)
    if given.sarif:
        _write(given.sarif, sarif(reports))
    if given.json:
        each = [report.data for report in reports]
        document = each[0] if given.target else {"code": code, "examinations": each}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    return code


def _report(target: list[str], given: argparse.Namespace, kept: dict[str, costs.Costs]) -> Report:
    """The report on one target; its costs are kept where none are known, or where asked for."""
    name, (function, *arguments) = " ".join(target), target
    before = None if given.update_baseline else kept.get(name)
    file = str(given.baseline)
    asked = Asked(function, tuple(arguments), given.chips, given.seed, before, file)
    report = apart(asked, given.timeout)
    if given.baseline and before is None and report.costs:
        kept[name] = report.costs
        _write(given.baseline, kept)
        print(f"the costs of {name} are written to {file}", file=sys.stderr)
    return report


def _write(file: Path, data: dict) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _code(report: Report, fail_on: str, strict: bool) -> int:
    """What was found comes first: it ends the simulation, and so leaves gaps by itself."""
    if any(SEVERITIES.index(f.severity) <= SEVERITIES.index(fail_on) for f in report.findings):
        return 1
    return 2 if report.unread or (strict and report.gaps) else 0
