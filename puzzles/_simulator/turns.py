"""Threads that take turns: one runs at a time, in an order of priority, until it has to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np


class DeadlockError(Exception):
    """Every thread that has not ended waits, and no condition holds."""


class _StoppedError(Exception):
    """Another thread has failed."""


class Turns:
    """A baton, held by the first thread in `order` that can continue.

    A thread that waits gives the baton away even if its condition holds. So the last thread in
    `order` runs after everything that the other threads can do without it; if they `rotate`, the
    thread after the waiting thread comes first.
    """

    def __init__(self, order: Sequence[int], rotate: bool) -> None:
        self._order, self._rotates = list(order), rotate
        self._batons = {number: SimpleQueue[None]() for number in order}
        self._ready: dict[int, Callable[[], bool]] = {n: lambda: True for n in order}
        self._failure: BaseException | None = None

    def run(self, work: Callable[[int], Any]) -> dict[int, Any]:
        """Run `work(number)` in a thread for each number; raise the first exception."""
        results: dict[int, Any] = {}

        def thread(number: int) -> None:
            try:
                self._take(number)
                with np.errstate(all="ignore"):
                    results[number] = work(number)
            except _StoppedError:
                pass
            except BaseException as error:
                self._failure = self._failure or error
            self._ready[number] = lambda: False
            left = [number for number in self._order if number not in results]
            if left and self._failure is None and not self._pass_on():
                self._failure = DeadlockError()
            if self._failure is not None:
                for baton in self._batons.values():
                    baton.put(None)

        threads = [threading.Thread(target=thread, args=(n,), daemon=True) for n in self._order]
        for started in threads:
            started.start()
        self._batons[self._order[0]].put(None)
        for started in threads:
            started.join()
        if self._failure is not None:
            raise self._failure
        return results

    def wait(self, number: int, ready: Callable[[], bool]) -> None:
        """Return when `ready()` holds and no thread before this one can continue."""
        self._ready[number] = ready
        if not self._pass_on():
            raise DeadlockError
        self._take(number)

    def _take(self, number: int) -> None:
        self._batons[number].get()
        if self._failure is not None:
            raise _StoppedError
        self._ready[number] = lambda: True

    def _pass_on(self) -> bool:
        """Give the baton to the first thread that can continue; False if there is none."""
        number = next((n for n in self._order if self._ready[n]()), None)
        if number is not None:
            if self._rotates:
                place = self._order.index(number) + 1
                self._order = self._order[place:] + self._order[:place]
            self._batons[number].put(None)
        return number is not None
