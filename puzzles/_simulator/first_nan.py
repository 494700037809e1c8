"""The first equation that makes a number that is not finite of finite operands."""

from __future__ import annotations

import os

import jax.numpy as jnp
import numpy as np

from puzzles._jax import JaxprEqn, user_frame
from puzzles._launch import Traced, text_of
from puzzles._program import EarlyStopError, Values
from puzzles._simulator.programs import step_by_step

_MAKES = {"exp", "exp2", "log", "div", "mul", "sub", "add", "square", "integer_pow", "pow", "sinh"}
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SUMS = {"dot_general", "reduce_sum"}
_MAKES |= {"cosh", "expm1", "rsqrt", "reciprocal"} | _SUMS
_STORES = {"swap", "masked_swap", "addupdate"}


def first_not_finite(traced: Traced) -> str | None:
    """A message with the equation's line and operand; None if NumPy finds no such equation.

    All operands of the equation are finite, and a `where` does not drop what it makes: it is the
    first such equation whose result, or a number computed from it, is stored in a Ref or returned.
    """
    trail = _Trail()
    try:
        step_by_step(traced, observer=trail.observe)
    except EarlyStopError as stop:
        return stop.args[0]
    return next(iter(trail.origins.values()), (None, None))[1]


class _Trail:
    """The arrays that are not finite, and the message of the equation where each begins."""

    def __init__(self) -> None:
        self.origins: dict[int, tuple[np.ndarray, str]] = {}  # by identity; keeps the array alive

    def observe(self, equation: JaxprEqn, values: Values, results: Values) -> None:
        """Follow what is not finite from operands to results, up to the first store of it."""
        traced = [self.origins[id(x)][1] for x in values if id(x) in self.origins]
        if traced and equation.primitive.name in _STORES:
            raise EarlyStopError(traced[0])
        message = traced[0] if traced else _begins(equation, values, results)
        for x in values if traced else ():  # what a `where` drops is no cause
            if equation.primitive.name == "select_n" and _finite(results[0]):
                self.origins.pop(id(x), None)
        if message is not None:
            wrong = (x for x in results if isinstance(x, np.ndarray) and not _finite(x))
            self.origins.update((id(result), (result, message)) for result in wrong)


def _finite(x: np.ndarray) -> bool:
    return not jnp.issubdtype(x.dtype, np.floating) or bool(np.isfinite(x).all())


def _begins(equation: JaxprEqn, values: Values, results: Values) -> str | None:
    """The message if an equation of finite operands makes a number that is not finite."""
    name = equation.primitive.name
    if name not in _MAKES or not jnp.issubdtype(equation.outvars[0].aval.dtype, np.floating):
        return None
    wrong = ~np.isfinite(results[0])
    operands = [x for x in values if jnp.issubdtype(x.dtype, np.floating)]
    if not wrong.any() or not all(np.isfinite(x).all() for x in operands):
        return None
    line = text_of(equation.source_info)
    if not line or user_frame(equation.source_info).file_name.startswith(_PACKAGE):
        return None  # the answer to another puzzle
    operand = operands[-1]  # the divisor of a division
    number = np.broadcast_to(operand, wrong.shape)[wrong][0] if name not in _SUMS else 0
    reason = f"it divides by {number:g}" if name == "div" else f"its `{name}` is given {number:g}"
    reason = f"its `{name}` of finite numbers is too large" if name in _SUMS else reason
    return f"`{line}` makes the first number that is not finite: {reason}."
