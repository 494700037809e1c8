"""Whose is it? An answer's own launches and lines, its work outside kernels, and which output of
which launch becomes a result."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._judge import source
from puzzles._launch import Launch, Operand, Traced
from puzzles._program import LAYOUT, PALLAS_CALL, inner_equations

# Layout only, of one array: no number changes but by a cast.
_FREE = LAYOUT - {"concatenate", "rev"}
_FREE |= {"convert_element_type", "bitcast_convert_type", "get", "swap", "optimization_barrier"}


@dataclass(frozen=True)
class Origin:
    """Output `operand` of `launch` becomes a result; `marks` on the result, moved there."""

    launch: Launch
    operand: Operand
    marks: np.ndarray

    @property
    def block(self) -> tuple[int, ...]:
        """The index of the block that holds the first mark."""
        corner = np.unravel_index(int(np.argmax(self.marks)), self.operand.shape)
        return tuple(int(n) // size for n, size in zip(corner, self.operand.sizes, strict=True))


def origin(traced: Traced, position: int, marks: np.ndarray) -> Origin | None:
    """Where the flat result `position` comes from, if only layout lies between; else None."""
    source = traced.graph.results[position]
    while (node := source.node) is not None:
        if node.equation.primitive.name == PALLAS_CALL:
            launch = traced.launches[traced.graph.calls.index(node)]
            operand = launch.outputs[source.index]
            known = marks.shape == operand.shape and len(operand.blocks)
            return Origin(launch, operand, marks) if known else None
        if (undo := _undo(node.equation)) is None:
            return None
        marks = undo(marks)
        source = node.inputs[source.index if len(node.equation.outvars) > 1 else 0]
    return None


def _undo(equation: JaxprEqn) -> Callable[[np.ndarray], np.ndarray] | None:
    """Marks on an equation's result, moved to its operand; None where numbers are mixed."""
    name, p = equation.primitive.name, equation.params
    shape = getattr(equation.invars[0].aval, "shape", ())
    if name in ("convert_element_type", "copy", "optimization_barrier", "stop_gradient"):
        return lambda marks: marks
    if name in ("reshape", "squeeze"):
        return lambda marks: marks.reshape(shape)
    if name == "transpose":
        return lambda marks: marks.transpose(np.argsort(p["permutation"]))
    if name == "slice":

        def cut(marks: np.ndarray) -> np.ndarray:
            whole = np.zeros(shape, bool)
            strides = p["strides"] or (1,) * len(shape)
            kept = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
            whole[tuple(slice(*one) for one in kept)] = marks
            return whole

        return cut
    return None


def equations_outside(traced: Traced, allowed: Sequence[str] = ()) -> list[JaxprEqn]:
    """Each floating-point equation outside kernels that uses data.

    Free are layout, casts, integer and boolean work, what is computed from constants alone, what
    a rung's `observe` does, and the primitives in `allowed`.
    """
    free = _FREE | {PALLAS_CALL} | set(allowed)
    fed = [
        one for node in traced.graph.nodes if node.on_data for one in inner_equations(node.equation)
    ]
    return [
        equation
        for equation in {id(one): one for one in fed}.values()  # those in a loop are met again
        if equation.primitive.name not in free
        and not observed(equation)
        and any(
            jnp.issubdtype(v.aval.dtype, jnp.inexact)
            for v in equation.outvars
            if hasattr(v.aval, "dtype")
        )
    ]


def where_made(equation: JaxprEqn) -> str:
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


def file_of(equation: JaxprEqn) -> str:
    """The file of that line, or '' if it is not known."""
    frame = None if _in_backward_pass(equation) else _frame(equation)
    return "" if frame is None else frame.file_name


def observed(equation: JaxprEqn) -> bool:
    """Whether a rung's author made it, to observe the learner's function."""
    frame = _frame(equation)
    return frame is not None and source.author_wrote(frame.file_name, frame.line_num)


def _frame(equation: JaxprEqn) -> Any:
    """The innermost frame that is neither JAX's nor the engine's."""
    traceback = equation.source_info.traceback
    frames = traceback.frames if traceback is not None else ()
    return next((one for one in frames if source.is_learners(one.file_name)), None)
