"""`python -m puzzles examine module:function 'f32[1024,512]' …`: the reports, and exit codes."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from puzzles._examine import costs
from puzzles._examine.apart import Asked, Report, apart
from puzzles._examine.sarif import sarif
from puzzles._launch import ERROR, SEVERITIES
from puzzles._tpu import CHIPS


def options(parser: argparse.ArgumentParser) -> None:
    """What may be typed after `examine`."""
    parser.add_argument("target", metavar="TARGET", help="module:function or file.py:function")
    parser.add_argument(
        "arguments", metavar="ARGUMENT", nargs="*", help="f32[8,128], i32[3]=5,0,7, or a literal"
    )
    parser.add_argument("--chips", type=_chips, default="v5e", help=f"some of {','.join(CHIPS)}")
    parser.add_argument("--seed", type=int, default=0, help="draws data for shapes")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--sarif", metavar="FILE", type=Path, help="write SARIF 2.1.0 there")
    parser.add_argument(
        "--baseline", metavar="FILE", type=Path, help="costs of launches: written, later compared"
    )
    parser.add_argument("--update-baseline", action="store_true", help="write them anew")
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="for each target")
    parser.add_argument(
        "--fail-on", choices=SEVERITIES, default=ERROR, help="the mildest finding that exits with 1"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 2 where something was not looked at"
    )


def command(given: argparse.Namespace) -> int:
    """Examine what was typed, and print; the shell's exit code.

    0: nothing found of `--fail-on` or worse; 1: something; 2: it could not be looked at.
    """
    try:
        if given.update_baseline and not given.baseline:
            raise costs.Unkept("--update-baseline needs the file: --baseline FILE")
        kept = costs.read(given.baseline) if given.baseline else {}
    except costs.Unkept as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    asked = Asked(given.target, tuple(given.arguments), given.chips, given.seed)
    known = None if given.update_baseline else kept.get(asked.name)
    report = apart(replace(asked, before=known, kept=str(given.baseline)), given.timeout)
    if given.baseline and known is None and report.costs:
        costs.write(given.baseline, {**kept, asked.name: report.costs})
        print(f"the costs of {asked.name} are written to {given.baseline}", file=sys.stderr)
    code = report.data["code"] = _code(report, given.fail_on, given.strict)
    if given.sarif:
        _write(given.sarif, sarif([report]))
    if given.json:
        print(json.dumps(report.data, indent=2, ensure_ascii=False))
    else:
        print(report.text)
    if code == 2 and not report.unread:
        print(
            f"strict: not looked at in {report.target}:", *report.gaps, sep="\n  ", file=sys.stderr
        )
    return code


def _write(file: Path, data: dict) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _code(report: Report, fail_on: str, strict: bool) -> int:
    """What was found comes first: it ends the simulation, and so leaves gaps by itself."""
    if any(SEVERITIES.index(f.severity) <= SEVERITIES.index(fail_on) for f in report.findings):
        return 1
    return 2 if report.unread or (strict and report.gaps) else 0


def _chips(text: str) -> tuple[str, ...]:
    chips = tuple(text.split(","))
    for chip in chips:
        if chip not in CHIPS:
            raise argparse.ArgumentTypeError(
                f"no chip is called {chip!r}; there are {', '.join(CHIPS)}"
            )
    return chips


def _seconds(text: str) -> float:
    seconds = float(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError("a time-out is longer than nothing")
    return seconds
