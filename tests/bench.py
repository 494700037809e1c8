"""The waiting times of a learner: checks, the import, whole notebooks. Run by `make bench`."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

import nbclient

import puzzles
from puzzles import Alternative, Mistake, Puzzle, check, mutate
from puzzles._author import notebook
from puzzles._judge import judging
from puzzles._judge.explain import by_trying
from puzzles._puzzle import starter_function
from puzzles._record import edits_of

# Aims in seconds; the checks of two large puzzles may take longer than others.
SUMMITS = {"splash_multi_head": 8.0, "moe_layer": 15.0}
NATURAL = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["answer"]
IMPORT = """
import time
import jax, jax.numpy, jax.experimental.pallas, jax.experimental.pallas.tpu
start = time.perf_counter()
import puzzles
print(time.perf_counter() - start)
"""


class Times(NamedTuple):
    """Seconds of a first check, its repetition, each wrong answer, and the starter."""

    first: float
    again: float
    wrong: list[float]
    named: list[float]
    unsolved: float


def main() -> None:
    rows: dict[str, Times] = {}
    print(f"{'seconds':28}" + "".join(f"{name:>10}" for name in Times._fields))
    for name in puzzles.ladders():
        for puzzle, times in alone(ladder, name).items():
            shown = (median(x or [0]) if isinstance(x, list) else x for x in times)
            print(f"{puzzle:28}" + "".join(f"{seconds:10.2f}" for seconds in shown))
            rows[puzzle] = times
    print(f"\n{'':56}{'now':>8}{'aim':>8}")
    for label, now, aim in figures(rows):
        print(f"{label:56}{now:8.2f}{aim:8.1f}", flush=True)


def figures(rows: dict[str, Times]) -> Iterator[tuple[str, float, float]]:
    """Yield (measurement, seconds, aim)."""
    ordinary = [times for puzzle, times in rows.items() if puzzle not in SUMMITS]
    first = [times.first for times in ordinary]
    wrong = [seconds for times in rows.values() for seconds in times.wrong]
    named = [seconds for times in rows.values() for seconds in times.named]
    yield "first check of a right answer, median of the puzzles", median(first), 0.6
    yield "the same again", median(times.again for times in ordinary), 0.6
    yield "a wrong answer, until its numbers are known to be wrong", median(wrong), 0.3
    yield "the same, until it has its name, median of all mistakes", median(named), 1.5
    yield "slowest first check, but for the two summits", max(first), 2.5
    yield "slowest refusal, with all that is said of its cause", max(named), 4.0
    for puzzle, aim in SUMMITS.items():
        yield puzzle, rows[puzzle].first, aim
    imported = [
        float(subprocess.check_output([sys.executable, "-c", IMPORT], stderr=subprocess.DEVNULL))
        for _ in range(5)
    ]
    yield "import puzzles, beyond JAX itself", median(imported), 0.2
    solved = notebooks()
    for name, seconds in solved.items():
        yield f"solved {name}", seconds, 30.0
    yield "all notebooks, one after another", sum(solved.values()), 120.0


def alone(fn: Callable, *args: object) -> dict[str, Times]:
    """The result of a function in a new interpreter, in which nothing is compiled yet."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(fn, *args).result()


def ladder(name: str) -> dict[str, Times]:
    """The times of each puzzle of a ladder."""
    found = {}
    for puzzle in puzzles.ladder(name):
        unsolved = starter_function(puzzle)
        typed = mutate(puzzle, Alternative("itself"))  # it shares no trace with itself
        first, again = (seconds(typed, "passed") for _ in range(2))
        wrong, named = refusals(puzzle)
        found[puzzle.name] = Times(first, again, wrong, named, seconds(unsolved, "unsolved"))
    return found


def refusals(puzzle: Puzzle) -> tuple[list[float], list[float]]:
    """Seconds for each mistake in the numbers, without and with its name, nothing compiled yet."""
    plain, named = [], []
    explainers = judging.EXPLAINERS
    by_name = by_trying.mistake_on_record
    nameless = tuple(explainer for explainer in explainers if explainer[1] is not by_name)
    mistakes = [one for one in puzzle.mistakes if one.stage == "values"]
    natural = (one for one in NATURAL if one["puzzle"] == puzzle.name)
    mistakes += (Mistake(one["name"], edits_of(one)) for one in natural)
    timed = ((plain, nameless), (named, explainers))
    for mistake, (found, known) in itertools.product(mistakes, timed):
        for kept in (
            by_trying._traced,
            by_trying.mistaken,
            by_trying._program_of,
            by_trying._faults_of,
        ):
            kept.cache_clear()
        judging.EXPLAINERS = known
        found.append(seconds(mutate(puzzle, mistake), "values"))
    return plain, named


def seconds(fn: Callable, stage: str) -> float:
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        verdict = check(fn)
    took = time.perf_counter() - start
    if verdict is None or verdict.stage != stage:
        sys.exit(f"timed the wrong thing: expected {stage}, got\n{verdict}")
    return took


def notebooks() -> dict[str, float]:
    """Seconds of each solved notebook from starting its kernel to its last cell."""
    os.environ["PUZZLES_STRICT"] = "1"
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in puzzles.ladders():
            place = {"metadata": {"path": folder}}
            solved = notebook.built(name, solved=True)
            client = nbclient.NotebookClient(solved, timeout=600, resources=place)
            start = time.perf_counter()
            client.execute()
            found[name] = time.perf_counter() - start
    return found


if __name__ == "__main__":
    main()
