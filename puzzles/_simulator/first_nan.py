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


def first_not_finite(traced: Traced) -> str | None:
    """A message with the equation's line and operand; None if NumPy finds no such equation.

    All operands of the equation are finite; it is the first such equation of the run.
    """
    try:
        step_by_step(traced, observer=_observe)
    except EarlyStopError as stop:
        return stop.args[0]
    return None


def _observe(equation: JaxprEqn, values: Values, results: Values) -> None:
    name = equation.primitive.name
    if name not in _MAKES or not jnp.issubdtype(equation.outvars[0].aval.dtype, np.floating):
        return
    wrong = ~np.isfinite(results[0])
    operands = [x for x in values if jnp.issubdtype(x.dtype, np.floating)]
    if not wrong.any() or not all(np.isfinite(x).all() for x in operands):
        return
    line = text_of(equation.source_info)
    if not line or user_frame(equation.source_info).file_name.startswith(_PACKAGE):
        return  # the answer to another puzzle
    operand = operands[-1]  # the divisor of a division
    number = np.broadcast_to(operand, wrong.shape)[wrong][0] if name not in _SUMS else 0
    reason = f"it divides by {number:g}" if name == "div" else f"its `{name}` is given {number:g}"
    reason = f"its `{name}` of finite numbers is too large" if name in _SUMS else reason
    raise EarlyStopError(f"`{line}` makes the first number that is not finite: {reason}.")
