"""Programs evaluated in NumPy, equation by equation, which compiles nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from puzzles._jax import ClosedJaxpr, JaxprEqn, Literal, scan_counts
from puzzles._program.jaxprs import CALLS, Interpreter, callee
from puzzles._program.numpy_rules import computed, known
from puzzles._rules import sentence

FUEL = 200_000  # equations: a second or two
TURNS = 10_000  # of one `while`: more than any kernel of a puzzle takes
_ENTERED = 5  # equations take as long as entering a program
Values = list[Any]
Meaning = Callable[[Any, JaxprEqn, Values], Values]
Observer = Callable[[JaxprEqn, Values, Values], None]


class UnsupportedError(Exception):
    """What NumPy does not do here, or must not pass over in silence."""


class BudgetError(UnsupportedError):
    """As much as was asked for has run."""


class LoopLimitError(Exception):
    """A `while` that has turned `TURNS` times."""


class EarlyStopError(Exception):
    """Raised by an observer that has found what it looks for; `args[0]` is what."""


class NumpyInterpreter(Interpreter):
    """Gives programs their values, or raises `UnsupportedError`: JAX compiles and runs them then.

    Beyond it are primitives without a rule in `blocks`, and more work than `FUEL`. observer:
    is given each equation that was computed, its operands and its results.
    """

    meanings: ClassVar[dict[str, Meaning]]  # what a primitive does that is not arithmetic

    def __init__(self, observer: Observer | None = None) -> None:
        super().__init__()
        self.fuel, self.observer = FUEL, observer

    def closed(self, closed: ClosedJaxpr, args: Sequence[Any]) -> Values:
        self.fuel -= _ENTERED
        return self.run(closed.jaxpr, [np.asarray(c) for c in closed.consts], args)

    def step(self, equation: JaxprEqn, plan: Meaning, values: Values, *_: int) -> Values:
        self.fuel -= 1
        if self.fuel < 0:
            raise BudgetError("too many operations")
        outs = plan(self, equation, values)
        if self.observer is not None:
            self.observer(equation, values, outs)
        return outs

    def literal(self, atom: Literal) -> np.ndarray:
        return np.asarray(atom.val, atom.aval.dtype)

    def planned(self, equation: JaxprEqn) -> Meaning:
        name = equation.primitive.name
        return self.meanings.get(
            name, NumpyInterpreter._call if name in CALLS else NumpyInterpreter._computes
        )

    def other(self, equation: JaxprEqn, values: Values) -> Values:
        """What has no rule."""
        raise UnsupportedError(f"`{equation.primitive.name}`")

    def _cond(self, equation: JaxprEqn, values: Values) -> Values:
        branches = equation.params["branches"]
        return self.closed(branches[min(max(int(values[0]), 0), len(branches) - 1)], values[1:])

    def _while(self, equation: JaxprEqn, values: Values) -> Values:
        p = equation.params
        first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        carry = values[second:]
        for _ in range(TURNS):
            if not self.closed(p["cond_jaxpr"], [*values[:first], *carry])[0]:
                return carry
            carry = self.closed(p["body_jaxpr"], [*values[first:second], *carry])
        raise LoopLimitError(sentence("endless", turns=TURNS))

    def _scan(self, equation: JaxprEqn, values: Values) -> Values:
        p, (first, carried) = equation.params, scan_counts(equation.params)
        second = first + carried
        consts, carry, rows = values[:first], values[first:second], values[second:]
        stacks: list[Values] = []
        turns = range(p["length"])
        for n in reversed(turns) if p["reverse"] else turns:
            made = self.closed(p["jaxpr"], [*consts, *carry, *(row[n] for row in rows)])
            carry = made[:carried]
            stacks.append(made[carried:])
        if p["reverse"]:
            stacks.reverse()
        if not stacks and len(equation.outvars) > carried:
            raise UnsupportedError
        return [*carry, *(np.stack(column) for column in zip(*stacks, strict=True))]

    def _call(self, equation: JaxprEqn, values: Values) -> Values:
        inner = callee(equation)
        return self.other(equation, values) if inner is None else self.closed(inner, values)

    def _computes(self, equation: JaxprEqn, values: Values) -> Values:
        if not known(equation):
            return self.other(equation, values)
        try:
            return computed(equation, values)
        except Exception:  # a rule does not know what to make of these operands
            return self.other(equation, values)


CONTROL: dict[str, Meaning] = {
    "cond": NumpyInterpreter._cond,
    "while": NumpyInterpreter._while,
    "scan": NumpyInterpreter._scan,
}
NumpyInterpreter.meanings = CONTROL
