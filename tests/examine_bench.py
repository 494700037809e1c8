"""Two tables, run by `make examine-bench`: the findings in right kernels and in planted faults."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import corpus
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
    """The number of right kernels that are blamed, counted wrong, or JAX's and unreadable."""
    print(f"{'right kernels':72}{'s':>6}  {'counts':12}what was done; findings")
    false, times, done = 0, {}, Counter[str]()
    v5e = ("v5e",)
    rows = [("here:", name, make, None, v5e) for name, make in launches.LAUNCHES.items()]
    for name, shape, make, *dots in production.KERNELS:
        count = dots[0] if dots else None
        rows.append((f"jax {jax.__version__}", f"{name}: {shape}", make, count, v5e))
    foreign = {make for _, _, make, *_ in corpus.rows()}
    rows += corpus.rows()
    for source, kernel, make, dots, chips in rows:
        whose = f"{source} {kernel}"
        if words and not any(word in whose for word in words):
            continue
        try:
            with copies_counted() as ran:
                found, times[whose] = timed(make, chips)
        except ModuleNotFoundError as error:
            found, times[whose] = Examination(kernel, unread=f"it needs `{error.name}`"), 0.0
        each, gaps = treatment(found)
        done.update(each)
        kinds = Counter(f"{one.severity} {one.kind}" for one in found.findings)
        said = ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "nothing"
        refused = f"refused: {found.unread.splitlines()[0]}" if found.unread else ""
        text = refused or f"{', '.join(each)}; {said}{gaps}"
        blamed = (found.unread and make not in foreign) or corpus.unexpected(kernel, found)
        counts = checked(found, ran, dots)
        false += bool(blamed) or counts == "WRONG"
        print(f"{whose[:71]:72}{times[whose]:6.1f}  {counts:12}{text}", flush=True)
    slowest = max(times, key=lambda one: times[one])
    sums = ", ".join(f"{n} {what}" for what, n in done.items())
    print(f"\n{len(times)} right kernels: {sums}; {false} false alarms")
    print(f"the slowest took {times[slowest]:.1f} s: {slowest}\n")
    return false


def treatment(found: Examination) -> tuple[list[str], str]:
    """Whether a kernel was read, simulated and compiled, or refused; and why it was not."""
    if found.unread:
        return ["refused"], ""
    prefixes = {"simulated": "uninitialised, hazard: in NumPy", "compiled": "compile: libtpu"}
    done = [what for what, words in prefixes.items()
            if any(one.startswith(words) for one in found.looked)]  # fmt: skip
    return ["read", *done], "".join(f"; {gap}" for gap in found.gaps if gap not in found.unseen)


def checked(found: Examination, ran: Counter[str], dots: int | None) -> str:
    """A comparison of exact counts with NumPy's and with counts by hand, in words."""
    if not found.launches or not all(one.exact for one in found.launches):
        return "not exact"
    said: Counter[str] = Counter()
    for one in found.launches:
        said[one.name] += sum(copy.times for copy in one.copies) * (one.times or 1)
    counted = sum(int(dot.executed.sum()) for one in found.launches for dot in one.dots)
    named = Counter(one.name for one in found.launches)  # a run counts one launch of a name
    ran = Counter({name: n for name, n in ran.items() if named[name] == 1})
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


def timed(make: Callable[[], tuple], chips: Sequence[str] = ("v5e",)) -> tuple[Examination, float]:
    start = time.perf_counter()
    fn, *args = make()
    return examine(fn, *args, chips=chips), time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
