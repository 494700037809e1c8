"""Questions of stage `error`: can the program run, and does it raise?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from puzzles._jax import Jaxpr, JaxprEqn
from puzzles._judge.answer import Run
from puzzles._judge.exceptions import raised
from puzzles._judge.source import Code, given
from puzzles._launch import faults_of_copies
from puzzles._program import UnsupportedError, equations, kernel_calls, visited
from puzzles._rules import Breach
from puzzles._simulator import cannot


def rule_of_itself(code: Code) -> Breach | None:
    """Require that no derivative rule differentiates its own function.

    JAX would call the rule again without end, and use more memory each time.
    """
    if (names := code.rule_of_itself()) is None:
        return None
    return Breach("rule-of-itself", {"rule": names[0], "of": names[1]})


def grids(run: Run) -> Breach | None:
    """Require that no size in a grid is negative."""
    with run.learners_code():
        launched = run.traced.grids
    for name, grid in launched:
        for axis, size in enumerate(grid):
            if size < 0:
                return run.wrong("negative-grid", grid=grid, name=name, size=size, axis=axis)
    return None


def steps(run: Run) -> Breach | None:
    """Require that every launch has steps."""
    for launch in run.launches:
        if not launch.steps and len(launch.aliases) < len(launch.outputs):
            return run.wrong("empty-grid", grid=launch.grid, name=launch.name)
    return None


def copies_fit(run: Run) -> Breach | None:
    """Require equal sizes at both ends of a copy; JAX may accept others or raise unclear errors."""
    for launch in run.launches:
        for fault in faults_of_copies(launch):
            if fault.kind == "unequal":
                return run.wrong("unequal-copy", says=fault.says)
    return None


def asks_outside(run: Run) -> Breach | None:
    """Require that no index map calls `program_id`: Mosaic rejects it, the CPU does not."""
    maps = (
        equation
        for call in kernel_calls(run.traced.jaxpr.jaxpr)
        for mapping in call.params["grid_mapping"].block_mappings
        for equation in equations(mapping.index_map_jaxpr.jaxpr)
    )
    name = _grid_query(maps)
    return None if name is None else run.wrong("map-asks", asked=name)


def runs(run: Run) -> Breach | None:
    """Require that the answer runs without an exception."""
    try:
        _ = run.flat
    except UnsupportedError as error:
        return run.wrong("unreadable", says=cannot(error))
    except Exception as error:
        calls = kernel_calls(run.traced.jaxpr.jaxpr)
        name = _grid_query(e for call in calls for e in _in_scopes(call.params["jaxpr"]))
        if name:  # a TPU accepts it, the CPU does not
            return run.wrong("scope-asks", asked=name)
        return raised(error, run.label, given(run.puzzle))
    return None


def _in_scopes(kernel: Jaxpr) -> Iterator[JaxprEqn]:
    for equation, path in visited(kernel):
        if any(outer.primitive.name == "run_scoped" for outer in path):
            yield equation


def _grid_query(candidates: Iterable[JaxprEqn]) -> str | None:
    """ "program_id" or "num_programs", the first of these among equations; or None."""
    names = (equation.primitive.name for equation in candidates)
    return next((name for name in names if name in ("program_id", "num_programs")), None)
