"""The gate: does every rung hold what its module promises, and does the whole fit together?"""

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
    """What a rung's code proves; what raises in it is a problem like others."""
    report = Report(f"{ladder_of(name)}/{name}")
    try:
        _prove(report, find(name), libtpu, quick)
    except Exception as error:
        report.problems.append(raised(name, error))
        report.raised = True
    return report


def _prove(report: Report, puzzle: Puzzle, libtpu: bool, quick: bool) -> None:
    """Fill a report, but for what is said of the rung's text."""
    seeds = proof.SEEDS[:1] if quick else proof.SEEDS
    solution = proof.solution_problem(puzzle, seeds, not quick)
    report.problems += _told(solution, proof.starter_problem(puzzle))
    if solution:  # all else is judged by it
        return
    with keeping_traces():
        report.problems += soundness_problems(puzzle)
    report.problems += margin_problems(puzzle, seeds)
    report.problems += [*proof.fresh_problems(puzzle), *proof.scale_problems(puzzle)]
    wrong = _told(*(proof.mistake_problem(puzzle, one, seeds) for one in puzzle.mistakes))
    others = puzzle.alternatives
    refused = _told(*(proof.alternative_problem(puzzle, one, not quick) for one in others))
    report.problems += [*wrong, *refused]
    compiled = libtpu and puzzle.kernel and not refused
    if compiled:
        with Compiler() as compiler:
            report.problems += proof.compiler_problems(puzzle, compiler, others)
            report.problems += proof.production_problems(puzzle, compiler)
    report.counts = {
        "mistakes": f"{len(puzzle.mistakes) - len(wrong)}/{len(puzzle.mistakes)}",
        "alternatives": f"{len(others) - len(refused)}/{len(others)}",
        "TPU": (" ".join(supported_chips()) if compiled else "-") if puzzle.kernel else "no kernel",
    }


def _told(*problems: str | None) -> list[str]:
    return [problem for problem in problems if problem]


def with_text(name: str, report: Report) -> Report:
    """The report with what is said of a rung's text, which is soon read and so never kept."""
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
    """Rungs named by nothing (all of the project's), LADDER, PUZZLE or LADDER/PUZZLE."""
    chosen: list[str] = []
    for name in names or local:
        if name in ladders():
            chosen += ladder_module(name).RUNGS
        else:
            rung = name.split("/")[-1]
            ladder_of(rung)  # raises where there is none
            chosen.append(rung)
    return list(dict.fromkeys(chosen))


def _reports(rungs: Sequence[str], libtpu: bool, quick: bool, proofs: Proofs) -> Iterable[Report]:
    """The rungs' reports in their order, each as soon as it is there, on all cores."""
    kind = ("quick" if quick else "full") + ("-compiled" if libtpu else "")
    kept = {name: proofs.taken(name, kind) for name in rungs}
    context = multiprocessing.get_context("spawn")
    workers = min(len(rungs), os.cpu_count() or 1) or 1
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        wanted = [name for name in rungs if kept[name] is None]
        waiting = {name: pool.submit(proven, name, libtpu, quick) for name in wanted}
        for name in rungs:
            report = kept[name] or waiting[name].result()
            proofs.keep(name, kind, report)
            yield with_text(name, report)


def verify(names: Sequence[str] = (), quick: bool = False, fresh: bool = False) -> int:
    """Verify the named rungs, or everything; print a line each and a total.

    quick: one key instead of three, and nothing compiled for a TPU. fresh: nothing that was proven
    before counts. Returns 0 if all holds, 1 if something does not, and 2 if nothing is wrong and
    something is left undone.
    """
    start, root = time.time(), project()
    local = review.ladders_of(root)
    rungs = selected(names, local)
    libtpu = has_libtpu() and not quick
    if quick:
        print(to_author("verified_quickly"))
    elif not libtpu:
        print(to_author("verified_without_libtpu", install=INSTALL_LIBTPU))
    reports = []
    for number, report in enumerate(_reports(rungs, libtpu, quick, Proofs(root, fresh)), 1):
        print(f"[{number}/{len(rungs)}] {report}", flush=True)
        reports.append(report)
    fronts = list(dict.fromkeys([*map(ladder_of, rungs), *(() if names else local)]))
    whole = [problem for name in fronts for problem in review.ladder_problems(name)]
    if any(report.raised for report in reports):  # nothing can be built of what does not run
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
