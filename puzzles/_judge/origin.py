"""The origin of results and equations: the launch of a result, the line of an equation, and the
work outside kernels."""

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

# Layout of a single array: only casts change numbers.
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
    """The launch's output that becomes flat result `position`; None if more than layout follows."""
    source = traced.graph.results[position]
    while (node := source.node) is not None:
        if node.equation.primitive.name == PALLAS_CALL:
            launch = traced.launches[traced.graph.calls.index(node)]
            operand = launch.outputs[source.index]
            fits = marks.shape == operand.shape and len(operand.blocks)
            return Origin(launch, operand, marks) if fits else None
        if (undo := _undo(node.equation)) is None:
            return None
        marks = undo(marks)
        source = node.inputs[source.index if len(node.equation.outvars) > 1 else 0]
    return None


def _undo(equation: JaxprEqn) -> Callable[[np.ndarray], np.ndarray] | None:
    """A function that moves marks from an equation's result to its operand; None if it cannot."""
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
            bounds = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
            whole[tuple(slice(*bound) for bound in bounds)] = marks
            return whole

        return cut
    return None


def equations_outside(traced: Traced, allowed: Sequence[str] = ()) -> list[JaxprEqn]:
    """The floating-point equations outside kernels that depend on data.

    Not counted: layout, casts, integer and boolean work, computation on constants, the puzzle's
    `observe`, and the primitives in `allowed`.
    """
    free = _FREE | {PALLAS_CALL} | set(allowed)
    fed = [
        inner
        for node in traced.graph.nodes
        if node.on_data
        for inner in inner_equations(node.equation)
    ]
    return [
        equation
        for equation in {id(inner): inner for inner in fed}.values()  # a loop may repeat some
        if not _amounts_to(equation) <= free
        and not observed(equation)
        and any(
            jnp.issubdtype(v.aval.dtype, jnp.inexact)
            for v in equation.outvars
            if hasattr(v.aval, "dtype")
        )
    ]


def _amounts_to(equation: JaxprEqn) -> set[str]:
    """The name of its primitive; for a dot with vectors, the names of the product and its sum.

    Axes of length 1 do not count: a dot over such an axis is a product without a sum.
    """
    if equation.primitive.name != "dot_general":
        return {equation.primitive.name}
    contracted, batch = equation.params["dimension_numbers"]
    shapes = [v.aval.shape for v in equation.invars]
    sums = any(shapes[0][axis] > 1 for axis in contracted[0])
    free_axes = [
        [axis for axis, size in enumerate(shape) if size > 1 and axis not in (*over, *along)]
        for shape, over, along in zip(shapes, contracted, batch, strict=True)
    ]
    if sums and all(free_axes):
        return {"dot_general"}
    return {"mul", "reduce_sum"} if sums else {"mul"}


def where_made(equation: JaxprEqn) -> str:
    """The learner's line in words, or ", in the backward pass"; "" if it is not known."""
    if _in_backward_pass(equation):
        return ", in the backward pass"
    line = source_text(equation)
    return f": `{line}`" if line else ""


def _in_backward_pass(equation: JaxprEqn) -> bool:
    """True in a backward pass, for which JAX only has the line of the differentiated call."""
    return "transpose(" in str(equation.source_info.name_stack)


def source_text(equation: JaxprEqn) -> str:
    """The learner's source line that made `equation`, or '' if it is not known."""
    frame = None if _in_backward_pass(equation) else _frame(equation)
    return "" if frame is None else linecache.getline(frame.file_name, frame.line_num).strip()


def file_of(equation: JaxprEqn) -> str:
    """The file of that line, or '' if it is not known."""
    frame = None if _in_backward_pass(equation) else _frame(equation)
    return "" if frame is None else frame.file_name


def observed(equation: JaxprEqn) -> bool:
    """True if the equation comes from an author cell, which observes the learner's function."""
    frame = _frame(equation)
    return frame is not None and source.author_wrote(frame.file_name, frame.line_num)


def _frame(equation: JaxprEqn) -> Any:
    """The innermost frame that is neither JAX's nor the engine's."""
    traceback = equation.source_info.traceback
    frames = traceback.frames if traceback is not None else ()
    return next((frame for frame in frames if source.is_learners(frame.file_name)), None)
