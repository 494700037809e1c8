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

from puzzles._judge.answer import Answer, Run
from puzzles._judge.case import Case


def results_there(answer: Answer) -> dict[str, Run]:
    """By its name, a run of each result that has its launch, on the first case; {} if none has.

    Asked within `unfilled_give_nan`.
    """
    puzzle = answer.puzzle
    if not puzzle.results:
        return {}
    try:
        flat = Run(answer, Case(puzzle, 0)).flat
    except Exception:  # a gap elsewhere: it is told that there is one
        return {}
    there = [n for n, x in enumerate(flat) if not np.isnan(x).all()]
    if len(there) == len(flat):
        return {}
    alone = {n: dataclasses.replace(puzzle, observe=_only(n), results=()) for n in there}
    return {puzzle.results[n]: Run(answer, Case(part, 0)) for n, part in alone.items()}


def _only(n: int) -> Callable[[Callable], Callable]:
    return lambda fn: lambda *args: jax.tree.leaves(fn(*args))[n]


@contextmanager
def unfilled_give_nan() -> Iterator[None]:
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
