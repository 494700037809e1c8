"""Which launches are an answer's own, and which output of which becomes a result?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._jax import Jaxpr, JaxprEqn, Literal, kernel_file
from puzzles._judge.case import Case
from puzzles._launch import PALLAS_CALL, Launch, Operand, Traced, callee, kernel_calls
from puzzles._puzzle import Puzzle

Undo = Callable[[np.ndarray], np.ndarray]  # marks on a result to marks on what it was made of


def own_launches(case: Case, traced: Traced, thorough: bool = False) -> tuple[Launch, ...]:
    """The launches that are looked into here: all if `thorough`, else those of no other rung."""
    calls = kernel_calls(traced.jaxpr.jaxpr)
    return tuple(
        launch
        for call, launch in zip(calls, traced.launches, strict=True)
        if thorough or not elsewhere(case, call)
    )


def elsewhere(case: Case, call: JaxprEqn) -> bool:
    """Whether a kernel stands in another rung's module: there it is judged."""
    file = kernel_file(call.params["jaxpr"])
    here = (one for one in list(sys.modules.values()) if getattr(one, "__file__", None) == file)
    rung = any(isinstance(getattr(one, "PUZZLE", None), Puzzle) for one in here)
    return rung and file != str(case.puzzle.path)


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
    calls = list(kernel_calls(traced.jaxpr.jaxpr))
    jaxpr = traced.jaxpr.jaxpr
    found = _producer(jaxpr, jaxpr.outvars[position], [])
    if found is None or found[0] is None or len(calls) != len(traced.launches):
        return None
    equation, output, undo = found
    number = next(n for n, call in enumerate(calls) if call is equation)
    launch = traced.launches[number]
    operand = launch.outputs[output]
    for step in undo:
        marks = step(marks)
    if marks.shape != operand.shape or not len(operand.blocks):
        return None
    return Origin(launch, operand, marks)


def _producer(jaxpr: Jaxpr, var: Any, undo: list[Undo]) -> tuple[Any, int, list[Undo]] | None:
    """What makes `var` and how marks get there: a launch and which of its outputs, or None and
    which of the program's inputs."""
    while not isinstance(var, Literal):
        if var in jaxpr.invars:
            return None, jaxpr.invars.index(var), undo
        equation = next((e for e in jaxpr.eqns if var in e.outvars), None)
        if equation is None:
            return None
        output = equation.outvars.index(var)
        if equation.primitive.name == PALLAS_CALL:
            return equation, output, undo
        if (inner := callee(equation)) is not None:
            found = _producer(inner.jaxpr, inner.jaxpr.outvars[output], undo)
            if found is None or found[0] is not None:
                return found
            _, position, undo = found
            var = equation.invars[position]
            continue
        step = _undo(equation, output)
        if step is None:
            return None
        undo, var = [*undo, step], equation.invars[output if len(equation.outvars) > 1 else 0]
    return None


def _undo(equation: JaxprEqn, output: int) -> Undo | None:
    """Marks on an equation's result, moved to its operand; None where numbers are mixed."""
    name, p = equation.primitive.name, equation.params
    shape = getattr(equation.invars[0].aval, "shape", ())
    if name in ("convert_element_type", "copy", "copy_p", "optimization_barrier", "stop_gradient"):
        return lambda marks: marks
    if name in ("reshape", "squeeze", "expand_dims"):
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
