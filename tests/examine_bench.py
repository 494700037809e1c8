"""Two tables, run by `make examine-bench`: what is found in others' kernels, and in faulty ones."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable

import launches
import production
import sabotage

from puzzles import Examination, examine
from puzzles._tpu import has_libtpu


def main() -> int:
    """Print both; 1 if a right kernel is blamed, or a fault is not found."""
    wrong = others() + planted()
    return int(wrong > 0)


def others() -> int:
    """How many right kernels are blamed, or cannot be read."""
    print(f"{'right kernels':34}{'s':>6}  findings")
    blamed = 0
    for whose, table in (("", launches.LAUNCHES), ("jax ", production.LAUNCHES)):
        for name, make in table.items():
            found, seconds = timed(make)
            kinds = Counter(f"{one.severity} {one.kind}" for one in found.findings)
            said = ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "nothing"
            wrong = found.unread or any(one.severity != "note" for one in found.findings)
            blamed += bool(wrong)
            print(f"{whose + name:34}{seconds:6.1f}  {found.unread or said}", flush=True)
    total = len(launches.LAUNCHES) + len(production.LAUNCHES)
    print(f"\n{blamed} of {total} right kernels are blamed\n")
    return blamed


def planted() -> int:
    """How many planted faults are not found."""
    print(f"{'planted faults':64}{'kind':>15}{'s':>6}  named by")
    missed = tried = 0
    for fault in sabotage.PLANTED:
        if fault.kind == "compile" and not has_libtpu():
            continue
        found, seconds = timed(fault.launch)
        told = next((one for one in found.findings if fault.found_by(one)), None)
        missed, tried = missed + (told is None), tried + 1
        said = "NOT FOUND" if told is None else told.operand or told.says[:60]
        print(f"{fault.name[:62]:64}{fault.kind:>15}{seconds:6.1f}  {said}", flush=True)
    print(f"\n{tried - missed} of {tried} planted faults are found and named")
    return missed


def timed(make: Callable[[], tuple]) -> tuple[Examination, float]:
    start = time.perf_counter()
    fn, *args = make()
    return examine(fn, *args), time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
