"""The gate: does every rung hold what its module promises, and does the whole fit together?"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from puzzles._author import proof, review
from puzzles._author.margin import margin, margin_problem
from puzzles._author.proofs import Proofs
from puzzles._author.raised import raised
from puzzles._author.report import Report, together, total
from puzzles._author.repository import BuildError, project
from puzzles._author.soundness import soundness_problems
from puzzles._author.tree import (
    front_problems,
    ladders_of,
    missing,
    stray_files,
    tree_problems,
    unlisted,
)
from puzzles._ladders import UnknownPuzzle, find, ladder_module, ladder_of, ladders
from puzzles._launch import keeping_traces
from puzzles._puzzle import Alternative, Puzzle
from puzzles._tpu import INSTALL_LIBTPU, Compiler, has_libtpu, supported_chips


def _guarded(part: Callable[..., Report], name: str, *options: object) -> Report:
    """A part's report; what raises in the author's own code is a problem like others."""
    began = time.time()
    try:
        return part(name, *options)
    except Exception as error:
        problems = [raised(name, error)]
        return Report(name, problems=problems, raised=True, began=began, ended=time.time())


def _right(name: str, quick: bool = False) -> Report:
    """One part of a rung: its solution and its starter."""
    report, puzzle = Report(name), find(name)
    seeds = proof.SEEDS[:1] if quick else proof.SEEDS
    solution = report.of("solution", proof.solution_problem, puzzle, seeds, not quick)
    report.counts = {"cases": str(len(puzzle.cases)), "hints": str(len(puzzle.hints))}
    problems: list[str] = []
    if not solution:  # what would make the rest empty is told first
        with keeping_traces():
            problems = report.of("proofs", soundness_problems, puzzle)
    starter = report.of("starter", proof.starter_problem, puzzle)
    problems += [p for p in (starter, solution) if p]
    if not solution:
        found = report.of("solution", margin, puzzle, seeds)
        problems += [p for p in (margin_problem(puzzle, found),) if p]
        problems += report.of("fresh cases", proof.fresh_problems, puzzle)
        problems += report.of("scale", proof.scale_problems, puzzle)
        report.counts["margin"] = "-" if found is None else str(found)
    report.refused = bool(solution)
    report.problems = problems
    return report


def _wrong(name: str, quick: bool = False) -> Report:
    """The second part: what must be rejected."""
    report, puzzle = Report(name), find(name)
    seeds = proof.SEEDS[:1] if quick else proof.SEEDS
    asked = proof.mistake_problem, puzzle, puzzle.mistakes, seeds
    report.problems = report.of("mistakes", _each, *asked)
    report.mistakes = len(puzzle.mistakes)
    report.counts = {"mistakes": f"{report.mistakes - len(report.problems)}/{report.mistakes}"}
    return report


def _others(name: str, quick: bool, libtpu: bool) -> Report:
    """The third part: the other right answers, and what the compiler makes of all right ones."""
    report, puzzle = Report(name), find(name)
    asked = proof.alternative_problem, puzzle, puzzle.alternatives, not quick
    refused = report.of("alternatives", _each, *asked)
    compiled = libtpu and puzzle.kernel and not refused
    uncompiled = report.of("TPU", _uncompiled, puzzle) if compiled else []
    alternatives = len(puzzle.alternatives)
    report.counts = {
        "alternatives": f"{alternatives - len(refused)}/{alternatives}",
        "TPU": (" ".join(supported_chips()) if compiled else "-") if puzzle.kernel else "no kernel",
    }
    report.problems = refused + uncompiled
    return report


def _told(name: str) -> Report:
    """The last part: a rung's text, which is soon read and so never kept."""
    report, puzzle = Report(name), find(name)
    report.problems = report.of("text", _text, puzzle)
    report.undone = review.undone(puzzle)
    return report


def _each(
    ask: Callable[..., str | None], puzzle: Puzzle, answers: Sequence[Alternative], option: object
) -> list[str]:
    found = (ask(puzzle, answer, option) for answer in answers)
    return [problem for problem in found if problem]


def _uncompiled(puzzle: Puzzle) -> list[str]:
    with Compiler() as compiler:
        return [
            *proof.compiler_problems(puzzle, compiler, puzzle.alternatives),
            *proof.production_problems(puzzle, compiler),
        ]


def _text(puzzle: Puzzle) -> list[str]:
    found = list(review.text_problems(puzzle))
    try:
        from puzzles._author.leaks import leaks

        return found + leaks(puzzle)
    except ImportError:  # the author's extra is missing; `tree_problems` says so, once
        return found
    except BuildError as error:
        return [*found, str(error)]


@dataclass(frozen=True)
class _Part:
    """A part of a rung's proof, with its options, and what it is kept as."""

    work: Callable[..., Report]
    options: tuple[bool, ...]
    kind: str

    def report(self, name: str) -> Report:
        return _guarded(self.work, name, *self.options)


