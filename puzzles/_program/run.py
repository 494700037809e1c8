"""Running a program: in JAX on the CPU, or in NumPy around its launches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from puzzles._equations import is_key
from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from puzzles._program.blas import one_blas_thread
from puzzles._program.interpreter import CONTROL, LoopLimitError, NumpyInterpreter, Observer, Values
from puzzles._program.jaxprs import (
    CALLS,
    OTHER_KERNELS,
    PALLAS_CALL,
    part,
    visited,
    with_interpret,
)

Launcher = Callable[[JaxprEqn, Values], Sequence[Any]]  # runs a `pallas_call` on its operands


def by_jax(program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """The flat results of a program in JAX on the CPU, with launches interpreted.

    They are NumPy arrays, except random keys, which NumPy does not have.
    """
    return _on_cpu(_compiled(program), args)


def _compiled(program: ClosedJaxpr) -> Callable[..., list[Any]]:
    return jax.jit(jaxpr_as_fun(with_interpret(program, True)))


def _on_cpu(run: Callable[..., list[Any]], args: Sequence[Any]) -> list[Any]:
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return [x if is_key(x) else np.asarray(x) for x in run(*args)]


_alone = lru_cache(maxsize=256)(lambda equation: part([equation]))  # built once


def single(call: JaxprEqn, values: Values) -> tuple[ClosedJaxpr, Values]:
    """One equation as a program, and the arguments of that program."""
    program, needed = _alone(call)
    env = {v: x for v, x in zip(call.invars, values, strict=True) if not isinstance(v, Literal)}
    return program, [env[v] for v in needed]


def interpreted(call: JaxprEqn, values: Values) -> list[Any]:
    """The results of one equation, computed by JAX."""
    _, args = single(call, values)
    return _on_cpu(_compiled_alone(call), args)


@lru_cache(maxsize=256)
def _compiled_alone(equation: JaxprEqn) -> Callable[..., list[Any]]:
    """One equation, compiled once however often it runs."""
    return _compiled(_alone(equation)[0])


class ProgramInterpreter(NumpyInterpreter):
    """Evaluates the program around launches. JAX computes what NumPy has no rule for.

    launch: runs a `pallas_call` on its operands.
    """

    def __init__(self, launch: Launcher = interpreted, observer: Observer | None = None) -> None:
        super().__init__(observer)
        self._launch = launch

    def equation(self, equation: JaxprEqn, values: Values) -> Values:
        """The results of one equation on its operands."""
        try:
            return self.planned(equation)(self, equation, values)
        except LoopLimitError:
            raise
        except Exception:
            return interpreted(equation, values)

    def without_rule(self, equation: JaxprEqn, values: Values) -> Values:
        return interpreted(equation, values)

    def _launches(self, equation: JaxprEqn, values: Values) -> Values:
        return list(self._launch(equation, values))


ProgramInterpreter.meanings = CONTROL | {PALLAS_CALL: ProgramInterpreter._launches}


@one_blas_thread()
def run_program(
    closed: ClosedJaxpr, args: Sequence[Any], launch: Launcher, observer: Observer | None = None
) -> list[np.ndarray]:
    """The flat results of a program; `launch` runs its launches."""
    values = [x if is_key(x) else np.asarray(x) for x in args]
    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in ProgramInterpreter(launch, observer).closed(closed, values)]


def runs_in_python(jaxpr: Jaxpr, through: Collection[str] = (*CALLS, *CONTROL)) -> bool:
    """True if `run_program` reaches every launch; it does not reach those inside `shard_map`.

    through: the primitives that may contain a launch.
    """
    operations = [(equation.primitive.name, path) for equation, path in visited(jaxpr)]
    if any(name in OTHER_KERNELS for name, _ in operations):  # no CPU runs SparseCores
        return False
    paths = (path for name, path in operations if name == PALLAS_CALL)
    return all(eqn.primitive.name in through for path in paths for eqn in path)
