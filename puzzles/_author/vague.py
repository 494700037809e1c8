"""Does `says` of a mistake tell its verdict from others, or does any verdict hold it?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from puzzles import _regions
from puzzles._judge import judge
from puzzles._launch import keeping_traces
from puzzles._puzzle import Mistake, Puzzle, mutate

_WORDS = 3
_MARK = re.compile(r"`[^`]+`|\d")


@keeping_traces()
def vague_problems(puzzle: Puzzle) -> Iterator[str]:
    """Mistakes of other stages than values whose `says` is a word that many verdicts hold.

    Three words will do, or a number or a `name` that no other mistake's verdict holds.
    """
    verdicts: dict[str, str] = {}
    for mistake in puzzle.mistakes:
        says = mistake.says
        if mistake.stage == "values" or len(says.split()) >= _WORDS or not says.strip():
            continue
        holding = []
        if _MARK.search(says):
            if not verdicts:
                verdicts = {m.name: _verdict(puzzle, m) for m in puzzle.mistakes}
            holding = [n for n, text in verdicts.items() if n != mistake.name and says in text]
            if not holding:
                continue
        place = puzzle.place(f'"{mistake.name}"')
        why = f", which the verdict on '{holding[0]}' holds as well" if holding else ""
        yield (
            f"{place}: mistake '{mistake.name}' is known by '{says}'{why}: quote {_WORDS} words of "
            "its own verdict, or a number or a `name` that no other verdict has"
        )


def _verdict(puzzle: Puzzle, mistake: Mistake) -> str:
    try:
        return str(judge(puzzle, mutate(puzzle, mistake), seed=0))
    except (_regions.RegionError, SyntaxError):
        return ""  # `mistake_problem` says so
