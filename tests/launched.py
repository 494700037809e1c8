"""Short ways to a launch or to numbers, for tests that show what prose states."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import puzzles
from puzzles import Launch
from puzzles._launch import Traced, as_tpu, quickly, trace_call, with_interpret
from puzzles._tpu import simulate


def one(fn: Callable, *args: Any) -> Launch:
    """The only launch of `fn(*args)`."""
    (launch,) = puzzles.trace(fn, *args)
    return launch


def reference(name: str, *args: Any, **options: Any) -> Launch:
    """The launch of a rung's solution."""
    return one(functools.partial(puzzles.find(name).solution, **options), *args)


def traced(fn: Callable, *args: Any) -> Traced:
    """As if on a TPU."""
    with as_tpu():
        return trace_call(fn, *args)


def interpreted(fn: Callable, *args: Any) -> np.ndarray:
    """The first result under `interpret=True`."""
    made = traced(fn, *args)
    return quickly(with_interpret(made.jaxpr, True), made.leaves)[0]


def simulated(fn: Callable, *args: Any) -> np.ndarray:
    """The first result in the TPU simulator."""
    return simulate(traced(fn, *args))[0]
