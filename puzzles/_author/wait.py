"""How long would a learner wait for their first verdict?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from puzzles._judge import judge
from puzzles._puzzle import Puzzle

LONGEST = 3.0  # seconds, on a notebook's two cores


def first_check(puzzle: Puzzle) -> float:
    """Seconds of a check of the solution with nothing compiled; the work's, if others slow it.

    To be asked first: what a rung's cases and kernels once gave is remembered.
    """
    jax.devices()  # JAX's own start is no rung's
    with _cold():
        start, worked = time.perf_counter(), time.process_time()
        judge(puzzle, puzzle.solution)
        return min(time.perf_counter() - start, time.process_time() - worked)


@contextmanager
def _cold() -> Iterator[None]:
    """No program that was compiled before is known, here or in a folder."""
    kept = jax.config.jax_enable_compilation_cache
    jax.clear_caches()
    try:
        _caching(False)
        yield
    finally:
        _caching(kept)


def _caching(on: bool) -> None:
    jax.config.update("jax_enable_compilation_cache", on)
    reset_cache()  # it looks at the setting once


def wait_notes(puzzle: Puzzle, seconds: float) -> Iterator[str]:
    """That a learner may wait too long: no problem, since another machine has other seconds."""
    if seconds > LONGEST:
        yield (
            f"{puzzle.place('cases=')}: a first check takes {seconds:.1f} s here, and a learner "
            f"should wait {LONGEST:g} s at most: make the cases smaller"
        )
