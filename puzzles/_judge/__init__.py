"""Is this answer right, and if not, why? A puzzle and a function in, a `Verdict` out.

`judge` asks a function's `Answer` the `QUESTIONS` of `judging.py`, in their order: of its `Run` on
each `Case`, of what it costs at production scale. The first `Finding` is the verdict; where numbers
are wrong, the `EXPLAINERS` beside them are asked for the cause. Nothing is printed here.
"""

from __future__ import annotations

from puzzles._judge.case import Case, cases, execute, fresh_case, fresh_cases
from puzzles._judge.costs import at_scale, traced_for
from puzzles._judge.exceptions import message_of
from puzzles._judge.judging import judge, judge_fresh
from puzzles._judge.numbers import largest_error, tolerance_of
from puzzles._judge.origin import equations_outside
from puzzles._judge.source import Code, is_function, unwrap
from puzzles._judge.verdict import Verdict
from puzzles._judge.wire import on_chips, wire_rows
