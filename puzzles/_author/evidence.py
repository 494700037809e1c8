"""Can a rung's cases show a mistake? Faults of data and results that would hide one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from puzzles._judge import cases, tolerance_of
from puzzles._puzzle import Puzzle

_LENIENT = 10.0  # times the usual tolerance of a dtype


@dataclass(frozen=True)
class Fault:
    """A sentence with place and remedy; `name` is its name in `waivers`, where it may be meant."""

    says: str
    name: str = ""


def faults(puzzle: Puzzle) -> Iterator[Fault]:
    """Each with its name in `waivers`."""
    yield from _dull(puzzle)
    yield from _not_finite(puzzle)
    yield from _lenient(puzzle)


def _dull(puzzle: Puzzle) -> Iterator[Fault]:
    """Data that would not show a lost sign, or a block taken for another."""
    place = puzzle.place("inputs=")
    drawn = [jax.tree.leaves(case.args) for case in cases(puzzle)]
    for position in range(min(map(len, drawn))):
        arrays = [np.asarray(leaves[position]) for leaves in drawn]
        if any(one.size < 2 or one.dtype == object for one in arrays):
            continue
        if all((one == one.flat[0]).all() for one in arrays):
            says = f"{place}: array {position} of the arguments is constant in every case: draw it"
            yield Fault(f"{says} at random", "constant")
        elif jax.dtypes.issubdtype(arrays[0].dtype, np.floating):
            numbers = [one.astype(np.float64) for one in arrays]
            if not any((one < 0).any() for one in numbers):
                says = f"{place}: array {position} of the arguments is never negative: draw signed"
                yield Fault(f"{says} numbers", "signed")


def _not_finite(puzzle: Puzzle) -> Iterator[Fault]:
    """NaN equals NaN here: what is not finite hides every mistake, unless the data asks for it."""
    if puzzle.accepts is not None:
        return
    for case in cases(puzzle):
        share = min(map(_finite, jax.tree.leaves(case.expected)), default=1.0)
        needed = 0.5 if min(map(_finite, jax.tree.leaves(case.args)), default=1.0) < 1 else 1.0
        if share < needed:
            place = puzzle.place(f"def {puzzle.spec.__name__}(", author=False)
            shown = math.floor(100 * (1 - share)) or "some"
            yield Fault(
                f"{place}: {shown} % of a result is NaN or infinite ({case.label}): mend the spec "
                "or the data",
                "finite",
            )
            return


def _lenient(puzzle: Puzzle) -> Iterator[Fault]:
    """Real faults are as small as a wide tolerance."""
    if puzzle.tolerance is None or puzzle.accepts is not None:
        return
    leaves = [np.asarray(x) for case in cases(puzzle) for x in jax.tree.leaves(case.expected)]
    floats = {one.dtype.name: one for one in leaves if one.dtype.kind not in "biu"}
    for name, one in floats.items():
        given, most = tolerance_of(one, puzzle.tolerance), _LENIENT * tolerance_of(one, None)
        if given > most:
            yield Fault(
                f"{puzzle.place('tolerance=')}: within a tolerance of {given:g} lie real faults of "
                f"{name}: give {most:g} at most, {_LENIENT:g} times what is usual",
                "tolerance",
            )
            return


def _finite(leaf: Any) -> float:
    """The share of finite numbers in a leaf; 1 for what holds no floats."""
    array = np.asarray(leaf)
    if not array.size or not jax.dtypes.issubdtype(array.dtype, np.floating):
        return 1.0
    return float(np.isfinite(array.astype(np.float64)).mean())
