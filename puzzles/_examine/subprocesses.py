"""Examine a target in a Python process of its own, so that exits and hangs stay in it."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from puzzles._examine.costs import Costs, costs, dearer
from puzzles._examine.examination import Examination
from puzzles._examine.examining import examine
from puzzles._examine.targets import TargetError, argument, load, made
from puzzles._judge import unwrap
from puzzles._launch import Finding, Line, in_file, placed

DEVICES = 8  # of which a file may make a mesh


@dataclass(frozen=True)
class Request:
    """A target as it is typed, with the settings of its examination.

    before: the earlier costs of its launches, from the file called `kept`, which may rise by
    `tolerance` percent.
    """

    target: str
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    before: Costs | None = None
    kept: str = ""
    tolerance: float = 0


@dataclass(frozen=True)
class Reply:
    """The part of an examination that leaves its process.

    findings: a finding without a line has the first of its function. gaps: searches that were
    skipped, unless a comment accepts it.
    """

    target: str
    text: str
    data: dict[str, Any]
    findings: tuple[Finding, ...]
    unread: str
    gaps: tuple[str, ...]
    costs: Costs | None = None

    @classmethod
    def of(cls, target: str, found: Examination, fn: object = None) -> Reply:
        accepted = any(one.startswith("not-looked at ") for one in found.ignored)
        gaps = () if accepted else found.gaps
        placed = (replace(f, line=in_file(f.line) or home_of(fn)) for f in found.findings)
        data, findings = json.loads(found.to_json()), tuple(placed)
        return cls(target, str(found), data, findings, found.unread, gaps, costs(found.launches))

    @classmethod
    def unlooked(cls, target: str, why: str) -> Reply:
        return cls.of(target, Examination(target, unread=why))


def run_request(asked: Request, timeout: float | None = None) -> Reply:
    """Return the report on one target, even if the Python that examines it ends or hangs."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_answer, args=(theirs, asked))
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout):
            return Reply.unlooked(asked.target, f"it was not done after {timeout:g} seconds")
        return ours.recv()
    except EOFError:
        process.join()
        ended = f"its Python ended with exit code {process.exitcode} before anything was known"
        return Reply.unlooked(asked.target, ended)
    finally:
        process.kill()  # threads of its own may keep it
        process.join()


def home_of(fn: Any) -> Line | None:
    """The first line of a function; None if no file has it."""
    code = getattr(unwrap(fn), "__code__", None)
    return in_file(placed(code.co_filename, code.co_firstlineno)) if code else None


def _answer(pipe: Connection, asked: Request) -> None:
    os.dup2(2, 1)  # standard output is for the report; output of C goes to standard error
    # A layer may make a mesh; JAX reads the number of devices when it first runs.
    flags, several = os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count"
    if several not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {several}={DEVICES}"
    try:
        report = looked_at(asked)
    except (Exception, SystemExit) as error:
        named = "" if isinstance(error, TargetError) else f"{type(error).__name__}: "
        report = Reply.unlooked(asked.target, f"{named}{error}")
    pipe.send(report)


def looked_at(asked: Request) -> Reply:
    """The report on a target that is loaded and examined in this process."""
    fn, args = made(load(asked.target), [argument(text) for text in asked.arguments])
    found = examine(fn, *args, **asked.settings)
    if asked.before is not None:
        more = dearer(found.launches, asked.before, asked.kept, asked.tolerance)
        found = replace(found, findings=(*more, *found.findings))
    return Reply.of(asked.target, found, fn)
