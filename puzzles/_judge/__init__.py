"""Judge a function as an answer to a puzzle, and return a `Verdict`.

`judge` applies the `QUESTIONS` of `judging.py` in order to the function's `Answer`: to its `Run` on
each `Case`, and to its costs at the production shape. The first `Breach` becomes the verdict. If
numbers are wrong, the `EXPLAINERS` look for the cause. This package prints nothing.
"""

from __future__ import annotations

from puzzles._judge.case import Case, cases, execute, fresh_case, fresh_cases
from puzzles._judge.costs import at_scale, in_blocks, traced_for, usual_dims
from puzzles._judge.exceptions import message_of
from puzzles._judge.judging import judge, judge_fresh
from puzzles._judge.numbers import largest_error, tolerance_of
from puzzles._judge.origin import equations_outside
from puzzles._judge.source import Code, is_function, unwrap
from puzzles._judge.verdict import Verdict
from puzzles._judge.wire import on_chips, wire_receipt
