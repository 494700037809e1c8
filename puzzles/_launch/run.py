"""Running a program: compiled for the CPU, or in NumPy down to the launches of kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, is_key
from puzzles._launch.blocks import computed
from puzzles._launch.compiling import compiled
from puzzles._launch.faithful import Endless
from puzzles._launch.in_numpy import CONTROL, Evaluator, Observer, Values
from puzzles._launch.jaxprs import CALLS, PALLAS_CALL, part, visited, with_interpret
from puzzles._launch.sameness import fingerprint

Launcher = Callable[[JaxprEqn, Values], Sequence[Any]]  # runs a `pallas_call` on its operands


def quickly(program: ClosedJaxpr, args: Sequence[Any]) -> list[np.ndarray]:
    """The flat results of a program on the CPU, as NumPy's arrays."""
    return [np.asarray(x) for x in on_cpu(program, args)]


def on_cpu(program: ClosedJaxpr, args: Sequence[Any]) -> list[jax.Array]:
    """The flat results of a program on the CPU, compiled fast, and once for all that are equal."""
    device = jax.local_devices(backend="cpu")[0]
    jax.device_put(program.consts, device)  # of another call's arrays JAX says what they are
    args = jax.device_put(list(args), device)
    run = compiled(program, fingerprint(program), args)
    logger = logging.getLogger("jax._src.callback")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        return jax.block_until_ready(run(*args))
    except Exception as error:
        if Endless.__name__ in str(error):  # raised in a callback, and told in its words alone
            raise Endless from None
        raise
    finally:
        logger.disabled = was_disabled


def single(call: JaxprEqn, values: Values) -> tuple[ClosedJaxpr, Values]:
    """One equation as a program, and what that is given."""
    program, needed = part([call])
    given = {v: x for v, x in zip(call.invars, values, strict=True) if not isinstance(v, Literal)}
    return program, [given[v] for v in needed]


def interpreted(call: JaxprEqn, values: Values) -> list[Any]:
    """One equation, by JAX: a launch in its interpreter, anything else compiled."""
    program, given = single(call, values)
    return list(on_cpu(with_interpret(program, True), given))


class Around(Evaluator):
    """A program around its launches, each of which `launch` runs. JAX does what NumPy does not."""

    def __init__(self, launch: Launcher = interpreted, observer: Observer | None = None) -> None:
        super().__init__(observer)
        self._launch = launch

    def equation(self, equation: JaxprEqn, values: Values) -> Values:
        try:
            return super().equation(equation, values)
        except Exception:
            return interpreted(equation, values)

    def other(self, equation: JaxprEqn, values: Values) -> Values:
        return interpreted(equation, values)

    def _launches(self, equation: JaxprEqn, values: Values) -> Values:
        return list(self._launch(equation, values))


Around.meanings = CONTROL | {PALLAS_CALL: Around._launches}


class Exact(Around):
    """Sums each dot to f32 in f64, and rounds it once.

    The order of an f32 sum is the machine's: over thousands of terms that cancel, two differ.
    """

    def _dot(self, equation: JaxprEqn, values: Values) -> Values:
        if equation.outvars[0].aval.dtype != np.float32:
            return self._computes(equation, values)
        return computed(equation, [x.astype(np.float64) for x in values])


Exact.meanings = Around.meanings | {"dot_general": Exact._dot}


def exactly(closed: ClosedJaxpr, args: Sequence[Any]) -> list[np.ndarray]:
    """The flat results of a program, whose dots are summed as `Exact` does."""
    return _flat(Exact(), closed, args)


def run_program(
    closed: ClosedJaxpr,
    args: Sequence[Any],
    launch: Launcher,
    observer: Observer | None = None,
) -> list[np.ndarray]:
    """The flat results of a program, whose launches `launch` runs."""
    return _flat(Around(launch, observer), closed, args)


def _flat(around: Around, closed: ClosedJaxpr, args: Sequence[Any]) -> list[np.ndarray]:
    given = [x if is_key(x) else np.asarray(x) for x in args]
    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in around.closed(closed, given)]


def runs_in_python(jaxpr: Jaxpr, through: Collection[str] = (*CALLS, *CONTROL)) -> bool:
    """Whether `run_program` gets to every launch: not to those of `shard_map`, for example.

    through: the primitives that may hold a launch.
    """
    paths = (path for equation, path in visited(jaxpr) if equation.primitive.name == PALLAS_CALL)
    return all(one.primitive.name in through for path in paths for one in path)
