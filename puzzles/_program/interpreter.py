"""Evaluating programs in NumPy, equation by equation, without compiling anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from puzzles._equations import scan_counts
from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from puzzles._program.jaxprs import CALLS, Interpreter, Plan, callee
from puzzles._program.numpy_rules import rule_of
from puzzles._rules import sentence

FUEL = 200_000  # equations, or events of all grid steps: a second or two
TURNS = 10_000  # iterations of a `while`: more than any puzzle needs
_ENTERED = 5  # entering a program takes as long as so many equations
Values = list[Any]
Meaning = Callable[[Any, JaxprEqn, Values], Values]
Observer = Callable[[JaxprEqn, Values, Values], None]
_PLANS: dict[type, WeakKeyDictionary[Jaxpr, Plan]] = {}


class UnsupportedError(Exception):
    """The program does something that this interpreter has no rule for."""


class BudgetError(UnsupportedError):
    """The budget of work is used up."""


class LoopLimitError(Exception):
    """A `while` loop ran for `TURNS` iterations."""


class EarlyStopError(Exception):
    """Raised by an observer to end a run; `args[0]` is its result."""


class NumpyInterpreter(Interpreter):
    """Evaluates programs, or raises `UnsupportedError`; the caller then asks JAX.

    It gives up on primitives that have no rule in `numpy_rules`, and after `FUEL` equations.

    observer: called with each equation, its operands and its results.
    """

    meanings: ClassVar[dict[str, Meaning]]  # primitives that are not arithmetic

    def __init__(self, observer: Observer | None = None) -> None:
        super().__init__()
        # All devices and all runs of a program share its plans.
        self._plans = _PLANS.setdefault(type(self), WeakKeyDictionary())
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
        if (meaning := self.meanings.get(name)) is not None:
            return meaning
        return NumpyInterpreter._call if name in CALLS else self.computation(equation)

    def without_rule(self, equation: JaxprEqn, values: Values) -> Values:
        """The results of an equation without a rule."""
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
            outputs = self.closed(p["jaxpr"], [*consts, *carry, *(row[n] for row in rows)])
            carry = outputs[:carried]
            stacks.append(outputs[carried:])
        if p["reverse"]:
            stacks.reverse()
        if not stacks and len(equation.outvars) > carried:
            raise UnsupportedError
        return [*carry, *(np.stack(column) for column in zip(*stacks, strict=True))]

    def _call(self, equation: JaxprEqn, values: Values) -> Values:
        inner = callee(equation)
        return self.without_rule(equation, values) if inner is None else self.closed(inner, values)

    @staticmethod
    def computation(equation: JaxprEqn) -> Meaning:
        """The plan of an equation that computes; without a rule for it, the interpreter decides."""
        rule = rule_of(equation)

        def computes(interpreter: NumpyInterpreter, equation: JaxprEqn, values: Values) -> Values:
            if rule is None:
                return interpreter.without_rule(equation, values)
            try:
                return rule(values)
            except Exception:  # the rule does not cover these operands
                return interpreter.without_rule(equation, values)

        return computes


CONTROL: dict[str, Meaning] = {
    "cond": NumpyInterpreter._cond,
    "while": NumpyInterpreter._while,
    "scan": NumpyInterpreter._scan,
}
NumpyInterpreter.meanings = CONTROL
