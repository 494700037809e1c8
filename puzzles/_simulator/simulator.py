"""A simulated TPU: NumPy runs launches, unwritten memory is NaN, and hazards raise."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._launch import (
    ERROR,
    Finding,
    Traced,
    copied,
    faults,
    line_of,
    memory_space,
    told,
)
from puzzles._program import (
    BudgetError,
    UnreadableError,
    kernel_calls,
    launch_name,
    outside,
    parameter_names,
    subjaxprs,
    visited,
)
from puzzles._rules import sentence
from puzzles._simulator.devices import on_mesh, run_devices, schedules
from puzzles._simulator.programs import run_as
from puzzles._simulator.semantics import HazardError, Semantics, comparable


class SimulationError(Exception):
    """The simulated TPU refuses a program; `finding` is None if NumPy cannot run it."""

    def __init__(self, refusal: Finding | str) -> None:
        self.finding = None if isinstance(refusal, str) else refusal
        self.says = refusal if isinstance(refusal, str) else refusal.words
        super().__init__(self.says)


def simulate(traced: Traced, played: list[np.ndarray] | None = None) -> list[np.ndarray]:
    """Return the flat results of `traced` on its leaves, on a simulated TPU with one core.

    played: on a mesh, the results of the first of `schedules`, if it has been run.

    Raises `SimulationError`, also for a buffer touched while a copy is in flight, a copy without a
    wait, a wait that never ends, an indexed `pl.ANY` ref. Parallel axes run in reverse; copies land
    at their waits.
    """
    if (finding := foreseen(traced)) is not None:
        raise SimulationError(finding)
    for leaf in traced.leaves:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(f"simulating needs data, and {leaf} is only a shape")
    if axes := on_mesh(traced):
        return _on_devices(traced, math.prod(axes.values()), played)
    try:
        ran = run_as(traced, Semantics())
    except HazardError as error:
        raise SimulationError(error.finding) from None
    except Exception as error:
        raise SimulationError(cannot(error)) from None
    if ran.cut:
        raise SimulationError(cannot(BudgetError("too many operations")))
    return ran.results


def _on_devices(traced: Traced, count: int, played: list[np.ndarray] | None) -> list[np.ndarray]:
    """The results on a mesh, from the first schedule that changes them if there is one."""
    first, *others = schedules(count)
    try:
        results = run_devices(traced, *first).results if played is None else played
        same = tuple(map(comparable, results))
        for how, slowest in others:
            results = run_devices(traced, how, slowest).results
            if tuple(map(comparable, results)) != same:
                break
    except HazardError as error:
        raise SimulationError(error.finding) from None
    except Exception as error:
        raise SimulationError(cannot(error)) from None
    return results


def cannot(error: Exception) -> str:
    """The message that NumPy does not run a program, with the reason."""
    return sentence("not_in_numpy", why=str(error) or type(error).__name__)


def foreseen(traced: Traced, rewritten: bool = False) -> Finding | None:
    """Return the first error that the launches show without a run; None if there is none.

    Detects an indexed ref in HBM, a block outside its array, a block that comes back after another
    block, a hazard of a copy by hand. None also if a launch cannot be read, such as a launch in a
    loop that chooses its blocks. rewritten: a run decides whether a block that comes back is
    written whole, unless it is aliased.
    """
    try:
        launches = traced.launches
    except UnreadableError:
        return None
    for call, launch in zip(kernel_calls(traced.jaxpr.jaxpr), launches, strict=True):
        kinds = ("out-of-bounds", "revisited")
        wrong = (f for f in faults(launch) if f.kind in kinds and f.severity == ERROR)
        if rewritten:
            aliased = [launch.outputs[o].name for _, o in launch.aliases]
            wrong = (f for f in wrong if f.kind != "revisited" or f.operand in aliased)
        finding = _indexed_hbm(call) or next(wrong, None) or copied(launch)
        if finding is not None:
            return finding
    return None


def _indexed_hbm(equation: JaxprEqn) -> Finding | None:
    """The finding that the kernel indexes a ref in HBM; JAX 0.7.2 accepts that, 0.10 does not."""
    kernel = equation.params["jaxpr"]
    names = dict(zip(kernel.invars, parameter_names(equation), strict=True))
    for access, path in visited(kernel):
        if access.primitive.name in ("get", "swap", "addupdate", "masked_load", "masked_swap"):
            ref = access.invars[0]
            for around in reversed(path):
                for inner in subjaxprs(around):
                    ref = outside(around, inner).get(ref, ref)
            if memory_space(ref.aval) in ("any", "hbm"):
                name = names.get(ref)
                loads = access.primitive.name in ("get", "masked_load")
                words = "loaded_from_hbm" if loads else "stored_to_hbm"
                where: dict[str, Any] = dict(launch=launch_name(equation), operand=name)
                where["line"] = line_of(access.source_info)
                which = f"`{name}`" if name else "A ref in HBM"
                return told("lowering", words, which=which, **where)
    return None
