"""One trace of a learner's function, shared by every stage that looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun, retraced
from puzzles._mesh import as_tpu

PALLAS_CALL = "pallas_call"


@dataclass(frozen=True)
class Traced:
    """A function as a jaxpr: `leaves` are the traced arguments, `out` the shapes of its result.

    The learner's Python runs once, here. Values, simulation, lowering and the receipt are all read
    from this jaxpr, so they speak of the same launch.
    """

    jaxpr: ClosedJaxpr
    leaves: tuple[Any, ...]
    out: Any


def is_traced(x: object) -> bool:
    """True for what becomes an abstract value; ints, NumPy arrays and None stay static."""
    return isinstance(x, jax.Array | jax.ShapeDtypeStruct)


def trace_call(fn: Callable, *args: object) -> Traced:
    """Trace `fn(*args)`. Whatever `fn` raises passes through.

    Arrays and `ShapeDtypeStruct`s among the leaves of `args` are traced, all other leaves are
    static. `fn` is wrapped afresh every time: JAX caches a trace by function, and a kernel that
    was defined again in another cell must not be answered from that cache.
    """
    leaves, tree = jax.tree.flatten(args)
    where = [n for n, leaf in enumerate(leaves) if is_traced(leaf)]

    def call(*traced: object) -> object:
        full = list(leaves)
        for n, value in zip(where, traced, strict=True):
            full[n] = value
        result = fn(*jax.tree.unflatten(tree, full))
        if callable(result):
            raise TypeError("the result is a function, not an array")
        return result

    traced = tuple(leaves[n] for n in where)
    # A trace remembers its mesh, and lowering for a TPU will ask for it.
    with as_tpu(), retraced():
        jaxpr, out = jax.make_jaxpr(call, return_shape=True)(*traced)
    return Traced(jaxpr, traced, out)


def kernel_size(closed: ClosedJaxpr) -> int:
    """How many equations the largest kernel has, nested ones included."""
    return max((_count(call.params["jaxpr"]) for call in kernel_calls(closed.jaxpr)), default=0)


def _count(jaxpr: Jaxpr) -> int:
    return sum(1 + sum(map(_count, subjaxprs(equation))) for equation in jaxpr.eqns)


def subjaxprs(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The jaxprs an equation calls (`jit`, `cond`, `custom_vjp_call`, ...)."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, Jaxpr):
                yield one


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every equation outside kernels, depth first: a `pallas_call` is yielded, not entered."""
    for equation in jaxpr.eqns:
        nested = () if equation.primitive.name == PALLAS_CALL else tuple(subjaxprs(equation))
        if not nested:
            yield equation
        for inner in nested:
            yield from equations(inner)


def kernel_calls(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every `pallas_call` of a program, depth first."""
    return (one for one in equations(jaxpr) if one.primitive.name == PALLAS_CALL)


def with_interpret(closed: ClosedJaxpr, interpret: object) -> ClosedJaxpr:
    """The same program with `interpret` set on every `pallas_call`, nested ones included.

    This is how a launch written with `interpret=INTERPRET` is simulated or compiled for a TPU
    without touching the learner's function.
    """

    def swap(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return value.replace(jaxpr=rewrite(value.jaxpr))
        if isinstance(value, Jaxpr):
            return rewrite(value)
        if isinstance(value, tuple | list):
            return type(value)(swap(v) for v in value) if type(value) in (tuple, list) else value
        return value

    def rewrite(jaxpr: Jaxpr) -> Jaxpr:
        return jaxpr.replace(eqns=[one(e) for e in jaxpr.eqns])

    def one(equation: JaxprEqn) -> JaxprEqn:
        if equation.primitive.name == PALLAS_CALL:
            return equation.replace(params={**equation.params, "interpret": interpret})
        if not any(True for _ in subjaxprs(equation)):
            return equation
        return equation.replace(params={k: swap(v) for k, v in equation.params.items()})

    return swap(closed)


def as_function(traced: Traced, interpret: object) -> Callable[..., list]:
    """`traced` as a function of its leaves that returns the flat list of results."""
    return jaxpr_as_fun(with_interpret(traced.jaxpr, interpret))
