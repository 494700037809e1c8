"""Programs whose launches run in NumPy: as JAX interprets them, or as a TPU may run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._launch import Launch, Traced
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
    single,
)
from puzzles._simulator.devices import run_devices
from puzzles._simulator.machine import Machine
from puzzles._simulator.semantics import RunLog, Semantics, drawn


@dataclass
class ProgramRun:
    """What a program gave, and what was seen of its launches.

    Where one was cut off, those after it went on with numbers made up for it.
    """

    results: list[np.ndarray] = field(default_factory=list)
    trails: list[RunLog] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        """Whether a launch ended before its last step."""
        return any(one.cut is not None for one in self.trails)


def run_as(traced: Traced, how: Semantics, fuel: int = FUEL) -> ProgramRun:
    """What a program gives as a TPU may run it, in NumPy; every launch leaves a trail.

    fuel: so many equations of a launch are run. Raises `HazardError`, and `UnsupportedError`
    where NumPy cannot.
    """
    ran, launch_of = ProgramRun(), _launches(traced)

    def launch(call: JaxprEqn, values: Values) -> Values:
        trail = RunLog(launch_of(call, values))
        ran.trails.append(trail)
        machine = Machine(call, trail.launch, how, trail=trail)
        machine.fuel = fuel
        try:
            return machine.results(values)
        except BudgetError:
            trail.cut, trail.spent = machine.ids, machine.fuel < 0
            return [drawn(v.aval, 0) for v in call.outvars]

    ran.results += run_program(traced.jaxpr, traced.leaves, launch)
    return ran


def step_by_step(
    traced: Traced, strict: bool = False, observer: Observer | None = None
) -> list[np.ndarray] | None:
    """The flat results of a program whose launches run in NumPy; None where JAX has to run them.

    strict: as a TPU may run it; None also where it must not be done there. observer: see
    `NumpyInterpreter`.
    """
    how = Semantics() if strict else None
    try:
        if axes_around_kernels(traced.jaxpr.jaxpr):
            return run_devices(traced, Semantics()).results
        launch_of = _launches(traced)

        def launch(call: JaxprEqn, values: Values) -> Values:
            return Machine(call, launch_of(call, values), how, observer).results(values)

        return run_program(traced.jaxpr, traced.leaves, launch, observer)
    except (EarlyStopError, LoopLimitError):
        raise
    except Exception:  # whatever it is, JAX does it, or says in its own words why not
        return None


def _launches(traced: Traced) -> Callable[[JaxprEqn, Values], Launch]:
    """Which launch a call is that comes next, of these operands: a loop's is another each turn."""
    if not runs_in_python(traced.jaxpr.jaxpr):
        raise UnsupportedError("a launch within a `shard_map`")
    if not runs_in_python(traced.jaxpr.jaxpr, CALLS):

        def alone(call: JaxprEqn, values: Values) -> Launch:
            program, given = single(call, values)
            return Traced(program, tuple(given), None).launches[0]

        return alone
    launches = iter(traced.launches)
    return lambda call, values: next(launches)
