"""`make verdicts`: the verdict on every mistake and every alternative on record, one line each.

They stand in `tests/verdicts/<ladder>.txt`: who changes what a verdict says writes them again, and
the difference is read. Arguments are ladders; without any, all of them.
"""

from __future__ import annotations

import concurrent.futures
import math
import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import puzzles
from puzzles._judge import Verdict, judge
from puzzles._launch import keeping_traces
from puzzles._puzzle import Alternative, Mistake, Puzzle, variant

FOLDER = Path(__file__).parent / "verdicts"
COLUMNS = ("rung", "answer", "stage", "rule", "says", "diagnosis", "look here first")
PROCESSES = 2
# What another machine gives otherwise: numbers that were computed, and which is the first wrong.
_FIRST = re.compile(
    r"^\d+ of (\d+) elements( of [^.]*?)? are wrong\. "
    r"The first is .*?: expected \S+, got \S+?\.(?=\s|$)"
)
_FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?%?|-?\d+e[+-]?\d+|\bnan\b|-?\binf\b")
# Which line of a module: it moves with every edit above it.
_LINE = re.compile(r"(?<=>):\d+")
_COMPUTED = ("numbers", "other-in-simulator", "garbage")


def line(puzzle: Puzzle, change: Mistake | Alternative, verdict: Verdict) -> str:
    """One verdict as it stands in the file; what a pass says is the rung's own text, and left out.

    The columns are those of `COLUMNS`, tabs between them; line breaks are ⏎.
    """
    says = "" if verdict.passed else verdict.says
    if verdict.rule in _COMPUTED:
        says = _FLOAT.sub("#", _FIRST.sub(r"Some of \1 elements\2 are wrong.", says))
    first = _FLOAT.sub("#", verdict.first or "")
    name = change.name if isinstance(change, Mistake) else f"= {change.name}"
    says = _LINE.sub(":#", says)
    fields = (puzzle.name, name, verdict.stage, verdict.rule, says, verdict.diagnosis or "", first)
    return "\t".join(" ⏎ ".join(" ".join(x.split()) for x in text.split("\n")) for text in fields)


def lines(puzzle: Puzzle) -> Iterator[str]:
    """All lines of one rung, in the order of its module; the data are those of seed 0."""
    with keeping_traces():
        for change in (*puzzle.mistakes, *puzzle.alternatives):
            verdict = judge(puzzle, variant(puzzle, change), seed=0, patience=math.inf)
            yield line(puzzle, change, verdict)


def on_record(ladder: str) -> dict[tuple[str, str], str]:
    """The committed lines of a ladder, by rung and answer; alternatives begin with "= "."""
    text = (FOLDER / f"{ladder}.txt").read_text(encoding="utf-8")
    written = [one for one in text.splitlines() if one]
    return {tuple(one.split("\t")[:2]): one for one in written}  # type: ignore[misc]


def decided(ladder: str) -> Counter[str]:
    """How many mistakes on record each rule decides in a ladder."""
    fields = [one.split("\t") for one in on_record(ladder).values()]
    return Counter(rule for _, name, _, rule, *_ in fields if not name.startswith("= "))


def _lines_of(name: str) -> list[str]:
    return list(lines(puzzles.find(name)))


def main(ladders: list[str]) -> int:
    """Judge and write; prints what has changed, as many lines as there are."""
    FOLDER.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        for ladder in ladders or puzzles.ladders():
            path = FOLDER / f"{ladder}.txt"
            before = on_record(ladder) if path.exists() else {}
            rungs = [puzzle.name for puzzle in puzzles.ladder(ladder)]
            after = [one for some in pool.map(_lines_of, rungs) for one in some]
            path.write_text("\n".join(after) + "\n", encoding="utf-8")
            new = [one for one in after if before.get(tuple(one.split("\t")[:2])) != one]
            print(f"{ladder}: {len(after)} verdicts, {len(new)} of them new or changed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
