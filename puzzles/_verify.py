"""The gate: does every rung hold what its module promises?"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from puzzles import _regions, _tpu, _values
from puzzles._judge import judge
from puzzles._puzzle import (
    Alternative,
    Mistake,
    Puzzle,
    UnknownPuzzle,
    find,
    ladder_module,
    ladders,
    starter_function,
    variant,
)

SEEDS = (0, 1, 2)


@dataclass
class Report:
    """What was counted on one rung, and every shortfall in words."""

    rung: str
    counts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    mistakes: int = 0

    def __str__(self) -> str:
        counts = "  ".join(f"{name} {value}" for name, value in self.counts.items())
        mark = "ok " if not self.problems else "BAD"
        lines = [f"{mark} {self.rung:<28} {counts}  ({self.seconds:.1f} s)"]
        return "\n".join(lines + [f"    {problem}" for problem in self.problems])


def mistake_problem(puzzle: Puzzle, mistake: Mistake, seeds: Sequence[int] = SEEDS) -> str | None:
    """Why `mistake` is not rejected at its stage in its own words, or None if it is."""
    if not mistake.says.strip():
        return f"mistake '{mistake.name}' says nothing"
    try:
        fn = variant(puzzle, mistake)
    except _regions.RegionError as error:
        return f"mistake '{mistake.name}': {error}"
    for seed in seeds:
        verdict = judge(puzzle, fn, seed=seed)
        if verdict.passed:
            return f"mistake '{mistake.name}' survives (seed {seed}): a case or an audit is missing"
        if verdict.stage != mistake.stage:
            return (
                f"mistake '{mistake.name}' is caught at stage '{verdict.stage}', not "
                f"'{mistake.stage}' (seed {seed}): {verdict.says}"
            )
        if mistake.says not in str(verdict):
            return (
                f"mistake '{mistake.name}' is rejected, but not in its own words "
                f"'{mistake.says}' (seed {seed}):\n{verdict}"
            )
    return None


def alternative_problem(
    puzzle: Puzzle, alternative: Alternative, compiler: _tpu.Compiler | None = None
) -> str | None:
    """Why a correct solution is not accepted, or None if it is."""
    try:
        fn = variant(puzzle, alternative)
    except _regions.RegionError as error:
        return f"alternative '{alternative.name}': {error}"
    verdict = judge(puzzle, fn, compiler=compiler, thorough=True)
    return None if verdict.passed else f"alternative '{alternative.name}' is rejected:\n{verdict}"


def solution_problem(
    puzzle: Puzzle, seeds: Sequence[int] = SEEDS, compiler: _tpu.Compiler | None = None
) -> str | None:
    """Why the reference solution does not pass, or None if it does."""
    for seed in seeds:
        once = seed == seeds[0]
        verdict = judge(
            puzzle, puzzle.solution, seed=seed, thorough=once, compiler=compiler if once else None
        )
        if not verdict.passed:
            return f"the solution is rejected (seed {seed}):\n{verdict}"
    return None


def starter_problem(puzzle: Puzzle) -> str | None:
    """Why the starter is not a starter: it must parse, run as a cell, and be unsolved."""
    try:
        fn = starter_function(puzzle)
    except (_regions.RegionError, SyntaxError) as error:
        return f"{puzzle.path.name}: {error}"
    verdict = judge(puzzle, fn)
    if verdict.stage != "unsolved":
        return f"the starter is not unsolved but '{verdict.stage}'"
    return None


def text_problems(puzzle: Puzzle) -> Iterator[str]:
    """Shortfalls of hints, explanation, cases and the number of mistakes."""
    if len(puzzle.hints) < 3:
        yield f"{len(puzzle.hints)} hints: give an idea, an API and the shape of the code"
    for number, text in enumerate(puzzle.hints, 1):
        if not text.strip():
            yield f"hint {number} is empty"
    if not puzzle.explain.strip():
        yield "no explanation"
    if len(puzzle.mistakes) < 3:
        yield f"{len(puzzle.mistakes)} mistakes: at least 3 are wanted"
    for dims in puzzle.cases:
        sizes = [v for v in dims.values() if isinstance(v, int)]
        if len(sizes) > 1 and len(set(sizes)) == 1:
            yield f"a case with equal dims, {dict(dims)}, hides swapped axes"
    names = [m.name for m in (*puzzle.mistakes, *puzzle.alternatives)]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"two mistakes or alternatives are called '{name}'"


def twins(puzzle: Puzzle) -> Iterator[str]:
    """Pairs of `values` mistakes that give equal values on every case."""
    mistakes = [m for m in puzzle.mistakes if m.stage == "values"]
    if puzzle.accepts is not None:  # judged by a predicate: there are no values to confuse
        return
    for n, one in enumerate(mistakes):
        for other in mistakes[n + 1 :]:
            if all(_equal(puzzle, one, other, case) for case in range(len(puzzle.cases))):
                yield f"'{one.name}' and '{other.name}' give equal values: they are one mistake"


def _equal(puzzle: Puzzle, one: Mistake, other: Mistake, case: int) -> bool:
    a = _values.mistaken(puzzle, one, case, 0)
    b = _values.mistaken(puzzle, other, case, 0)
    if a is None or b is None or len(a) != len(b):
        return False
    return all(
        x.shape == y.shape and _values.compare(x, y, puzzle.tolerance) is None
        for x, y in zip(a, b, strict=True)
    )


def leaks(puzzle: Puzzle) -> list[str]:
    """Lines of the rung's solution that its own cells or hints show."""
    try:
        from puzzles import _notebook
    except ImportError:  # said once, by `main`
        return []
    return [
        f"its own cells or hints show a line of the solution: {x}" for x in _notebook.leaks(puzzle)
    ]


