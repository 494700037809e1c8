"""`# examine: ignore[rule] why`: findings that somebody has looked at, and why they stay."""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from puzzles._examine.examination import Examination
from puzzles._launch import in_file

_COMMENT = re.compile(r"#\s*examine:\s*ignore\[(?P<rules>[^\]]*)\]\s*(?P<why>.*)")

# A comment would accept every cost for ever; the file of costs accepts a figure.
_UNUSED = {
    "not-looked": "this target has no gap",
    "dearer": "no comment accepts a cost; `--accept-costs` does",
}


def without_ignored(found: Examination, within: Iterable[str | None]) -> Examination:
    """The examination without the findings that a comment ignores; `ignored` keeps them in words.

    A comment stands on a line of the finding's statement, or on lines of its own right above it.
    The rule `not-looked`, at a launch or in its kernel, accepts that something was not looked at.
    A comment there without a reason, or without a finding, is reported. within: the lines of the
    program.
    """
    left, told = [], list(found.ignored)
    for finding in found.findings:
        whys = [(why, at) for rule, why, at in _comments(finding.line) if rule == finding.kind]
        told += [f"{finding.kind} at {at}: {why}" for why, at in whys if why]
        if not any(why for why, _ in whys):
            left.append(finding)
    lines = [f.line for f in found.findings] + [launch.line for launch in found.launches]
    each = (comment for line in dict.fromkeys([*lines, *within]) for comment in _comments(line))
    for rule, why, at in each:
        if rule == "not-looked" and why and found.gaps:
            told.append(f"{rule} at {at}: {why}")
        elif not why:
            told.append(f"nothing at {at}: write the reason after `ignore[{rule}]`")
        elif f"{rule} at {at}: {why}" not in told:
            reason = _UNUSED.get(rule, f"this target has no finding `{rule}`")
            told.append(f"nothing at {at}: {reason}")
    return replace(found, findings=tuple(left), ignored=tuple(dict.fromkeys(told)))


def _comments(where: str | None) -> Iterator[tuple[str, str, str]]:
    """(rule, reason, place) of each comment that speaks of a line."""
    lines = linecache.getlines(line.file) if (line := in_file(where)) else []
    if line is None or not _COMMENT.search(text := "".join(lines)):
        return
    spans, number = _statements(text), line.line_number
    first, last = next((s for s in spans if s[0] <= number <= s[1]), (number, number))
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    for n in range(first, last + 1):
        if match := _COMMENT.search(lines[n - 1]):
            for rule in match["rules"].split(","):
                yield rule.strip(), match["why"].strip(), f"{os.path.basename(line.file)}:{n}"


@lru_cache(8)
def _statements(text: str) -> Sequence[tuple[int, int]]:
    """The first and last line of each statement; of a statement with a body, those of its head."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a file that was changed while it ran
        return ()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    bodies = [getattr(node, "body", None) for node in nodes]
    ends = [b[0].lineno - 1 if b else n.end_lineno or 0 for b, n in zip(bodies, nodes, strict=True)]
    return [(node.lineno, end) for node, end in zip(nodes, ends, strict=True)]