def _parts(libtpu: bool, quick: bool) -> tuple[_Part, ...]:
    keys = "quick" if quick else "full"
    compiled = "-compiled" if libtpu else ""
    return (
        _Part(_right, (quick,), f"right-{keys}"),
        _Part(_wrong, (quick,), f"wrong-{keys}"),
        _Part(_others, (quick, libtpu), f"others-{keys}{compiled}"),
    )


def verify_rung(name: str, use_libtpu: bool = True, quick: bool = False) -> Report:
    """Verify one rung in this process and count what was tried."""
    reports = [part.report(name) for part in _parts(use_libtpu, quick)]
    return together(f"{ladder_of(name)}/{name}", reports, _guarded(_told, name))


def selected(names: Sequence[str], local: Sequence[str]) -> list[str]:
    """Rungs named by nothing (all of the project's), LADDER, PUZZLE or LADDER/PUZZLE."""
    chosen: list[str] = []
    for name in names or local:
        if (says := unlisted(project(), name.split("/")[0])) is not None:
            raise BuildError(says)
        if name in ladders():
            chosen += ladder_module(name).RUNGS
        else:
            rung = name.split("/")[-1]
            if "/" in name and ladder_of(rung) != name.split("/")[0]:
                raise UnknownPuzzle(f"{rung} is a rung of {ladder_of(rung)}")
            ladder_of(rung)
            chosen.append(rung)
    return list(dict.fromkeys(chosen))


def _reports(rungs: Sequence[str], libtpu: bool, quick: bool, proofs: Proofs) -> Iterable[Report]:
    """The rungs' reports in their order, each as soon as it is there, on all cores."""
    context = multiprocessing.get_context("spawn")
    parts = _parts(libtpu, quick)
    workers = min(len(parts) * len(rungs), os.cpu_count() or 1) or 1
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:

        def begun(name: str, part: _Part) -> Callable[[], Report]:
            """What waits for a part's report, which was there before or is made now."""
            if (before := proofs.taken(name, part.kind)) is not None:
                return lambda: before
            return pool.submit(part.report, name).result

        waiting = [(name, [begun(name, part) for part in parts]) for name in rungs]
        for name, each in waiting:
            told, reports = _guarded(_told, name), [report() for report in each]
            for part, report in zip(parts, reports, strict=True):
                proofs.keep(name, part.kind, report)
            yield together(f"{ladder_of(name)}/{name}", reports, told)


def verify(names: Sequence[str] = (), quick: bool = False, fresh: bool = False) -> int:
    """Verify the named rungs, or everything; print a line each and a total.

    quick: one key instead of three, and nothing compiled for a TPU. fresh: nothing that was proven
    before counts. Returns 0 if all holds, 1 if something does not, and 2 if nothing is wrong and
    something is left undone.
    """
    start, root = time.time(), project()
    local = ladders_of(root)
    rungs = selected(names, local)
    libtpu = has_libtpu() and not quick
    if quick:
        print("quick: one random key, nothing compiled for a TPU; verify again without --quick")
    elif not libtpu:
        print(f"libtpu is not installed, so nothing is compiled for a TPU: {INSTALL_LIBTPU}")
    reports = []
    for number, report in enumerate(_reports(rungs, libtpu, quick, Proofs(root, fresh)), 1):
        print(f"[{number}/{len(rungs)}] {report}", flush=True)
        reports.append(report)
    fronts = list(dict.fromkeys([*map(ladder_of, rungs), *(() if names else local)]))
    if all("cases" in report.counts for report in reports):
        told = {problem for report in reports for problem in report.problems}
        whole = [p for p in _whole(root, names, local, fronts) if p not in told]
    else:  # of a module that cannot even be imported nothing can be built
        whole = [problem for name in fronts for problem in front_problems(name)]
        if any(name in local for name in names or local):
            whole.append("the project's files were not compared: mend the rungs above first")
    undone = [line for name in fronts for line in review.undone_of_ladder(name)]
    undone += [] if names else review.undone_of_project(root)
    for problem in whole:
        print(f"BAD {problem}")
    for line in undone:
        print(f"    {line}")
    print(total(reports, len(whole), len(undone), time.time() - start))
    if whole or any(r.problems for r in reports):
        return 1
    return 2 if undone or any(r.undone for r in reports) else 0


def _whole(
    root: Path, names: Sequence[str], local: Sequence[str], fronts: Sequence[str]
) -> Iterator[str]:
    """Problems of the project, or of the ladders of what is named, and their files."""
    if not names:
        yield from tree_problems(root, local)
    for front in fronts if names else ():
        yield from front_problems(front)
    for name in names:
        if name in local:
            yield from missing(name)
            yield from stray_files(root, name)