def verify_rung(name: str, use_libtpu: bool = True) -> Report:
    """Verify one rung and count what was tried."""
    start = time.perf_counter()
    puzzle = find(name)
    report = Report(f"{puzzle.ladder}/{puzzle.name}", mistakes=len(puzzle.mistakes))
    with _tpu.Compiler() if use_libtpu and puzzle.kernel else contextlib.nullcontext() as compiler:
        early = [starter_problem(puzzle), solution_problem(puzzle, compiler=compiler)]
        report.problems += [p for p in early if p]
        bad = [p for m in puzzle.mistakes if (p := mistake_problem(puzzle, m))]
        refused = [
            p for a in puzzle.alternatives if (p := alternative_problem(puzzle, a, compiler))
        ]
    report.problems += [*bad, *refused, *text_problems(puzzle), *twins(puzzle), *leaks(puzzle)]
    mistakes, alternatives = len(puzzle.mistakes), len(puzzle.alternatives)
    chips = " ".join(_tpu.supported_chips()) if compiler is not None and not early[1] else "-"
    report.counts = {
        "cases": str(len(puzzle.cases)),
        "mistakes": f"{mistakes - len(bad)}/{mistakes}",
        "alternatives": f"{alternatives - len(refused)}/{alternatives}",
        "TPU": chips if puzzle.kernel else "no kernel",
        "hints": str(len(puzzle.hints)),
    }
    report.seconds = time.perf_counter() - start
    return report


def _selected(names: Sequence[str]) -> list[str]:
    """Rungs named by nothing (all), LADDER, PUZZLE or LADDER/PUZZLE."""
    if not names:
        return [rung for name in ladders() for rung in ladder_module(name).RUNGS]
    chosen: list[str] = []
    for name in names:
        if name in ladders():
            chosen += ladder_module(name).RUNGS
        else:
            puzzle = find(name.split("/")[-1])
            if "/" in name and puzzle.ladder != name.split("/")[0]:
                raise UnknownPuzzle(f"{puzzle.name} is a rung of {puzzle.ladder}")
            chosen.append(puzzle.name)
    return chosen


def main(names: Sequence[str] = ()) -> int:
    """Verify the named rungs, or everything; print a line each and a total; 0 if all holds."""
    rungs = _selected(names)
    libtpu = _tpu.has_libtpu()
    if not libtpu:
        print(f"libtpu is not installed, so nothing is compiled for a TPU: {_tpu.INSTALL_LIBTPU}")
    context = multiprocessing.get_context("spawn")
    reports = []
    workers = min(len(rungs), os.cpu_count() or 1) or 1
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        for report in pool.map(verify_rung, rungs, [libtpu] * len(rungs)):
            print(report, flush=True)
            reports.append(report)
    stale = _stale() if not names else []
    for problem in stale:
        print(f"BAD {problem}")
    failed = sum(bool(r.problems) for r in reports)
    total = sum(r.mistakes for r in reports)
    print(f"{len(reports)} rungs, {total} mistakes, {failed} rungs with problems", end="")
    print(f", {len(stale)} generated files out of date" if stale else "")
    return int(bool(failed or stale))


def _stale() -> list[str]:
    """Problems of the generated notebooks: out of date, or showing a line of a solution."""
    try:
        from puzzles import _notebook
    except ImportError as error:
        return [f"the notebooks cannot be checked: {error}; pip install 'pallas-puzzles[author]'"]
    return [f"{name} is out of date: python -m puzzles build" for name in _notebook.out_of_date()]
