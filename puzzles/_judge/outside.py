"""Which floating-point work a trace does outside its kernels."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from puzzles._judge import source
from puzzles._launch import PALLAS_CALL, subjaxprs

# Layout only: no number changes but by a cast.
_FREE = {
    "reshape",
    "transpose",
    "squeeze",
    "expand_dims",
    "slice",
    "dynamic_slice",
    "pad",
    "broadcast_in_dim",
    "convert_element_type",
    "bitcast_convert_type",
    "copy",
    "copy_p",
    "get",
    "swap",
    "optimization_barrier",
    "stop_gradient",
    "split",
}


def work_outside(closed: ClosedJaxpr, allowed: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(primitive, where) of each of `equations_outside`."""
    return [(one.primitive.name, _where(one)) for one in equations_outside(closed, allowed)]


def equations_outside(closed: ClosedJaxpr, allowed: Sequence[str] = ()) -> list[JaxprEqn]:
    """Each floating-point equation outside kernels that uses data.

    Free are layout, casts, integer and boolean work, what is computed from constants alone, what
    a rung's `observe` does, and the primitives in `allowed`.
    """
    free = _FREE | set(allowed)
    return [
        equation
        for equation in _data_equations(closed.jaxpr, set(closed.jaxpr.invars))
        if equation.primitive.name not in free
        and equation.primitive.name != PALLAS_CALL
        and not observed(equation)
        and any(
            jnp.issubdtype(v.aval.dtype, jnp.inexact)
            for v in equation.outvars
            if hasattr(v.aval, "dtype")
        )
    ]


def _data_equations(jaxpr: Jaxpr, data: set) -> Iterator[JaxprEqn]:
    """Leaf equations that depend on `data`, a set of variables that grows as they are met."""
    for equation in jaxpr.eqns:
        used = [isinstance(v, Var) and v in data for v in equation.invars]
        if not any(used):
            continue
        data.update(equation.outvars)
        nested = () if equation.primitive.name == PALLAS_CALL else tuple(subjaxprs(equation))
        for inner in nested:
            same = len(inner.invars) == len(used)
            yield from _data_equations(
                inner, {v for n, v in enumerate(inner.invars) if not same or used[n]}
            )
        if not nested:
            yield equation


def _where(equation: JaxprEqn) -> str:
    """The learner's line, or that it is in the backward pass."""
    if _in_backward_pass(equation):
        return ", in the backward pass"
    line = line_of(equation)
    return f": `{line}`" if line else ""


def _in_backward_pass(equation: JaxprEqn) -> bool:
    """There JAX knows no other line than that of the call which is differentiated."""
    return "transpose(" in str(equation.source_info.name_stack)


def line_of(equation: JaxprEqn) -> str:
    """The learner's source line that made `equation`, or '' if it is not known."""
    frame = None if _in_backward_pass(equation) else _frame(equation)
    return "" if frame is None else linecache.getline(frame.file_name, frame.line_num).strip()


def observed(equation: JaxprEqn) -> bool:
    """Whether a rung's author made it, to observe the learner's function."""
    frame = _frame(equation)
    return frame is not None and source.author_wrote(frame.file_name, frame.line_num)


def by_pipeline(equation: JaxprEqn) -> bool:
    """Whether `emit_pipeline` made it for itself, and not the learner's body that it calls."""
    for frame in _frames(equation):
        if source.is_learners(frame.file_name):
            return False
        if "emit_pipeline" in frame.function_name:
            return True
    return False


def _frame(equation: JaxprEqn) -> Any:
    """The innermost frame that is neither JAX's nor the engine's."""
    return next((one for one in _frames(equation) if source.is_learners(one.file_name)), None)


def _frames(equation: JaxprEqn) -> Sequence[Any]:
    """Innermost first."""
    traceback = equation.source_info.traceback
    return traceback.frames if traceback is not None else ()
