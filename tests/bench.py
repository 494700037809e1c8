"""How long a learner waits: `check` on every rung, and the import. Run by `make bench`."""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

MEDIAN, WORST, IMPORT = 1.0, 2.5, 0.2  # seconds: what we aim at

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
    rows = []
    print(f"{'seconds':24}{'cold':>8}{'warm':>8}{'unsolved':>10}")
    for name in _python("-c", "import puzzles; print(*puzzles.ladders())").split():
        for rung, times in json.loads(_python(__file__, name)).items():
            cold, warm, unsolved = times
            print(f"{rung:24}{cold:8.2f}{warm:8.2f}{unsolved:10.2f}")
            rows.append(times)
    for label, summary in (("median", statistics.median), ("max", max)):
        cold, warm, unsolved = (summary(column) for column in zip(*rows, strict=True))
        print(f"{label:24}{cold:8.2f}{warm:8.2f}{unsolved:10.2f}")
    imported = statistics.median(float(_python("-c", _IMPORT)) for _ in range(5))
    print(f"import puzzles, beyond JAX's own: {imported:.2f}")
    print(f"aims: median below {MEDIAN}, none above {WORST}, import {IMPORT}")


def _python(*arguments: str) -> str:
    """The output of a fresh interpreter; its warnings are dropped."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.splitlines()[-1]


def _ladder(name: str) -> dict[str, tuple[float, float, float]]:
    """Seconds of a first check, a second one, and one on the starter, by rung."""
    from puzzles import ladder
    from puzzles._puzzle import starter_function

    times = {}
    for puzzle in ladder(name):
        unsolved = starter_function(puzzle)
        cold = _seconds(puzzle.solution, "passed")
        warm = _seconds(puzzle.solution, "passed")
        times[puzzle.name] = (cold, warm, _seconds(unsolved, "unsolved"))
    return times


def _seconds(fn: Callable, stage: str) -> float:
    from puzzles import check

    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        verdict = check(fn)
    seconds = time.perf_counter() - start
    if verdict is None or verdict.stage != stage:
        sys.exit(f"timed the wrong thing: expected {stage}, got\n{verdict}")
    return seconds


if __name__ == "__main__":
    main(sys.argv[1:])
