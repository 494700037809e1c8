"""Validation: run every check of every puzzle, and the checks of the whole project."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Iterable, Sequence

from puzzles._author import proof, review
from puzzles._author.proofs import Proofs
from puzzles._author.report import Report, raised, total
from puzzles._author.repository import BuildError, project
from puzzles._author.soundness import margin_problems, soundness_problems
from puzzles._compile import INSTALL_LIBTPU, Compiler, has_libtpu, supported_chips
from puzzles._ladders import find, folder_of, front_page, ladder_module, ladder_of, ladders
from puzzles._launch import keeping_traces
from puzzles._puzzle import Puzzle
from puzzles._rules import to_author


def proven(name: str, libtpu: bool, quick: bool) -> Report:
    """Run every check on a puzzle's code.

    An exception raised by the puzzle's own code is reported like any other problem.
    """
    report = Report(f"{ladder_of(name)}/{name}")
    try:
        _prove(report, find(name), libtpu, quick)
    except Exception as error:
        report.problems.append(raised(name, error))
        report.raised = True
    return report


def _prove(report: Report, puzzle: Puzzle, libtpu: bool, quick: bool) -> None:
    """Fill a report, except for the problems of the puzzle's text."""
    seeds = proof.SEEDS[:1] if quick else proof.SEEDS
    solution = proof.solution_problem(puzzle, seeds, not quick)
    report.problems += _problems(solution, proof.starter_problem(puzzle))
    if solution:  # all other checks compare with it
        return
    with keeping_traces():
        report.problems += soundness_problems(puzzle)
    report.problems += margin_problems(puzzle, seeds)
    report.problems += [*proof.fresh_problems(puzzle), *proof.scale_problems(puzzle)]
    wrong = _problems(*(proof.mistake_problem(puzzle, m, seeds) for m in puzzle.mistakes))
    rights = puzzle.alternatives
    refused = _problems(*(proof.alternative_problem(puzzle, right, not quick) for right in rights))
    report.problems += [*wrong, *refused]
    compiled = libtpu and puzzle.kernel and not refused
    if compiled:
        with Compiler() as compiler:
            report.problems += proof.compiler_problems(puzzle, compiler, rights)
            report.problems += proof.production_problems(puzzle, compiler)
    report.counts = {
        "mistakes": f"{len(puzzle.mistakes) - len(wrong)}/{len(puzzle.mistakes)}",
        "alternatives": f"{len(rights) - len(refused)}/{len(rights)}",
        "TPU": (" ".join(supported_chips()) if compiled else "-") if puzzle.kernel else "no kernel",
    }


def _problems(*problems: str | None) -> list[str]:
    return [problem for problem in problems if problem]


def with_text(name: str, report: Report) -> Report:
    """Add the problems of a puzzle's text, which are never cached because reading is fast."""
    if report.raised:
        return report
    puzzle = find(name)
    report.undone = review.undone(puzzle.path, puzzle.file)
    report.undone += review.undone(puzzle.record_path, puzzle.record_file)
    report.problems += review.text_problems(puzzle)
    from puzzles._author.cells import leaks  # needs the author's extra

    try:
        report.problems += leaks(puzzle)
    except BuildError as error:
        report.problems.append(str(error))
    return report


def selected(names: Sequence[str], local: Sequence[str]) -> list[str]:
    """The puzzles of names such as LADDER, PUZZLE or LADDER/PUZZLE; without names, of `local`."""
    chosen: list[str] = []
    for name in names or local:
        if name in ladders():
            chosen += ladder_module(name).PUZZLES
        else:
            puzzle = name.split("/")[-1]
            ladder_of(puzzle)  # raises UnknownPuzzleError
            chosen.append(puzzle)
    return list(dict.fromkeys(chosen))


def _reports(puzzles: Sequence[str], libtpu: bool, quick: bool, proofs: Proofs) -> Iterable[Report]:
    """Yield the puzzles' reports in order, each as soon as it is ready, computed on all cores."""
    kind = ("quick" if quick else "full") + ("-compiled" if libtpu else "")
    cached = {name: proofs.taken(name, kind) for name in puzzles}
    context = multiprocessing.get_context("spawn")
    workers = min(len(puzzles), os.cpu_count() or 1) or 1
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        stale = [name for name in puzzles if cached[name] is None]
        waiting = {name: pool.submit(proven, name, libtpu, quick) for name in stale}
        for name in puzzles:
            report = cached[name] or waiting[name].result()
            proofs.keep(name, kind, report)
            yield with_text(name, report)


def verify(names: Sequence[str] = (), quick: bool = False, fresh: bool = False) -> int:
    """Verify the named puzzles, or everything; print a line for each and a total.

    quick: use one key instead of three, and compile nothing for a TPU.
    fresh: ignore cached proofs.
    Returns 0 if all is well, 1 if there is a problem, and 2 if something is only left undone.
    """
    start, root = time.time(), project()
    local = review.ladders_of(root)
    puzzles = selected(names, local)
    libtpu = has_libtpu() and not quick
    if quick:
        print(to_author("verified_quickly"))
    elif not libtpu:
        print(to_author("verified_without_libtpu", install=INSTALL_LIBTPU))
    reports = []
    for number, report in enumerate(_reports(puzzles, libtpu, quick, Proofs(root, fresh)), 1):
        print(f"[{number}/{len(puzzles)}] {report}", flush=True)
        reports.append(report)
    fronts = list(dict.fromkeys([*map(ladder_of, puzzles), *(() if names else local)]))
    whole = [problem for name in fronts for problem in review.ladder_problems(name)]
    if any(report.raised for report in reports):  # a build needs code that runs
        whole.append(to_author("files_not_compared"))
    elif not names:
        whole += review.project_problems(root, local)
    files = {front_page(name): folder_of(name) / "__init__.py" for name in fronts}
    files |= {} if names else {name: root / name for name in ("pyproject.toml", "README.md")}
    undone = [line for shown, path in files.items() for line in review.undone(path, shown)]
    for problem in whole:
        print(f"BAD {problem}")
    for line in undone:
        print(f"    {line}")
    print(total(reports, len(whole), len(undone), time.time() - start))
    if whole or any(r.problems for r in reports):
        return 1
    return 2 if undone or any(r.undone for r in reports) else 0
