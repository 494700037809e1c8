"""Is this answer right, and if not, why? A puzzle and a function in, a `Verdict` out.

`judge` takes a function through the stages: trace, numbers, memory, work, TPU. Each gets `Case`s,
with the arguments and the expected values, and what was traced, and raises `Rejected` if it fails.
Nothing is printed here.
"""

from __future__ import annotations

from puzzles._judge.case import Case, cases, execute, fresh_case, fresh_cases
from puzzles._judge.diagnosis import alike
from puzzles._judge.judging import judge, judge_fresh
from puzzles._judge.numbers import largest_error, tolerance_of
from puzzles._judge.outside import equations_outside
from puzzles._judge.rounding import narrow
from puzzles._judge.scale import USUAL, at_scale, excesses
from puzzles._judge.source import ellipsis_left, is_function, is_starter, unwrap
from puzzles._judge.verdict import Verdict, shown
from puzzles._judge.words import told

__all__ = [
    "USUAL",
    "Case",
    "Verdict",
    "alike",
    "at_scale",
    "cases",
    "ellipsis_left",
    "equations_outside",
    "excesses",
    "execute",
    "fresh_case",
    "fresh_cases",
    "is_function",
    "is_starter",
    "judge",
    "judge_fresh",
    "largest_error",
    "narrow",
    "shown",
    "told",
    "tolerance_of",
    "unwrap",
]
