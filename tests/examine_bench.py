"""Two tables, run by `make examine-bench`: the findings in right kernels and in planted faults."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import jax
import launches
import production
import sabotage

from puzzles import Examination, examine
from puzzles._compile import has_libtpu
from puzzles._simulator.machine import Machine


def main() -> int:
    """Print both; return 1 if a right kernel is blamed or miscounted, or a fault is missed.

    Arguments select the right kernels whose row contains one of them.
    """
    words = sys.argv[1:]
    return int(others(words) + (0 if words else planted()) > 0)


def others(words: Sequence[str] = ()) -> int:
    """The number of right kernels that are blamed, unreadable, or counted wrong."""
    print(f"{'right kernels':72}{'s':>6}  {'counts':12}findings")
    false, times = 0, {}
    rows = [("here:", name, make, None) for name, make in launches.LAUNCHES.items()]
    for name, shape, make, *dots in production.KERNELS:
        rows.append((f"jax {jax.__version__}", f"{name}: {shape}", make, dots[0] if dots else None))
    for source, kernel, make, dots in rows:
        whose = f"{source} {kernel}"
        if words and not any(word in whose for word in words):
            continue
        with copies_counted() as ran:
            found, times[whose] = timed(make)
        kinds = Counter(f"{one.severity} {one.kind}" for one in found.findings)
        said = ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "nothing"
        if found.unseen:
            said += f"; not looked at: {', '.join(found.unseen)}"
        blamed = found.unread or production.unexpected(kernel, found)
        counts = checked(found, ran, dots)
        false += bool(blamed) or counts == "WRONG"
        print(f"{whose[:71]:72}{times[whose]:6.1f}  {counts:12}{found.unread or said}", flush=True)
    slowest = max(times, key=lambda one: times[one])
    print(f"\n{len(times)} right kernels: {false} false alarms")
    print(f"the slowest took {times[slowest]:.1f} s: {slowest}\n")
    return false


def checked(found: Examination, ran: Counter[str], dots: int | None) -> str:
    """A comparison of exact counts with NumPy's and with counts by hand, in words."""
    if not found.launches or not all(one.exact for one in found.launches):
        return "not exact"
    said: Counter[str] = Counter()
    for one in found.launches:
        said[one.name] += sum(copy.times for copy in one.copies) * (one.times or 1)
    counted = sum(int(dot.executed.sum()) for one in found.launches for dot in one.dots)
    compared = {name: said[name] for name in ran}
    if compared != dict(ran) or dots not in (None, counted):
        print(f"counted {counted} dots, copies {compared}; right: {dots} dots, copies {dict(ran)}")
        return "WRONG"
    return "right" if dots is not None or any(ran.values()) else "exact"


@contextmanager
def copies_counted() -> Iterator[Counter[str]]:
    """The number of copies by hand in NumPy's run of a launch, by the launch's name."""
    results = Machine.results
    runs: defaultdict[str, set[int]] = defaultdict(set)

    def counting(machine, values):
        done: Counter[str] = Counter()
        machine.observer = lambda equation, *_: done.update([equation.primitive.name])
        made = results(machine, values)
        runs[machine.launch.name].add(done["dma_start"])
        return made

    counted: Counter[str] = Counter()
    with patch.object(Machine, "results", counting):
        yield counted
    # drop launches whose runs have different numbers of copies
    counted.update({name: n for name, (n, *more) in runs.items() if not more})


def planted() -> int:
    """The number of planted faults that are missed."""
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
    print(f"\n{tried - missed} of {tried} planted faults are found and named, {missed} missed")
    return missed


def timed(make: Callable[[], tuple]) -> tuple[Examination, float]:
    start = time.perf_counter()
    fn, *args = make()
    return examine(fn, *args), time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
