"""The gate: does every rung hold what its module promises, and does the whole fit together?"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from puzzles._author import proof, review
from puzzles._author.lint import lint_problems
from puzzles._author.margin import margin, margin_problem
from puzzles._author.prose import unknown_rungs, unsourced
from puzzles._author.raised import raised
from puzzles._author.report import Report, together, total
from puzzles._author.repository import BuildError, project
from puzzles._author.shapes import annotation_problems
from puzzles._author.soundness import soundness_problems
from puzzles._author.tree import (
    front_problems,
    ladders_of,
    missing,
    stray_files,
    tree_problems,
    unlisted,
)
from puzzles._author.vague import vague_problems
from puzzles._author.wait import first_check, wait_notes
from puzzles._ladders import UnknownPuzzle, find, ladder_module, ladder_of, ladders
from puzzles._launch import keeping_traces
from puzzles._puzzle import Puzzle
from puzzles._tpu import INSTALL_LIBTPU, Compiler, has_libtpu, supported_chips


def _guarded(part: Callable[..., Report], name: str, *options: object) -> Report:
    """A part's report; what raises in the author's own code is a problem like others."""
    began = time.time()
    try:
        return part(name, *options)
    except Exception as error:
        return Report(name, problems=[raised(name, error)], began=began, ended=time.time())


def _right(name: str, quick: bool = False) -> Report:
    """One part of a rung: what must pass, and its text."""
    report, puzzle = Report(name), find(name)
    seeds = proof.SEEDS[:1] if quick else proof.SEEDS
    report.wait = report.of("first check", first_check, puzzle)
    solution = report.of("solution", proof.solution_problem, puzzle, seeds)
    report.counts = {"cases": str(len(puzzle.cases)), "hints": str(len(puzzle.hints))}
    problems: list[str] = [] if solution else report.of("proofs", _sound, puzzle)
    starter = report.of("starter", proof.starter_problem, puzzle)
    problems += [p for p in (starter, solution) if p]
    if not solution:
        found = report.of("solution", margin, puzzle, seeds)
        problems += [p for p in (margin_problem(puzzle, found),) if p]
        report.notes += wait_notes(puzzle, report.wait)
        problems += report.of("fresh cases", proof.fresh_problems, puzzle)
        problems += report.of("scale", proof.scale_problems, puzzle)
        report.counts["margin"] = "-" if found is None else str(found)
        report.counts["first check"] = f"{report.wait:.1f} s"
        if needed := proof.slack_words(puzzle):
            report.counts["slack"] = needed
    problems += report.of("text", _text, puzzle)
    report.refused = bool(solution)
    report.undone = review.undone(puzzle)
    report.problems = problems
    return report


def _others(name: str, libtpu: bool) -> Report:
    """The second part: the other right answers, and what the compiler makes of all right ones."""
    report, puzzle = Report(name), find(name)
    refused = report.of("alternatives", _refused, puzzle)
    compiled = libtpu and puzzle.kernel and not refused
    uncompiled = report.of("TPU", _uncompiled, puzzle) if compiled else []
    alternatives = len(puzzle.alternatives)
    report.counts = {
        "alternatives": f"{alternatives - len(refused)}/{alternatives}",
        "TPU": (" ".join(supported_chips()) if compiled else "-") if puzzle.kernel else "no kernel",
    }
    report.problems = refused + uncompiled
    return report


@keeping_traces()
def _sound(puzzle: Puzzle) -> list[str]:
    """What would make the rest empty: it is told first."""
    return [*soundness_problems(puzzle), *annotation_problems(puzzle)]


def _refused(puzzle: Puzzle) -> list[str]:
    found = (proof.alternative_problem(puzzle, one) for one in puzzle.alternatives)
    return [problem for problem in found if problem]


def _uncompiled(puzzle: Puzzle) -> list[str]:
    with Compiler() as compiler:
        return list(proof.compiler_problems(puzzle, compiler, puzzle.alternatives))


def _text(puzzle: Puzzle) -> list[str]:
    found = [*review.text_problems(puzzle), *unknown_rungs(puzzle), *unsourced(puzzle)]
    found += lint_problems(puzzle)
    try:
        from puzzles._author.leaks import leaks

        return found + leaks(puzzle)
    except ImportError:  # the author's extra is missing; `tree_problems` says so, once
        return found
    except BuildError as error:
        return [*found, str(error)]


def _wrong(name: str, quick: bool = False) -> Report:
    """The third part: what must be rejected."""
    report, puzzle = Report(name), find(name)
    seeds = proof.SEEDS[:1] if quick else proof.SEEDS
    bad = report.of("mistakes", _unnoticed, puzzle, seeds)
    vague = report.of("mistakes", vague_problems, puzzle)
    twins = report.of("twins", proof.twins, puzzle)
    report.mistakes = len(puzzle.mistakes)
    report.counts = {"mistakes": f"{report.mistakes - len(bad)}/{report.mistakes}"}
    report.problems = [*bad, *vague, *twins]
    return report


def _unnoticed(puzzle: Puzzle, seeds: Sequence[int]) -> list[str]:
    found = (proof.mistake_problem(puzzle, one, seeds) for one in puzzle.mistakes)
    return [problem for problem in found if problem]


def _parts(libtpu: bool, quick: bool) -> list[tuple[Callable[..., Report], bool]]:
    """The parts of a rung's report, each with the option that it takes."""
    return [(_right, quick), (_wrong, quick), (_others, libtpu)]


def verify_rung(name: str, use_libtpu: bool = True, quick: bool = False) -> Report:
    """Verify one rung in this process and count what was tried."""
    parts = [_guarded(part, name, option) for part, option in _parts(use_libtpu, quick)]
    return together(f"{ladder_of(name)}/{name}", *parts)


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


def _reports(rungs: Sequence[str], libtpu: bool, quick: bool) -> Iterable[Report]:
    """The rungs' reports in their order, each as soon as it is there, on all cores."""
    context = multiprocessing.get_context("spawn")
    parts = _parts(libtpu, quick)
    workers = min(len(parts) * len(rungs), os.cpu_count() or 1) or 1
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        submitted = [
            (name, [pool.submit(_guarded, part, name, option) for part, option in parts])
            for name in rungs
        ]
        for name, waiting in submitted:
            yield together(f"{ladder_of(name)}/{name}", *(one.result() for one in waiting))


def verify(names: Sequence[str] = (), quick: bool = False) -> int:
    """Verify the named rungs, or everything; print a line each and a total.

    quick: one key instead of three, and nothing compiled for a TPU. Returns 0 if all holds, 1 if
    something does not, and 2 if nothing is wrong and something is left undone.
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
    for number, report in enumerate(_reports(rungs, libtpu, quick), 1):
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
