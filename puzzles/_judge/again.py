"""The judged function once more, on other cases, for as long as a learner should wait for that."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from puzzles._judge.case import Case

# Seconds for which the cause of wrong numbers is looked for; then the place alone is told.
PATIENCE = 2.0
# The flat results of a function on a case; None where it raises there.
Run = Callable[[Case], Sequence[np.ndarray] | None]


class Again:
    """Runs the judged function on other cases, where an explanation asks for that.

    seconds: for which explanations may go on, from the first question whether there is time;
    `PATIENCE` unless given.
    """

    def __init__(self, run: Run, seconds: float | None = None) -> None:
        self._results = cache(run)
        self._seconds = PATIENCE if seconds is None else seconds
        self._end: float | None = None

    def __call__(self, case: Case) -> Sequence[np.ndarray] | None:
        """The flat results on a case, run once; None where the function raises there."""
        return self._results(case)

    def in_time(self) -> bool:
        """Whether one more thing may be tried."""
        if self._end is None:
            self._end = time.monotonic() + self._seconds
        return time.monotonic() < self._end
