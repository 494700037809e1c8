"""The gate: does every rung hold what its module promises, and does the whole fit together?"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from puzzles._author import proof, review
from puzzles._author.repository import BuildError, project
from puzzles._author.tree import absent, ladders_of, missing, stray_files, tree_problems
from puzzles._ladders import UnknownPuzzle, find, front_page, ladder_module, ladder_of, ladders
from puzzles._puzzle import Puzzle
from puzzles._tpu import INSTALL_LIBTPU, Compiler, has_libtpu, supported_chips


@dataclass
class Report:
    """What was counted on one rung, every shortfall in words, and what is left undone."""

    rung: str
    counts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    seconds: float = 0.0
    mistakes: int = 0

    def __str__(self) -> str:
        counts = "  ".join(f"{name} {value}" for name, value in self.counts.items())
        mark = "ok " if not self.problems else "BAD"
        lines = [f"{mark} {self.rung:<36} {counts}  ({self.seconds:.1f} s)"]
        return "\n".join(lines + [f"    {p}" for p in (*self.problems, *self.undone)])


def _guarded(half: Callable[..., Report], name: str, *options: object) -> Report:
    """A half's report; what raises in the author's own code is a problem like others."""
    try:
        return half(name, *options)
    except Exception as error:
        return Report(name, problems=[_raised(name, error)])


def _raised(name: str, error: Exception) -> str:
    """Where in a ladder's own files an exception came from, and what it says."""
    ladder = ladder_of(name)
    folder = os.path.dirname(str(ladder_module(ladder).__file__))
    shown = front_page(ladder).removesuffix("__init__.py")
    frames = traceback.extract_tb(error.__traceback__)
    places = [(f.filename, f.lineno) for f in frames]
    if isinstance(error, SyntaxError):
        places.append((str(error.filename), error.lineno))
    own = [(os.path.basename(f), n) for f, n in places if f.startswith(f"{folder}{os.sep}")]
    file, line = own[-1] if own else (f"{name}.py", 1)
    gist = f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and str(error.name).endswith(f".{name}"):
        return absent(ladder, name)
    return f"{shown}{file}:{line}: {gist}. Mend it first: nothing more of this rung was verified"


def _right(name: str, libtpu: bool, quick: bool = False) -> Report:
    """One half of a rung: what must pass, on the compiler too, and its text."""
    start = time.perf_counter()
    puzzle = find(name)
    seeds = proof.SEEDS[:1] if quick else proof.SEEDS
    starter, solution = proof.starter_problem(puzzle), proof.solution_problem(puzzle, seeds)
    fresh = [] if solution else list(proof.fresh_problems(puzzle))
    refused = [
        problem
        for alternative in puzzle.alternatives
        if not solution  # they would all be refused for the same reason
        and (problem := proof.alternative_problem(puzzle, alternative))
    ]
    compiled = libtpu and puzzle.kernel and not solution and not refused
    uncompiled = []
    if compiled:
        with Compiler() as compiler:
            uncompiled = list(proof.compiler_problems(puzzle, compiler))
    problems = [p for p in (starter, solution) if p] + fresh + refused + uncompiled
    problems += [*review.text_problems(puzzle), *_leaks(puzzle)]
    alternatives = len(puzzle.alternatives)
    chips = " ".join(supported_chips()) if compiled else "-"
    counts = {
        "cases": str(len(puzzle.cases)),
        "alternatives": "-" if solution else f"{alternatives - len(refused)}/{alternatives}",
        "TPU": chips if puzzle.kernel else "no kernel",
        "hints": str(len(puzzle.hints)),
    }
    seconds = time.perf_counter() - start
    return Report(name, counts, problems, review.undone(puzzle), seconds)


def _leaks(puzzle: Puzzle) -> list[str]:
    try:
        return review.leaks(puzzle)
    except ImportError:  # the author's extra is missing; `tree_problems` says so, once
        return []
    except BuildError as error:
        return [str(error)]


def _wrong(name: str, quick: bool = False) -> Report:
    """The other half: what must be rejected."""
    start = time.perf_counter()
    puzzle = find(name)
    seeds = proof.SEEDS[:1] if quick else proof.SEEDS
    bad = [p for m in puzzle.mistakes if (p := proof.mistake_problem(puzzle, m, seeds))]
    count = len(puzzle.mistakes)
    counts = {"mistakes": f"{count - len(bad)}/{count}"}
    problems = [*bad, *proof.twins(puzzle)]
    seconds = time.perf_counter() - start
    return Report(name, counts, problems, seconds=seconds, mistakes=count)


