"""Conditions of which only a part is known: a known operand may decide them alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._launch.smem import UNKNOWN


@dataclass(frozen=True, eq=False)
class Partly:
    """A scalar that is known at some grid steps: `value` counts where `known`; both broadcast."""

    value: np.ndarray
    known: np.ndarray

    @classmethod
    def of(cls, value: Any, rank: int) -> Partly:
        """Any value of a walk in this form."""
        if isinstance(value, Partly):
            return value
        if isinstance(value, np.ndarray):
            return cls(value, np.ones((1,) * rank, bool))
        return cls(np.zeros((1,) * rank, bool), np.zeros((1,) * rank, bool))

    def simplest(self) -> Any:
        """Itself, or the array if all of it is known, or UNKNOWN."""
        if self.known.all():
            return self.value
        return self if self.known.any() else UNKNOWN


LOGIC = {"and", "or", "not", "convert_element_type"}


def decided(equation: JaxprEqn, values: list[Any], rank: int) -> Any:
    """The result of a primitive in LOGIC where not all is known: False & x is False."""
    aval = equation.outvars[0].aval
    sizes = [getattr(v.aval, "shape", ()) for v in equation.invars]
    if any(shape != () for shape in sizes) or equation.invars[0].aval.dtype != bool:
        return UNKNOWN
    parts = [Partly.of(v, rank) for v in values]
    name, first = equation.primitive.name, parts[0]
    if name == "convert_element_type":
        return Partly(first.value.astype(aval.dtype), first.known).simplest()
    if name == "not":
        return Partly(~first.value, first.known).simplest()
    second, decisive = parts[1], name == "or"
    alone = [part.known & (part.value == decisive) for part in parts]
    known = alone[0] | alone[1] | (first.known & second.known)
    join = np.logical_or if decisive else np.logical_and
    value = np.where(alone[0] | alone[1], decisive, join(first.value, second.value))
    return Partly(value, known).simplest()
