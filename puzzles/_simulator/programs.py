"""Programs whose launches run in NumPy: as JAX interprets them, or as a TPU may run them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._launch import Buffer, Follower, Launch, Timeline, Traced, allocated
from puzzles._program import (
    CALLS,
    FUEL,
    BudgetError,
    EarlyStopError,
    LoopLimitError,
    Observer,
    UnsupportedError,
    Values,
    axes_around_kernels,
    run_program,
    runs_in_python,
)
from puzzles._simulator.devices import run_devices
from puzzles._simulator.machine import Machine, launch_of
from puzzles._simulator.semantics import HazardError, ProgramRun, RunLog, Semantics, drawn


def run_as(traced: Traced, how: Semantics, fuel: int = FUEL) -> ProgramRun:
    """Run a program in NumPy as a TPU may run it, and log every launch.

    fuel: equations of a launch, at most. Raises `HazardError`, and `UnsupportedError` if NumPy
    cannot run the program.
    """
    ran, launch_of = ProgramRun(), _launches(traced)

    def launch(call: JaxprEqn, values: Values) -> Values:
        trail = RunLog(launch_of(call, values))
        ran.trails.append(trail)
        own = how if how.only in (None, len(ran.trails) - 1) else replace(how, unwritten="zero")
        machine = Machine(call, trail.launch, own, trail=trail)
        machine.fuel = fuel
        try:
            return machine.results(values)
        except BudgetError:
            trail.cut, trail.spent = machine.ids, machine.fuel < 0
            return [drawn(v.aval, 0) for v in call.outvars]

    ran.results += run_program(traced.jaxpr, traced.leaves, launch)
    return ran


class _Followed(Machine):
    """A run in which a `Follower` sees each equation before it is executed."""

    def __init__(self, call: JaxprEqn, launch: Launch) -> None:
        super().__init__(call, launch, Semantics(backwards=False))
        self.follower, self.forms = Follower(launch), list[Buffer]()

    def run_step(self, number: int, refs: Values) -> None:
        pairs = zip(self.parameters, self.kernel.invars, strict=True)
        self.forms = [Buffer.of(name, v.aval) for name, v in pairs]
        self.follower.enter(number)
        super().run_step(number, refs)

    def step(self, equation: JaxprEqn, plan: Any, values: Values, *where: int) -> Values:
        self.follower.sees(equation, [self.form(value) for value in values])
        if self.follower.unknown:  # the picture ends here
            raise BudgetError
        if equation.primitive.name == "run_scoped":
            self.forms += allocated(equation.params["jaxpr"], (len(self.forms),))
        return super().step(equation, plan, values, *where)

    def form(self, value: Any) -> Any:
        """The `Buffer` of a ref; other values stay."""
        pairs = zip(self.forms, self.buffers, strict=False)
        return next((form for form, buffer in pairs if buffer is value), value)

    def ends(self) -> None:
        self.follower.ends()
        super().ends()


def timelines_of_run(traced: Traced) -> dict[Launch, Timeline]:
    """What becomes of the copies of each launch in a run on the traced arguments.

    They end with the first hazard, and before a launch that NumPy cannot run.
    """
    ran: dict[Launch, Timeline] = {}
    launch_of = _launches(traced)

    def launch(call: JaxprEqn, values: Values) -> Values:
        machine = _Followed(call, launch_of(call, values))
        follower = machine.follower
        try:
            return machine.results(values)
        except HazardError as error:
            follower.unknown = "" if follower.faults else str(error)
            raise
        finally:
            if follower.moments:
                ran[machine.launch] = follower.result(follower.data())

    with contextlib.suppress(Exception):  # the picture shows what has run
        run_program(traced.jaxpr, traced.leaves, launch)
    return ran


def step_by_step(
    traced: Traced, strict: bool = False, observer: Observer | None = None, unwritten: str = "nan"
) -> list[np.ndarray] | None:
    """Return the flat results of a program whose launches run in NumPy; None if JAX has to.

    strict: run as a TPU may; None also for a hazard. unwritten: then, as in `Semantics`. observer:
    see `NumpyInterpreter`.
    """
    how = Semantics(unwritten=unwritten) if strict else None
    try:
        if axes_around_kernels(traced.jaxpr.jaxpr):
            return run_devices(traced, Semantics()).results
        launch_of = _launches(traced)

        def launch(call: JaxprEqn, values: Values) -> Values:
            return Machine(call, launch_of(call, values), how, observer).results(values)

        return run_program(traced.jaxpr, traced.leaves, launch, observer)
    except (EarlyStopError, LoopLimitError):
        raise
    except Exception:  # JAX runs the program, or raises its own error
        return None


def _launches(traced: Traced) -> Callable[[JaxprEqn, Values], Launch]:
    """Return a function from the next call and its operands to its launch.

    A call in a loop is another launch in each iteration.
    """
    if not runs_in_python(traced.jaxpr.jaxpr):
        raise UnsupportedError("a launch within a `shard_map`")
    if not runs_in_python(traced.jaxpr.jaxpr, CALLS):
        return launch_of
    launches = iter(traced.launches)
    return lambda call, values: next(launches)
