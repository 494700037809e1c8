"""What a function may not do to the checker: run for ever, or leave settings behind."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import jax
import jax.numpy as jnp
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
def seldom_collected() -> Iterator[None]:
    """Let Python's garbage collector, a twelfth of a check's time, look only now and then.

    Traces and lowered programs are many objects, and nearly all live until the verdict.
    """
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


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
    except SystemExit:
        why = f"`{puzzle.name}` leaves Python by `exit` or `sys.exit`: return the result instead."
        raise Rejected("leaves-python", why, case=label) from None
    except Unreadable as error:
        raise Rejected("unreadable", str(error), case=label) from None
    except Exception as error:
        raise raised(error, label) from None


def raised(error: Exception, label: str) -> Rejected:
    """A rejection for the learner's exception."""
    return Rejected("raises", words.told(error), case=label)


_MODULES: tuple[ModuleType, ...] = (np, jnp, jnp.linalg, jax, jax.lax, jax.nn, jax.random, jax.tree)
_ORIGINAL = [(module, dict(vars(module))) for module in _MODULES]


@contextmanager
def as_imported() -> Iterator[None]:
    """Within it, NumPy and JAX have the functions they were imported with, whoever replaced one."""
    changed = [
        (module, name, vars(module).get(name), value)
        for module, names in _ORIGINAL
        for name, value in names.items()
        if vars(module).get(name) is not value
    ]
    for module, name, _, value in changed:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, theirs, _ in changed:
            setattr(module, name, theirs)
