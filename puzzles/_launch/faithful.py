"""Programs rewritten so that running them on the CPU rounds where they say so, and ends.

What is spliced in, and why. Each can go once its test in tests/launch/test_faithful.py passes
without it, on the oldest JAX and on the newest.

Results in narrow floats are seen as integers and back. XLA's compiler for CPUs, that of JAX 0.7.2
and that of 0.10.2, adds up bf16 products that were never rounded, as those of
`jnp.sum((a * b).astype(jnp.float32))`. `xla_allow_excess_precision=false` helps on 0.7.2 alone.

Products in f32 go through a choice. That compiler multiplies and subtracts in one step where it
can: of two branches that compute the same score and its maximum, one may be so, and `exp(s - m)`
differs. Only a lower instruction set prevents it, for the whole process.

Divisions of integers never divide by 0. The compiler of JAX 0.10 dies of a divisor that it finds to
be 0, and Python with it.

Each `while` counts its turns. That is no bug of XLA's: a learner's loop may never end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from puzzles._launch.jaxprs import HOLDERS, rewritten
from puzzles._rules import sentence

# Turns of one `while`: a second or so on a CPU, and more than any kernel of a puzzle takes.
TURNS = 1_000_000
_UNSIGNED = {16: jnp.uint16, 8: jnp.uint8}
# What rounds a product, which the CPU would else leave unrounded where a sum follows.
_PRODUCTS = {"mul", "square", "integer_pow"}


class Endless(Exception):
    """A `while` that has turned `TURNS` times."""

    def __init__(self) -> None:
        super().__init__(sentence("endless", turns=TURNS))


def faithful(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program, kernels included, with all that the module's docstring lists.

    It raises `Endless` where a `while` turns too often.
    """
    return rewritten(closed, _pinned)


def before_last_casts(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program without the casts to a narrow float that its results end with."""
    jaxpr = closed.jaxpr
    casts = {
        e.outvars[0]: e.invars[0]
        for e in jaxpr.eqns
        if e.primitive.name == "convert_element_type" and _narrow(e.outvars[0]) is not None
    }
    return closed.replace(jaxpr=jaxpr.replace(outvars=[casts.get(v, v) for v in jaxpr.outvars]))


def _pinned(equation: JaxprEqn) -> Sequence[JaxprEqn]:
    """One equation, and what pins its results."""
    name = equation.primitive.name
    if name in HOLDERS:
        return [_counted(equation) if name == "while" else equation]
    if name in ("div", "rem") and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.integer):
        by = equation.invars[1]
        return [equation] if isinstance(by, Literal) and by.val else _divided(equation)
    after: list[JaxprEqn] = []
    outvars = list(equation.outvars)
    for n, var in enumerate(outvars):
        if (rounds := _rounding(name, var)) is not None:
            rounded, eqns = _pin(var, rounds)
            outvars[n] = rounded
            after += eqns
    return [equation.replace(outvars=outvars), *after] if after else [equation]


def _narrow(var: Var) -> Any:
    """The unsigned integer as wide as a float below 32 bits, else None."""
    dtype = getattr(var.aval, "dtype", None)
    if type(var.aval) is not jax.core.ShapedArray or not jnp.issubdtype(dtype, jnp.floating):
        return None
    return _UNSIGNED.get(jnp.finfo(dtype).bits)


def _divided(equation: JaxprEqn) -> Sequence[JaxprEqn]:
    """A division of integers that gives what XLA says it does by 0, and never divides by that."""
    bind = equation.primitive.bind

    def divide(x: jax.Array, y: jax.Array) -> jax.Array:
        zero = y == 0
        got = bind(x, jax.lax.select(zero, jax.lax.full_like(y, 1), y))
        by_zero = x if equation.primitive.name == "rem" else ~jax.lax.full_like(x, 0)
        return jax.lax.select(zero, by_zero, got)

    forms = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars)
    (x, y), eqns, _ = equations_of(divide, *forms)
    for own, given in zip((x, y), equation.invars, strict=True):
        eqns = _read(eqns, own, given)
    return [*eqns[:-1], eqns[-1].replace(outvars=equation.outvars)]


def _rounding(name: str, var: Var) -> Callable[[jax.Array], jax.Array] | None:
    """What changes nothing in a result that is rounded, and what is not it rounds; else None."""
    unsigned = _narrow(var)
    if unsigned is not None:
        return lambda x: jax.lax.bitcast_convert_type(
            jax.lax.bitcast_convert_type(x, unsigned), x.dtype
        )
    if name in _PRODUCTS and getattr(var.aval, "dtype", None) == jnp.float32:
        return lambda x: jax.lax.select(x == x, x, jax.lax.full_like(x, np.nan))
    return None


def _pin(var: Var, rounds: Callable[[jax.Array], jax.Array]) -> tuple[Var, list[JaxprEqn]]:
    """A variable to write instead of `var`, and equations that give `var` its value."""
    form = jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
    new, (*before, last), _ = equations_of(rounds, form)
    return new[0], [*before, last.replace(outvars=[var])]


def equations_of(fn: Callable, *forms: Any) -> tuple[list[Var], list[JaxprEqn], list[Any]]:
    """Fresh input variables, equations and outputs of `fn`."""
    jaxpr = jax.make_jaxpr(fn)(*forms).jaxpr
    return jaxpr.invars, jaxpr.eqns, jaxpr.outvars


def _counted(equation: JaxprEqn) -> JaxprEqn:
    """A `while` with one value more to carry: how often it has turned."""
    p = equation.params
    count, flag = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.bool_)
    test, body = p["cond_jaxpr"], p["body_jaxpr"]
    (more, turns), eqns, goes = equations_of(_goes_on, flag, count)
    cond = _appended(test.jaxpr, [turns], _read(eqns, more, test.jaxpr.outvars[0]), goes)
    (turns,), eqns, after = equations_of(lambda n: n + 1, count)
    body_jaxpr = _appended(body.jaxpr, [turns], eqns, [*body.jaxpr.outvars, *after])
    (spare,), _, (zero,) = equations_of(lambda n: np.int32(0), count)
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
