"""Programs rewritten so that running them on the CPU rounds where they say so, and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

# Turns of one `while`: a second or so on a CPU, and more than any kernel of a puzzle takes.
TURNS = 1_000_000
# What holds programs that run as they are written. The jaxprs of others, of `reduce` or `scatter`
# for example, say what XLA is to do with two numbers.
_HOLDERS = {
    "pallas_call", "run_scoped", "scan", "while", "cond",
    "jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip
_UNSIGNED = {16: jnp.uint16, 8: jnp.uint8}


class Endless(Exception):
    """A `while` that has turned `TURNS` times."""

    def __init__(self) -> None:
        super().__init__(
            f"A `while` loop does not end: it was stopped after {TURNS:,} turns. Does its body "
            "change what its condition reads, and towards the end?"
        )


def faithful(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, kernels included, that XLA's CPU compiler cannot make more precise.

    JAX 0.10 keeps narrow floats in f32 from one operation to the next. Seen as integers and back,
    each result is rounded. And each `while` counts its turns: `Endless` is raised where it ran.
    """
    return _swap(closed)


def before_last_casts(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program without the casts to a narrow float that its results end with."""
    jaxpr = closed.jaxpr
    casts = {
        e.outvars[0]: e.invars[0]
        for e in jaxpr.eqns
        if e.primitive.name == "convert_element_type" and _narrow(e.outvars[0]) is not None
    }
    return closed.replace(jaxpr=jaxpr.replace(outvars=[casts.get(v, v) for v in jaxpr.outvars]))


def _swap(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=_rewritten(value.jaxpr))
    if isinstance(value, Jaxpr):
        return _rewritten(value)
    if type(value) in (tuple, list):
        return type(value)(map(_swap, value))
    return value


def _rewritten(jaxpr: Jaxpr) -> Jaxpr:
    return jaxpr.replace(eqns=[new for one in jaxpr.eqns for new in _equations(one)])


def _equations(equation: JaxprEqn) -> Sequence[JaxprEqn]:
    """One equation, rewritten, and what pins its results."""
    name = equation.primitive.name
    if name in _HOLDERS:
        params = {key: _swap(value) for key, value in equation.params.items()}
        equation = equation.replace(params=params)
        return [_counted(equation) if name == "while" else equation]
    after: list[JaxprEqn] = []
    outvars = list(equation.outvars)
    for n, var in enumerate(outvars):
        if (unsigned := _narrow(var)) is not None:
            rounded, eqns = _pin(var, unsigned)
            outvars[n] = rounded
            after += eqns
    return [equation.replace(outvars=outvars), *after] if after else [equation]


def _narrow(var: Var) -> Any:
    """The unsigned integer as wide as a float below 32 bits, else None."""
    dtype = getattr(var.aval, "dtype", None)
    if type(var.aval) is not jax.core.ShapedArray or not jnp.issubdtype(dtype, jnp.floating):
        return None
    return _UNSIGNED.get(jnp.finfo(dtype).bits)


def _pin(var: Var, unsigned: Any) -> tuple[Var, list[JaxprEqn]]:
    """A variable to write instead of `var`, and equations that give `var` its value."""
    form = jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
    new, (there, back), _ = _traced(lambda x: _there_and_back(x, unsigned), form)
    return new[0], [there, back.replace(outvars=[var])]


def _there_and_back(x: jax.Array, unsigned: Any) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(x, unsigned)
    return jax.lax.bitcast_convert_type(bits, x.dtype)


def _traced(fn: Callable, *forms: Any) -> tuple[list[Var], list[JaxprEqn], list[Any]]:
    """Fresh input variables, equations and outputs of `fn`."""
    jaxpr = jax.make_jaxpr(fn)(*forms).jaxpr
    return jaxpr.invars, jaxpr.eqns, jaxpr.outvars


def _counted(equation: JaxprEqn) -> JaxprEqn:
    """A `while` with one value more to carry: how often it has turned."""
    p = equation.params
    count, flag = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.bool_)
    test, body = p["cond_jaxpr"], p["body_jaxpr"]
    (more, turns), eqns, goes = _traced(_goes_on, flag, count)
    cond = _appended(test.jaxpr, [turns], _read(eqns, more, test.jaxpr.outvars[0]), goes)
    (turns,), eqns, after = _traced(lambda n: n + 1, count)
    body_jaxpr = _appended(body.jaxpr, [turns], eqns, [*body.jaxpr.outvars, *after])
    (spare,), _, (zero,) = _traced(lambda n: np.int32(0), count)
    return equation.replace(
        params={
            **p,
            "cond_jaxpr": test.replace(jaxpr=cond),
            "body_jaxpr": body.replace(jaxpr=body_jaxpr),
        },
        invars=[*equation.invars, zero],
        outvars=[*equation.outvars, spare],
    )


def _appended(jaxpr: Jaxpr, invars: list, eqns: list, outvars: list) -> Jaxpr:
    nameless = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    return jaxpr.replace(
        invars=[*jaxpr.invars, *invars],
        eqns=[*jaxpr.eqns, *eqns],
        outvars=outvars,
        debug_info=nameless,
    )


def _read(eqns: Sequence[JaxprEqn], var: Var, instead: Var | Literal) -> list[JaxprEqn]:
    """Equations that read `instead` where they read `var`."""
    return [e.replace(invars=[instead if v is var else v for v in e.invars]) for e in eqns]


def _goes_on(more: jax.Array, turns: jax.Array) -> jax.Array:
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    stop = lambda n: jax.pure_callback(_stop, flag, n)  # noqa: E731
    return more & jax.lax.cond(turns < TURNS, lambda n: True, stop, turns)


def _stop(turns: Any) -> np.bool_:
    if turns < TURNS:  # XLA may run both branches of a choice
        return np.bool_(True)
    raise Endless
