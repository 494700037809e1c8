"""`make verdicts`: the verdict on every known mistake and every alternative, a block each.

They are in `tests/verdicts/<ladder>/<puzzle>.txt`: if you change a verdict, write them again and
review the diff. Arguments are puzzles and ladders; without any, all of them.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import puzzles
from puzzles._author import gate
from puzzles._judge import Verdict, judge
from puzzles._launch import keeping_traces
from puzzles._puzzle import Puzzle, variant
from puzzles._record import Alternative, Mistake

FOLDER = Path(__file__).parent / "verdicts"
FIELDS = ("", "diagnosis", "look here first")  # the `says` of a verdict has no title
PROCESSES = 2
# Parts that differ between machines: computed numbers, and the place of the first wrong number.
_FIRST = re.compile(
    r"^\d+ of (\d+) elements( of [^.]*?)? are wrong\. "
    r"The first is .*?: expected \S+, got \S+?\.(?=\s|$)"
)
_FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?%?|-?\d+e[+-]?\d+|\bnan\b|-?\binf\b")
# Which line of a module: it moves with every edit above it.
_LINE = re.compile(r"(?<=>):\d+")
_WRAP = textwrap.TextWrapper(
    100,
    initial_indent=" " * 4,
    subsequent_indent=" " * 6,
    break_long_words=False,
    break_on_hyphens=False,
)
_COMPUTED = ("numbers", "other-in-simulator", "garbage")


def block(change: Alternative, verdict: Verdict) -> str:
    """A verdict as in the file; a pass is shortened, because its text is the puzzle's own.

    change: the mistake or the alternative that is judged.
    """
    says = "" if verdict.passed else verdict.says
    if verdict.rule in _COMPUTED:
        says = _FLOAT.sub("#", _FIRST.sub(r"Some of \1 elements\2 are wrong.", says))
    first = _FLOAT.sub("#", verdict.first or "")
    name = change.name if isinstance(change, Mistake) else f"= {change.name}"
    fields = (_LINE.sub(":#", says), verdict.diagnosis or "", first)
    return written(name, verdict.stage, verdict.rule, fields)


def written(name: str, stage: str, rule: str, fields: Iterable[str]) -> str:
    """The lines of a block: name, stage and rule, then each field of `FIELDS` that is not empty.

    A sentence begins a line, so that a change of its words changes no other; ⏎ ends a line of the
    verdict's own.
    """
    lines = [name, f"  {stage}: {rule}" if rule else f"  {stage}"]
    for title, text in zip(FIELDS, fields, strict=True):
        text = " ⏎ ".join(" ".join(line.split()) for line in text.split("\n"))
        lines += [f"  {title}:"] * bool(title and text)
        for sentence in filter(None, re.split(r"(?<=[.⏎]) ", text)):
            lines += _WRAP.wrap(sentence)
    return "\n".join(lines)


def blocks(puzzle: Puzzle) -> Iterator[str]:
    """The blocks of a puzzle, in the order of its record; the data are those of seed 0."""
    with keeping_traces():
        for change in (*puzzle.mistakes, *puzzle.alternatives):
            verdict = judge(puzzle, variant(puzzle, change), seed=0)
            yield block(change, verdict)


def on_record(ladder: str) -> dict[tuple[str, str], str]:
    """The committed blocks of a ladder, by puzzle and answer; alternatives begin with "= "."""
    return {
        (path.stem, text.partition("\n")[0]): text
        for path in sorted((FOLDER / ladder).glob("*.txt"))
        for text in path.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    }


def rule_of(text: str) -> str:
    """The rule that decides an answer, by its block; "" if it passes."""
    return text.split("\n")[1].partition(": ")[2]


def _blocks_of(name: str) -> list[str]:
    return list(blocks(puzzles.find(name)))


def main(names: list[str]) -> int:
    """Judge and write; print a line for each puzzle with the number of changes."""
    chosen = [puzzles.find(name) for name in gate.selected(names, puzzles.ladders())]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        judged = pool.map(_blocks_of, [puzzle.name for puzzle in chosen])
        for puzzle, after in zip(chosen, judged, strict=True):
            before = {*on_record(puzzle.ladder).values()}
            path = FOLDER / puzzle.ladder / f"{puzzle.name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n\n".join(after) + "\n", encoding="utf-8")
            new = len({*after} - before)
            print(f"{puzzle.name}: {len(after)} verdicts, {new} of them new or changed", flush=True)
    there = {puzzle.name for ladder in puzzles.ladders() for puzzle in puzzles.ladder(ladder)}
    for path in FOLDER.glob("*/*.txt"):
        if path.stem not in there:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
