"""`# examine: ignore[rule] why`: findings that somebody has looked at, and why they stay."""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Iterator
from dataclasses import replace

from puzzles._examine.examination import Examination
from puzzles._launch import place

_COMMENT = re.compile(r"#\s*examine:\s*ignore\[(?P<rules>[^\]]*)\]\s*(?P<why>.*)")


def without_ignored(found: Examination) -> Examination:
    """The examination without the findings that a comment ignores; `ignored` keeps them in words.

    A comment stands on a line of the finding's statement, or on lines of its own right above it.
    A comment without a reason, or without a finding at its launch, is reported. The rule
    `not-looked`, at a launch, accepts that something was not looked at.
    """
    left, told = [], list(found.ignored)
    kinds, places = {one.kind for one in found.findings}, map(place, _launched(found))
    for rule, why, at in (each for where in places if where for each in _comments(*where)):
        if rule == "not-looked" and why:
            told.append(f"{rule} at {at}: {why}")
        elif why and rule not in kinds | {"dearer"} and f"{rule} at {at}: {why}" not in told:
            told.append(f"nothing at {at}: this target has no finding `{rule}`")
    for finding in found.findings:
        where = place(finding.line)
        for rule, why, at in _comments(*where) if where else ():
            if rule == finding.kind and not why:
                told.append(f"nothing at {at}: write the reason after `ignore[{rule}]`")
            elif rule == finding.kind:
                told.append(f"{rule} at {at}: {why}")
                break
        else:
            left.append(finding)
    return replace(found, findings=tuple(left), ignored=tuple(dict.fromkeys(told)))


def _launched(found: Examination) -> list[str | None]:
    return list(dict.fromkeys(launch.line for launch in found.launches))


def _comments(file: str, number: int) -> Iterator[tuple[str, str, str]]:
    """(rule, reason, place) of each comment that speaks of a line."""
    lines = linecache.getlines(file)
    first, last = _statement("".join(lines), number)
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    for n in range(first, last + 1):
        if found := _COMMENT.search(lines[n - 1]):
            for rule in found["rules"].split(","):
                yield rule.strip(), found["why"].strip(), f"{os.path.basename(file)}:{n}"


def _statement(text: str, number: int) -> tuple[int, int]:
    """The first and the last line of the statement that a line is part of.

    Of a statement with a body, such as `def` and `with`, only its head counts.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a file that was changed while it ran
        return number, number
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or 0
            if node.lineno <= number <= last:
                return node.lineno, last
    return number, number
