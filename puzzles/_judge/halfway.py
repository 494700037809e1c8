"""An answer of several launches, of which some are still to be filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from puzzles._judge import stages
from puzzles._judge.again import Again
from puzzles._judge.case import Case, execute
from puzzles._puzzle import Puzzle


def right_so_far(puzzle: Puzzle, fn: Callable, again: Again) -> str:
    """Which results of an unfinished `fn` are right on the first case, in words, or "".

    Raises Rejected, with the cause, where one that has its launch is wrong.
    """
    if not puzzle.results:
        return ""
    case = Case(puzzle, 0)
    with _unfilled_give_nan():
        try:
            flat = execute(stages.trace(case, fn))
        except Exception:  # a gap elsewhere: it is told that there is one
            return ""
        there = [n for n, x in enumerate(flat) if not np.isnan(x).all()]
        if not 0 < len(there) < len(flat):
            return ""
        for n in there:
            part = Case(dataclasses.replace(puzzle, observe=_only(n), results=()), 0)
            stages.numbers(part, stages.trace(part, fn), again)
    done, left = (
        " and ".join(f"`{name}`" for n, name in enumerate(puzzle.results) if (n in there) is made)
        for made in (True, False)
    )
    return f"{done}: right (case {case.label}). What is left is the launch that gives {left}."


def _only(n: int) -> Callable[[Callable], Callable]:
    return lambda fn: lambda *args: jax.tree.leaves(fn(*args))[n]


@contextmanager
def _unfilled_give_nan() -> Iterator[None]:
    """A call of `pallas_call` that still holds a `...` launches nothing, and gives NaN."""
    launch = pl.pallas_call

    def pallas_call(kernel: Any, *args: Any, **options: Any) -> Any:
        given = (*options.values(), *getattr(kernel, "keywords", {}).values())
        if not any(value is ... for value in given):
            return launch(kernel, *args, **options)
        nan = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), options["out_shape"])
        return lambda *operands: nan

    pl.pallas_call = pallas_call
    try:
        yield
    finally:
        pl.pallas_call = launch
