"""Running a program: at once on the CPU, or in Python down to the equations that launch kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._jax import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    close,
    jaxpr_as_fun,
    scan_counts,
)
from puzzles._launch.faithful import TURNS, Endless, faithful
from puzzles._launch.jaxprs import PALLAS_CALL, kernel_calls, part, subjaxprs
from puzzles._launch.sameness import fingerprint

# Without LLVM's optimiser and XLA's fusion emitters a kernel compiles in a third of the time and
# runs, at the sizes of a puzzle, just as fast. The algebraic simplifier would turn a product with
# a mask into a choice, and NaN times 0, which a TPU leaves NaN, into 0.
_QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_disable_hlo_passes": "algsimp",
}
# Calls that only wrap; their bodies are run in place. `custom_vjp` must be: the simulator's
# effects are refused under it ("Effects not supported").
_WRAPPERS = {
    "jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip
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
    config = jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision
    forms = tuple((x.shape, x.dtype) for x in args)
    key = fingerprint(program) if key is None else key, config, forms
    run = remembered(_compiled, key, lambda: _compile(program, args))
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


T = TypeVar("T")
_KEPT = 500
_compiled: dict[Hashable, Callable[..., list[jax.Array]]] = {}


def remembered(cache: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """`cache[key]`, made where it is missing; of many the oldest is forgotten."""
    if key not in cache:
        if len(cache) >= _KEPT:
            cache.pop(next(iter(cache)))
        cache[key] = make()
    return cache[key]


def _compile(program: ClosedJaxpr, args: Sequence[Any]) -> Callable[..., list[jax.Array]]:
    lowered = jax.jit(jaxpr_as_fun(faithful(program))).lower(*args)
    try:
        return lowered.compile(_QUICK)
    except Exception:  # an XLA that does not know one of the flags
        return lowered.compile()


def _plainly(_: object, program: ClosedJaxpr, values: list[Any]) -> list[jax.Array]:
    return on_cpu(program, values)


def run_program(closed: ClosedJaxpr, args: Sequence[Any], launch: Run = _plainly) -> list[Any]:
    """The flat results of a program: `launch` runs each `pallas_call`, the CPU what lies between.

    Equations between two launches are one group: compiled one by one they cost 10 ms each. Loops
    and branches around a launch are run in Python, since all values are known.
    """
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env |= zip(jaxpr.invars, args, strict=True)
    waiting: list[JaxprEqn] = []

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    def run(group: list[JaxprEqn], how: Run) -> None:
        if group:
            program, needed = part(jaxpr, group)
            made = how(group, program, [env[v] for v in needed])
            env.update(zip((v for e in group for v in e.outvars), made, strict=True))

    def within(inner: ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
        return run_program(inner, values, launch)

    for equation in jaxpr.eqns:
        if not _launches(equation):
            waiting.append(equation)
            continue
        run(waiting, _plainly)
        waiting = []
        if equation.primitive.name in _CONTROL:
            values = [read(v) for v in equation.invars]
            out = _CONTROL[equation.primitive.name](equation.params, values, within)
            env |= zip(equation.outvars, out, strict=True)
        else:
            run([equation], launch)
    run(waiting, _plainly)
    return [read(v) for v in jaxpr.outvars]


def runs_in_python(jaxpr: Jaxpr) -> bool:
    """Whether `run_program` gets to every launch: not to those of `shard_map`, for example."""
    for equation in filter(_launches, jaxpr.eqns):
        if equation.primitive.name == PALLAS_CALL:
            continue
        if equation.primitive.name not in _CONTROL:
            return False
        if not all(map(runs_in_python, subjaxprs(equation))):
            return False
    return True


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


_CONTROL = dict.fromkeys(_WRAPPERS, _call) | {"scan": _scan, "while": _while, "cond": _cond}
