"""Where numbers that are not finite begin: at an equation that makes them of finite ones."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._jax import JaxprEqn, user_frame
from puzzles._launch.faithful import equations_reading
from puzzles._launch.finding import text_of
from puzzles._launch.jaxprs import rewritten, with_interpret
from puzzles._launch.run import on_cpu
from puzzles._launch.traced import Traced

_MAKES = {"exp", "exp2", "log", "div", "mul", "sub", "add", "square", "integer_pow", "pow", "sinh"}
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SUMS = {"dot_general", "reduce_sum"}
_MAKES |= {"cosh", "expm1", "rsqrt", "reciprocal"} | _SUMS


def first_not_finite(traced: Traced) -> str | None:
    """The line that makes it, and the number that it is made of, in words; None if none is found.

    Of an equation whose operands are all finite; the first that is met as the program runs in the
    interpreter.
    """
    asked: list[tuple[str, str]] = []
    seen: list[tuple[int, float]] = []

    def note(number: int, here: Any, given: Any) -> None:
        if here and not seen:
            seen.append((number, float(given)))

    def rule(equation: JaxprEqn) -> Sequence[JaxprEqn]:
        name, line = equation.primitive.name, text_of(equation.source_info)
        if name not in _MAKES or not line or not _floating(equation.outvars[0]):
            return [equation]
        if user_frame(equation.source_info).file_name.startswith(_PACKAGE):  # another rung's answer
            return [equation]
        number = len(asked)
        asked.append((line, name))
        operands = [v for v in equation.invars if _floating(v)][::-1]  # of a division, what by

        def ask(got: jax.Array, *given: jax.Array) -> None:
            wrong = ~jnp.isfinite(got)
            here = wrong.any()
            for one in given:
                here &= jnp.isfinite(one).all()
            each = got if name in _SUMS else jnp.broadcast_to(given[0], got.shape)
            value = each.reshape(-1)[jnp.argmax(wrong)]
            jax.debug.callback(functools.partial(note, number), here, value.astype(jnp.float32))

        return [equation, *equations_reading(ask, [equation.outvars[0], *operands])]

    program = rewritten(with_interpret(traced.jaxpr, True), rule)
    on_cpu(program, traced.leaves, object())
    jax.effects_barrier()
    if not seen:
        return None
    number, given = seen[0]
    line, name = asked[number]
    what = f"it divides by {given:g}" if name == "div" else f"its `{name}` is given {given:g}"
    what = f"its `{name}` of finite numbers is too large" if name in _SUMS else what
    return f"`{line}` makes the first number that is not finite: {what}."


def _floating(variable: Any) -> bool:
    dtype = getattr(variable.aval, "dtype", None)
    plain = type(variable.aval) is jax.core.ShapedArray
    return plain and dtype is not None and jnp.issubdtype(dtype, np.floating)
