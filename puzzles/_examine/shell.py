"""`python -m puzzles examine module:function 'f32[1024,512]' …`: the reports, and exit codes.

`[tool.puzzles.examine]` in pyproject.toml may also contain the options.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from puzzles._compile import CHIPS
from puzzles._examine import costs
from puzzles._examine.sarif import sarif
from puzzles._examine.subprocesses import Reply, Request, run_request
from puzzles._examine.targets import TargetError
from puzzles._launch import ERROR, SEVERITIES
from puzzles._rules import sentence

FILE, TABLE = "pyproject.toml", "[tool.puzzles.examine]"
_DEFAULTS = {"chips": ("v5e",), "seed": 0, "fail_on": ERROR, "compile_timeout": 120, "tolerance": 0}


def command(options: argparse.Namespace) -> int:
    """Examine the typed target, or the targets in the settings; print; return the exit code.

    0: no finding of `--fail-on` or worse; 1: at least one; 2: a target could not be examined.
    """
    try:
        targets = settle(options)
        if (options.update_baseline or options.accept_costs) and not options.baseline:
            raise TargetError("the costs need a file: --baseline FILE")
        before = costs.read(options.baseline) if options.baseline else {}
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    kept, reports = dict(before), []
    gone = kept.keys() - {" ".join(target) for target in targets}
    for name in sorted(gone) if not options.target else ():
        print(f"{options.baseline} has costs of {name!r}, which is no target", file=sys.stderr)
        if options.update_baseline:
            del kept[name]
    for target in targets:
        begin = time.perf_counter()
        report = _report(target, options, kept)
        report.data["seconds"] = round(time.perf_counter() - begin, 1)
        report.data["code"] = _code(report, options.fail_on, options.strict)
        if not options.json:
            took = f"{'seconds':<11} {report.data['seconds']}"
            print(report.text, took, sep="\n", end="\n\n" if targets[1:] else "\n", flush=True)
        reports.append(report)
    codes = {report.data["code"] for report in reports}
    code = next(code for code in (1, 2, 0) if code in codes)
    if options.baseline and kept != before:
        _write(options.baseline, kept)
    if options.sarif:
        _write(options.sarif, sarif(reports))
    if options.json:
        each = [report.data for report in reports]
        document = each[0] if options.target else {"code": code, "examinations": each}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    return code


def _report(target: list[str], options: argparse.Namespace, kept: dict[str, costs.Costs]) -> Reply:
    """The report on one target; write its costs if the options or a new target ask for it."""
    name, (function, *arguments) = " ".join(target), target
    before = None if options.accept_costs else kept.get(name)
    file = str(options.baseline)
    settings = {name: getattr(options, name) for name in ("chips", "seed", "compile_timeout")}
    asked = Request(function, tuple(arguments), settings, before, file, options.tolerance)
    report = run_request(asked, options.timeout)
    if not options.baseline or not report.costs:
        return report
    least = report.costs if before is None else costs.lowered(before, report.costs)
    if before is not None and least != before and not options.update_baseline:
        print(f"{name} costs less than in {file}: lower it by --update-baseline", file=sys.stderr)
    elif least != before:
        kept[name] = least
        print(f"the costs of {name} are written to {file}", file=sys.stderr)
    return report


def _write(file: Path, data: dict) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _code(report: Reply, fail_on: str, strict: bool) -> int:
    """The exit code; findings come before gaps, because a fault ends the simulation early."""
    if any(SEVERITIES.index(f.severity) <= SEVERITIES.index(fail_on) for f in report.findings):
        return 1
    return 2 if report.unread or (strict and report.gaps) else 0


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `examine`; an option that is not typed is None, or False."""
    add = parser.add_argument
    add("target", metavar="TARGET", nargs="?", help="module:function, file.py:function; "
        "by default the targets in pyproject.toml")  # fmt: skip
    add("arguments", metavar="ARGUMENT", nargs="*", help="f32[8,128], i32[3]=5,0,7, or a literal")
    add("--chips", type=lambda typed: tuple(typed.split(",")),
        help=f"some of {','.join(CHIPS)}; v5e by default")  # fmt: skip
    add("--seed", type=int, help="draws data for shapes")
    add("--json", action="store_true", help="print one JSON document")
    add("--sarif", metavar="FILE", type=Path, help="write SARIF 2.1.0 there")
    add("--baseline", metavar="FILE", type=Path, help="costs: written, and later compared")
    add("--tolerance", type=float, metavar="PERCENT", help="by which a cost may rise; 0")
    add("--update-baseline", action="store_true", help="lower the costs; drop unused targets")
    add("--accept-costs", action="store_true", help="write all costs again, also if they rose")
    add("--timeout", type=float, metavar="SECONDS", help="for each target")
    add("--compile-timeout", type=float, metavar="SECONDS", help="for libtpu and each chip; 120")
    add("--fail-on", choices=SEVERITIES, help="the mildest finding that exits with 1; error")
    add("--strict", action=argparse.BooleanOptionalAction, default=None,
        help="exit with 2 if a check did not run")  # fmt: skip


def settle(given: argparse.Namespace) -> list[list[str]]:
    """Give each option that was not typed its value, and return the targets, each with arguments.

    Typed options come before those in pyproject.toml of the working directory, then defaults.
    """
    table = _said()
    targets = table.pop("targets", [])
    file = argparse.ArgumentParser(f"{TABLE} of {FILE}", argparse.SUPPRESS, allow_abbrev=False)
    options(file)
    file.set_defaults(**_DEFAULTS)
    by_name = vars(given)
    for name, value in vars(file.parse_args([*_typed(table)])).items():
        if by_name[name] is None:
            by_name[name] = value
    if given.target:
        return [[given.target, *given.arguments]]
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise TargetError(f"`targets` in {TABLE} of {FILE}: a list of texts is asked for")
    if not targets:
        raise TargetError(sentence("no_targets", table=TABLE, file=FILE))
    return [shlex.split(target) for target in targets]


def _said() -> dict[str, Any]:
    try:
        data = tomllib.loads(Path(FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise TargetError(f"{FILE} cannot be read: {error}") from None
    return data.get("tool", {}).get("puzzles", {}).get("examine", {})


def _typed(table: Mapping[str, Any]) -> Iterator[str]:
    """The file's options as they would be typed."""
    for key, value in table.items():
        if isinstance(value, bool):
            yield f"--{key}" if value else f"--no-{key}"
        else:
            yield f"--{key}={','.join(map(str, value)) if isinstance(value, list) else value}"
