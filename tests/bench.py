"""How long a learner waits: every check, the import, whole notebooks. Run by `make bench`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import gate

if TYPE_CHECKING:
    from puzzles import Puzzle

# Seconds that we aim at; a summit's check may take longer than others.
MEDIAN, WORST, IMPORT_AIM, WRONG_AIM, NAMED_AIM, REFUSED = 0.6, 2.5, 0.2, 0.3, 1.5, 4.0
SUMMITS = {"splash_multi_head": 8.0, "moe_layer": 15.0}
NOTEBOOK, NOTEBOOKS = 30.0, 120.0
FIRST = "first check of a right answer, median of the rungs"
AGAIN = "the same again"
WRONG = "a wrong answer, until its numbers are known to be wrong"
NAMED = "the same, until it has its name, median of all mistakes"
SLOWEST = "slowest first check, but for the two summits"
IMPORT = "import puzzles, beyond JAX itself"
ALL = "all notebooks, one after another"
SLOW = "slowest refusal, with all that is said of its cause"
NATURAL = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["answer"]

# First check, the same again, each wrong answer without and with its name, the starter.
Times = tuple[float, float, list[float], list[float], float]

_IMPORT = """
import time
import jax, jax.numpy, jax.experimental.pallas, jax.experimental.pallas.tpu
start = time.perf_counter()
import puzzles
print(time.perf_counter() - start)
"""


def main(arguments: list[str]) -> None:
    if arguments:
        print(json.dumps(_ladder(arguments[0])))
        return
    rows = {}
    names = _python("-c", "import puzzles; print(*puzzles.ladders())").split()
    print(f"{'seconds':28}{'first':>8}{'again':>8}{'wrong':>8}{'named':>8}{'unsolved':>10}")
    for name in names:
        for rung, times in json.loads(_python(__file__, name)).items():
            print(_row(rung, times))
            rows[rung] = times
    print(f"\n{'':56}{'now':>8}{'aim':>8}")
    for label, (now, aim) in figures(rows).items():
        print(f"{label:56}{now:8.2f}{aim:8.1f}", flush=True)
    print("", *gate.lines(), sep="\n")


def figures(rows: dict[str, Times]) -> dict[str, tuple[float, float]]:
    """Seconds now, and the aim."""
    ordinary = [times for rung, times in rows.items() if rung not in SUMMITS]
    first, again, *_ = zip(*ordinary, strict=True)
    wrong = [seconds for times in rows.values() for seconds in times[2]]
    named = [seconds for times in rows.values() for seconds in times[3]]
    imported = statistics.median(float(_python("-c", _IMPORT)) for _ in range(5))
    found = {
        FIRST: (statistics.median(first), MEDIAN),
        AGAIN: (statistics.median(again), MEDIAN),
        WRONG: (statistics.median(wrong), WRONG_AIM),
        NAMED: (statistics.median(named), NAMED_AIM),
        SLOWEST: (max(first), WORST),
        SLOW: (max(named), REFUSED),
    }
    for rung, aim in SUMMITS.items():
        found[rung] = (rows[rung][0], aim)
    found[IMPORT] = (imported, IMPORT_AIM)
    notebooks = _notebooks()
    for name, seconds in notebooks:
        found[f"solved {name}"] = (seconds, NOTEBOOK)
    found[ALL] = (sum(seconds for _, seconds in notebooks), NOTEBOOKS)
    return found


def _row(label: str, times: Times) -> str:
    cold, warm, wrong, named, unsolved = times
    medians = "".join(f"{statistics.median(x):8.2f}" if x else f"{'-':>8}" for x in (wrong, named))
    return f"{label:28}{cold:8.2f}{warm:8.2f}{medians}{unsolved:10.2f}"


def _python(*arguments: str) -> str:
    """The output of a fresh interpreter; its warnings are dropped."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.splitlines()[-1]


def _ladder(name: str) -> dict[str, Times]:
    """Seconds of a first check, a second one, one on each wrong answer and one on the starter."""
    from puzzles import ladder
    from puzzles._puzzle import starter_function

    times = {}
    for puzzle in ladder(name):
        unsolved = starter_function(puzzle)
        cold = _seconds(puzzle.solution, "passed")
        warm = _seconds(puzzle.solution, "passed")
        wrong, named = _wrong(puzzle)
        times[puzzle.name] = (cold, warm, wrong, named, _seconds(unsolved, "unsolved"))
    return times


def _wrong(puzzle: Puzzle) -> tuple[list[float], list[float]]:
    """Seconds for each mistake in the numbers, without and with its name, nothing compiled yet."""
    from puzzles import Mistake, mutate
    from puzzles._judge import judging, tried
    from puzzles._launch import compiling

    plain, named = [], []
    explainers = judging.EXPLAINERS
    nameless = {
        rule: tuple(one for one in some if one[1] is not tried.mistake_on_record)
        for rule, some in explainers.items()
    }
    natural = [
        Mistake(one["name"], one["old"], one["new"])
        for one in NATURAL
        if one["rung"] == puzzle.name
    ]
    for mistake in (*(m for m in puzzle.mistakes if m.stage == "values"), *natural):
        for seconds, known in ((plain, nameless), (named, explainers)):
            compiling._compiled.clear()
            for kept in (tried._traced, tried.mistaken, tried._program_of, tried._faults_of):
                kept.cache_clear()
            judging.EXPLAINERS = known
            seconds.append(_seconds(mutate(puzzle, mistake), "values"))
    return plain, named


def _seconds(fn: Callable, stage: str) -> float:
    from puzzles import check

    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        verdict = check(fn)
    seconds = time.perf_counter() - start
    if verdict is None or verdict.stage != stage:
        sys.exit(f"timed the wrong thing: expected {stage}, got\n{verdict}")
    return seconds


def _notebooks() -> list[tuple[str, float]]:
    """Seconds of each solved notebook from starting its kernel to its last cell."""
    import nbclient
    import nbformat

    from puzzles._author import notebook

    os.environ["PUZZLES_STRICT"] = "1"
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for path in notebook.write_solved(Path(folder)):
            notebook = nbformat.read(path, as_version=4)
            place = {"metadata": {"path": folder}}
            client = nbclient.NotebookClient(notebook, timeout=600, resources=place)
            start = time.perf_counter()
            client.execute()
            found.append((path.stem, time.perf_counter() - start))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
