"""What a function may not do to the checker: run for ever, or leave settings behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np

from puzzles._jax import come_to_rest
from puzzles._judge import words
from puzzles._judge.verdict import Rejected
from puzzles._launch import Unreadable
from puzzles._puzzle import Puzzle

# Python of a learner's: tracing a kernel takes less than a second, the longest rung's a few.
SECONDS = 60.0


class TooLong(BaseException):
    """`SECONDS` are over; not an Exception, which a learner's `except` might catch."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise `TooLong` in what runs `SECONDS`, where the system and the thread allow a timer."""
    free = (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    )
    if not free:  # somebody else's timer is not ours to stop
        yield
        return
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1)  # again, for who swallows the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _too_long(*_: object) -> None:
    raise TooLong


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
        with settings_kept(), time_limit():
            yield
    except TooLong:
        why = f"`{puzzle.name}` does not end: its Python was stopped after {SECONDS:.0f} seconds."
        raise Rejected("endless", f"{why} Which loop goes on?", case=label) from None
    except Unreadable as error:
        raise Rejected("unreadable", str(error), case=label) from None
    except Exception as error:
        raise raised(error, label) from None


def raised(error: Exception, label: str) -> Rejected:
    """A rejection for the learner's exception."""
    return Rejected("raises", words.told(error), case=label)
