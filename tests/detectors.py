"""What JAX's own simulator says of the planted faults: run by hand, for the table in examine.md.

Each runs in two Pythons of its own, since some never end: with `detect_races=True` and memory that
is NaN at first, on random data, with copies made when they are waited for, and at once. A person
still has to look whether there are NaNs.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections import Counter

import jax
import numpy as np
import sabotage
from jax.experimental.pallas import tpu as pltpu

from puzzles import pipelines_on_cpu
from puzzles._tpu import drawn

SECONDS = 60
MODES = ("on_wait", "eager")


def told(number: int, mode: str) -> str:
    """What comes of one fault: "raises", "race", "nan", "semaphore", or "nothing"."""
    pipelines_on_cpu()
    fn, *args = sabotage.PLANTED[number].launch()
    data = [drawn(x, n) if isinstance(x, jax.ShapeDtypeStruct) else x for n, x in enumerate(args)]
    how = pltpu.InterpretParams(
        detect_races=True, uninitialized_memory="nan", dma_execution_mode=mode
    )
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            with pltpu.force_tpu_interpret_mode(how):
                leaves = [np.asarray(x, np.float32) for x in jax.tree.leaves(fn(*data))]
        except Exception:
            return "raises"
    if "RACE DETECTED" in printed.getvalue():
        return "race"
    if "Semaphore" in printed.getvalue():
        return "semaphore"
    return "nan" if any(np.isnan(leaf).any() for leaf in leaves) else "nothing"


def main() -> None:
    found: dict[str, Counter[str]] = {}
    for number, fault in enumerate(sabotage.PLANTED):
        what = " and ".join(dict.fromkeys(apart(number, mode) for mode in MODES))
        found.setdefault(fault.kind, Counter())[what] += 1
        print(f"{fault.kind:16}{what:20}{fault.name[:60]}", flush=True)
    for kind, counts in found.items():
        print(f"{kind:16}{', '.join(f'{n} {what}' for what, n in counts.most_common())}")


def apart(number: int, mode: str) -> str:
    command = [sys.executable, __file__, str(number), mode]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "hangs"
    return (ran.stdout.split() or ["died"])[-1]


if __name__ == "__main__":
    print(told(int(sys.argv[1]), sys.argv[2])) if len(sys.argv) > 1 else main()
