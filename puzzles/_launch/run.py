"""Running a program: at once on the CPU, or in Python down to the equations that launch kernels."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._jax import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    close,
    scan_counts,
)
from puzzles._launch.compiling import compiled
from puzzles._launch.faithful import TURNS, Endless
from puzzles._launch.in_numpy import evaluated
from puzzles._launch.jaxprs import CALLS, PALLAS_CALL, kernel_calls, part, subjaxprs, visited
from puzzles._launch.sameness import fingerprint

# How to run a group of equations, which are also given, as a program on its inputs.
Run = Callable[[list[JaxprEqn], ClosedJaxpr, list[Any]], Sequence[Any]]


def quickly(program: ClosedJaxpr, args: Sequence[Any]) -> list[np.ndarray]:
    """The flat results of a program on the CPU, as NumPy's arrays."""
    return [np.asarray(x) for x in on_cpu(program, args)]


def on_cpu(program: ClosedJaxpr, args: Sequence[Any], key: Hashable = None) -> list[jax.Array]:
    """The flat results of a program on the CPU, compiled fast, and once for all of equal `key`.

    key: the program's fingerprint, which is computed where none is given.
    """
    args = jax.device_put(list(args), jax.local_devices(backend="cpu")[0])
    run = compiled(program, fingerprint(program) if key is None else key, args)
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


def calculated(program: ClosedJaxpr, args: Sequence[Any]) -> Sequence[Any]:
    """The flat results of a program without launches: compiled only where NumPy does not do."""
    try:
        return evaluated(program, args)
    except Exception:  # JAX may do it, or say why not
        return on_cpu(program, args)


def _plainly(_: object, program: ClosedJaxpr, values: list[Any]) -> list[jax.Array]:
    return on_cpu(program, values)


def before_launches(closed: ClosedJaxpr, args: Sequence[Any]) -> dict[Var, Any]:
    """What a program computes before it first launches: the value of each variable."""
    launches, group = next(_groups(closed.jaxpr), (True, []))
    if launches:
        return {}
    program, needed = part(closed.jaxpr, group)
    env = _given(closed, args)
    return dict(
        zip(program.jaxpr.outvars, calculated(program, [env[v] for v in needed]), strict=True)
    )


def _given(closed: ClosedJaxpr, args: Sequence[Any]) -> dict[Any, Any]:
    constants = zip(closed.jaxpr.constvars, closed.consts, strict=True)
    return dict(constants) | dict(zip(closed.jaxpr.invars, args, strict=True))


def run_program(
    closed: ClosedJaxpr,
    args: Sequence[Any],
    launch: Run = _plainly,
    before: Mapping[Var, Any] | None = None,
) -> list[Any]:
    """The flat results of a program: `launch` runs each `pallas_call`, the CPU what lies between.

    before: what `before_launches` gives of it, where that is known.

    Equations between two launches are one group: compiled one by one they cost 10 ms each. Loops
    and branches around a launch are run in Python, since all values are known.
    """
    jaxpr = closed.jaxpr
    env = _given(closed, args) | dict(before or {})

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    def within(inner: ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
        return run_program(inner, values, launch)

    for launches, group in _groups(jaxpr):
        if all(v in env for e in group for v in e.outvars):
            continue
        control = _CONTROL.get(group[0].primitive.name) if launches else None
        made: Sequence[Any]
        if control is not None:
            values = [read(v) for v in group[0].invars]
            made = control(group[0].params, values, within)
        else:
            program, needed = part(jaxpr, group)
            values = [env[v] for v in needed]
            made = launch(group, program, values) if launches else calculated(program, values)
        env.update(zip((v for e in group for v in e.outvars), made, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _groups(jaxpr: Jaxpr) -> Iterator[tuple[bool, list[JaxprEqn]]]:
    """The equations in order: each that launches a kernel alone, those between two together."""
    for launches, group in itertools.groupby(jaxpr.eqns, _launches):
        if launches:
            yield from ((True, [one]) for one in group)
        else:
            yield False, list(group)


def runs_in_python(jaxpr: Jaxpr) -> bool:
    """Whether `run_program` gets to every launch: not to those of `shard_map`, for example."""
    paths = (path for equation, path in visited(jaxpr) if equation.primitive.name == PALLAS_CALL)
    return all(one.primitive.name in _CONTROL for path in paths for one in path)


def _launches(equation: JaxprEqn) -> bool:
    if equation.primitive.name == PALLAS_CALL:
        return True
    return any(True for inner in subjaxprs(equation) for _ in kernel_calls(inner))


def _call(params: dict[str, Any], values: list[Any], within: Callable) -> list[Any]:
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    return within(close(inner), values)  # `checkpoint` keeps it open, without constants


def _scan(params: dict[str, Any], values: list[Any], within: Callable) -> list[Any]:
    first, carried = scan_counts(params)
    second = first + carried
    consts, carry, rows = values[:first], values[first:second], values[second:]
    steps = range(params["length"])
    stacks: list[list[Any]] = []
    for n in reversed(steps) if params["reverse"] else steps:
        out = within(params["jaxpr"], [*consts, *carry, *(row[n] for row in rows)])
        carry = out[:carried]
        stacks.append(out[carried:])
    if params["reverse"]:
        stacks.reverse()
    return [*carry, *(jnp.stack(column) for column in zip(*stacks, strict=True))]


def _while(params: dict[str, Any], values: list[Any], within: Callable) -> list[Any]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    carry = values[second:]
    for _ in range(TURNS):
        if not within(params["cond_jaxpr"], [*values[:first], *carry])[0]:
            return carry
        carry = within(params["body_jaxpr"], [*values[first:second], *carry])
    raise Endless


def _cond(params: dict[str, Any], values: list[Any], within: Callable) -> list[Any]:
    last = len(params["branches"]) - 1
    return within(params["branches"][min(max(int(values[0]), 0), last)], values[1:])


# A call's body is run in place. That of `custom_vjp` must be: the simulator's effects are refused
# under it ("Effects not supported").
_CONTROL = dict.fromkeys(CALLS, _call) | {"scan": _scan, "while": _while, "cond": _cond}
