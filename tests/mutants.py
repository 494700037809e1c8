"""Judge every small change of every solution; `make mutants` prints the survivors.

Each change of the learner's lines is judged as an answer. A passing mutant must be equivalent: it
gives the same values on every case and under another key, costs no more, and compiles for every
TPU. All other passing mutants are survivors, unless `tests/equivalents.toml` has a reason why they
are right.

    python tests/mutants.py [--all] [NAME ...]      --all also lists equivalent mutants
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from mutate import Mutant, mutants

import puzzles
from puzzles import Puzzle, _compile
from puzzles._author import gate
from puzzles._judge import Case, cases, execute, judge, judging, numbers
from puzzles._launch import trace_call
from puzzles._puzzle import load
from puzzles._record import edits_of

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
SECONDS = 60  # a change can make a loop endless
SAME = 1e-5
# The fates of a mutant. "late" counts as rejected: it took more than a minute, so it is endless or
# slow.
KINDS = ("rejected", "late", "equivalent", "excused", "survives")

Results = tuple[list[np.ndarray], list[int]]


class TooLong(BaseException):
    """A BaseException, so that no `except Exception` of JAX swallows the alarm."""


def _alarm(*_: object) -> None:
    raise TooLong


def equivalents(name: str) -> dict[tuple[str, str], str]:
    """The reasons why changes of a puzzle are right, by the solution's line and the change."""
    listed = tomllib.loads(EQUIVALENTS.read_text(encoding="utf-8"))["equivalent"]
    own = [one for one in listed if one["puzzle"] == name]
    return {
        (one["line"], f"{old} -> {new}"): one["why"] for one in own for old, new in edits_of(one)
    }


def results(case: Case, fn: Callable) -> Results:
    """The flat results of `fn` on a case, and its launches' steps, bytes and FLOPs in sum."""
    if not case.puzzle.kernel:
        return [np.asarray(x) for x in jax.tree.leaves(case.plainly(fn))], []
    traced = trace_call(case.judged(fn), *case.args)
    counts = ("steps", "hbm_bytes", "flops")
    cost = [sum(getattr(one, count) for one in traced.launches) for count in counts]
    return execute(traced), cost


def differs(case: Case, want: Results, fn: Callable) -> str | None:
    """A difference between a passing mutant and the solution on a case, or None."""
    try:
        got = results(case, fn)
    except Exception as error:
        return f"raises {type(error).__name__} on {case.label}"
    for one, other in zip(want[0], got[0], strict=True):
        same = one.shape == other.shape and numbers.compare(one, other, SAME) is None
        if case.puzzle.accepts is None and not same:
            return f"other values on {case.label} (seed {case.seed})"
    if any(mine > theirs for mine, theirs in zip(got[1], want[1], strict=True)):
        return f"steps, bytes, FLOPs {got[1]}, not {want[1]}, on {case.label}"
    return None


def refused(puzzle: Puzzle, fn: Callable, compiler: _compile.Compiler) -> str | None:
    """The reason why a passing mutant does not compile for some TPU, or None."""
    if puzzle.kernel:
        case = cases(puzzle)[0]
        for chip, why in compiler.compile(trace_call(case.judged(fn), *case.args)).items():
            if why is not None:
                return f"{chip} refuses it: {why}"
    return None


def hunt(name: str) -> dict[str, list[str]]:
    """Judge every mutant of a puzzle: a line for each, by fate."""
    puzzle, excuses = puzzles.find(name), equivalents(name)
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    explainers = judging.EXPLAINERS
    right = {one: results(one, puzzle.solution) for n in (0, 7) for one in cases(puzzle, n)}
    before = signal.signal(signal.SIGALRM, _alarm)
    try:
        judging.EXPLAINERS = ()  # the reason does not matter here
        with _compile.Compiler() as compiler:
            for mutant in mutants(puzzle.text):
                line = puzzle.text.splitlines()[mutant.line - 1].strip()
                excuse = excuses.pop((line, mutant.change), None)
                kind, why = _became(puzzle, mutant, right, compiler)
                if kind == "survives" and excuse is not None:
                    kind, why = "excused", excuse
                because = f": {why}" if why else ""
                found[kind].append(f"line {mutant.line}: {mutant.change}{because}")
    finally:  # restore the timer and the explainers for later tests
        judging.EXPLAINERS = explainers
        signal.signal(signal.SIGALRM, before)
    found["survives"] += [f"{one}: excused, but there is no such change" for one in excuses]
    return found


def _became(
    puzzle: Puzzle, mutant: Mutant, right: dict[Case, Results], compiler: _compile.Compiler
) -> tuple[str, str | None]:
    """The fate of a mutant, of `KINDS` without "excused", and the reason."""
    signal.alarm(SECONDS)
    try:
        try:
            fn = load(puzzle, mutant.text, "mutant")[puzzle.name]
        except Exception:
            return "rejected", None
        if not judge(puzzle, fn, thorough=True).passed:
            return "rejected", None
        found = (differs(case, want, fn) for case, want in right.items())
        why = next(filter(None, found), None) or refused(puzzle, fn, compiler)
        return ("survives" if why else "equivalent"), why
    except TooLong:
        compiler.start()  # its last answer may still be on the way
        return "late", None
    except Exception as error:
        return "survives", f"the engine itself raises {error!r}"
    finally:
        signal.alarm(0)


def main(arguments: Sequence[str]) -> int:
    """Print a line for each puzzle and each survivor; return 1 if there is a survivor."""
    told = ["survives", "late", *(["equivalent"] if "--all" in arguments else [])]
    asked = [a for a in arguments if not a.startswith("-")]
    names = gate.selected(asked, puzzles.ladders())
    context = multiprocessing.get_context("spawn")
    totals: Counter[str] = Counter()
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for name, found in zip(names, pool.map(hunt, names), strict=True):
            counts = Counter({kind: len(lines) for kind, lines in found.items()})
            print(row(name, counts), flush=True)
            for kind in told:
                for line in found[kind]:
                    print(f"    {kind} {line}")
            totals += counts
    print(row(f"{len(names)} puzzles", totals))
    return int(totals["survives"] > 0)


def row(name: str, counts: Counter[str]) -> str:
    """A row with the number of mutants, in all and by fate."""
    each = "".join(f"{counts[kind]:6} {kind}" for kind in KINDS)
    return f"{name:<30}{counts.total():6} mutants{each}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
