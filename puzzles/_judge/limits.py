"""What a function may not do to the checker: leave settings behind, or an exception untold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np

from puzzles._jax import come_to_rest
from puzzles._judge import words
from puzzles._judge.verdict import Rejected
from puzzles._launch import Unreadable
from puzzles._puzzle import Puzzle


@contextmanager
def jax_at_rest() -> Iterator[None]:
    """Begin with a JAX that is inside of nothing, and leave it so, whatever interrupts.

    For what starts by itself: not within a function that JAX traces.
    """
    come_to_rest()
    try:
        yield
    finally:
        come_to_rest()


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put JAX's settings back as they were: x64, matmul precision, debugging."""
    before = dict(jax.config.values)
    try:
        with np.errstate(), jax_at_rest():
            # Which of JAX's functions called tells where an error was made, as in a notebook.
            jax.config.update("jax_traceback_filtering", "off")
            yield
    finally:
        after = jax.config.values  # gathered anew each time it is asked for
        for name in [name for name, value in before.items() if after.get(name) is not value]:
            jax.config.update(name, before[name])


@contextmanager
def learners_code(puzzle: Puzzle, label: str) -> Iterator[None]:
    """What a learner's code does within it to Python or to JAX's settings ends with it.

    What it raises is a `Rejected` on the case called `label`.
    """
    try:
        with settings_kept():
            yield
    except Unreadable as error:
        raise Rejected("unreadable", str(error), case=label) from None
    except Exception as error:
        raise raised(error, label) from None


def raised(error: Exception, label: str) -> Rejected:
    """A rejection for the learner's exception."""
    return Rejected("raises", words.told(error), case=label)
