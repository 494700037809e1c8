"""Questions of stage `unsolved`: is a gap left in the learner's code?"""

from __future__ import annotations

from puzzles._judge.source import Code
from puzzles._rules import Breach


def untouched(code: Code) -> Breach | None:
    """Report an answer without any code of the learner."""
    name = code.starter
    return None if name is None else _untouched(code, name)


def left_open(code: Code) -> Breach | None:
    """Report a gap that is left in an answer."""
    if (gap := code.gap) is not None:
        return Breach("ellipsis-left", {"name": gap[0], "line": gap[1]})
    same = code.as_handed_out() if code.puzzle.starter is None else []
    return _untouched(code, same[0]) if same else None


def _untouched(code: Code, name: str) -> Breach:
    form = "" if code.puzzle.starter is None else "bug"
    return Breach("untouched", {"name": name, "puzzle": code.puzzle.name}, form=form)