def _together(right: Report, wrong: Report) -> Report:
    return Report(
        f"{ladder_of(right.rung)}/{right.rung}",
        {**wrong.counts, **right.counts},
        list(dict.fromkeys(right.problems + wrong.problems)),
        right.undone,
        right.seconds + wrong.seconds,
        wrong.mistakes,
    )


def verify_rung(name: str, use_libtpu: bool = True, quick: bool = False) -> Report:
    """Verify one rung in this process and count what was tried."""
    return _together(_guarded(_right, name, use_libtpu, quick), _guarded(_wrong, name, quick))


def selected(names: Sequence[str], local: Sequence[str]) -> list[str]:
    """Rungs named by nothing (all of the project's), LADDER, PUZZLE or LADDER/PUZZLE."""
    chosen: list[str] = []
    for name in names or local:
        if name in ladders():
            chosen += ladder_module(name).RUNGS
        else:
            rung = name.split("/")[-1]
            if "/" in name and ladder_of(rung) != name.split("/")[0]:
                raise UnknownPuzzle(f"{rung} is a rung of {ladder_of(rung)}")
            ladder_of(rung)
            chosen.append(rung)
    return list(dict.fromkeys(chosen))


def _reports(rungs: Sequence[str], libtpu: bool, quick: bool) -> Iterable[Report]:
    """The rungs' reports in their order, each as soon as it is there, on all cores."""
    if quick and len(rungs) == 1:  # two processes would take longer to start than this takes
        yield verify_rung(rungs[0], libtpu, quick)
        return
    context = multiprocessing.get_context("spawn")
    workers = min(2 * len(rungs), os.cpu_count() or 1) or 1
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        halves = [
            (
                pool.submit(_guarded, _right, name, libtpu, quick),
                pool.submit(_guarded, _wrong, name, quick),
            )
            for name in rungs
        ]
        for right, wrong in halves:
            yield _together(right.result(), wrong.result())


def verify(names: Sequence[str] = (), quick: bool = False) -> int:
    """Verify the named rungs, or everything; print a line each and a total; 0 if all holds.

    quick: one key instead of three, and nothing compiled for a TPU.
    """
    root = project()
    local = ladders_of(root)
    rungs = selected(names, local)
    libtpu = has_libtpu() and not quick
    if quick:
        print("quick: one random key, nothing compiled for a TPU; verify again without --quick")
    elif not libtpu:
        print(f"libtpu is not installed, so nothing is compiled for a TPU: {INSTALL_LIBTPU}")
    reports = []
    for number, report in enumerate(_reports(rungs, libtpu, quick), 1):
        print(f"[{number}/{len(rungs)}] {report}", flush=True)
        reports.append(report)
    if all("cases" in report.counts for report in reports):
        whole = list(_whole(root, names, local))
    else:  # some module cannot even be imported, so nothing can be built of it
        whole = ["the project's files were not compared: mend the rungs above first"]
    fronts = {ladder_of(rung) for rung in rungs}
    undone = [line for name in sorted(fronts) for line in review.undone_of_ladder(name)]
    for problem in whole:
        print(f"BAD {problem}")
    for line in undone:
        print(f"    {line}")
    print(total(reports, len(whole), len(undone)))
    return int(bool(whole or any(r.problems for r in reports)))


def _whole(root: Path, names: Sequence[str], local: Sequence[str]) -> Iterator[str]:
    """Problems of the project, or of the files of the ladders that are named."""
    if not names:
        yield from tree_problems(root, local)
    for name in names:
        if name in local:
            yield from missing(name)
            yield from stray_files(root, name)


def total(reports: Sequence[Report], whole: int, undone: int) -> str:
    """The last line: what was verified, and what is wrong or left."""
    failed = sum(bool(r.problems) for r in reports)
    mistakes = sum(r.mistakes for r in reports)
    undone += sum(len(r.undone) for r in reports)
    parts = [f"{len(reports)} rungs, {mistakes} mistakes, {failed} rungs with problems"]
    if whole:
        parts.append(f"{whole} problems of the project as a whole")
    if undone:
        parts.append(f"{undone} things left undone, which `make test` will not accept")
    return ", ".join(parts)
