"""What a kernel's own values take in VMEM: those that a reduction keeps waiting."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from puzzles._jax import Jaxpr, JaxprEqn, Literal
from puzzles._launch.jaxprs import callee, subjaxprs
from puzzles._launch.operand import vmem_size
from puzzles._launch.work import REDUCTIONS

_BARRIERS = REDUCTIONS | {"dot_general"}
# Read or made again where they are needed, not kept.
_CHEAP = {"get", "masked_load", "broadcast_in_dim", "iota"}
_REGISTERS = 64 * 8 * 128 * 4  # bytes that need no VMEM: 64 registers of (8, 128) words
_MOST = 2000  # equations; more come from unrolled loops, whose values are small

# An equation, and what it takes and makes: variables, each with the number of its inlined call.
Flat = list[tuple[JaxprEqn, list[Any], list[Any]]]


def held_bytes(kernel: Jaxpr) -> int:
    """The least bytes of floating values that a kernel's body holds in VMEM, beside its registers.

    A chain of elementwise operations runs register by register and holds nothing. A value is held
    that is used again after a reduction, or a dot, has gone through all of it: softmax's scores.
    """
    return max(0, _held(kernel) - _REGISTERS)


def _held(kernel: Jaxpr) -> int:
    flat: Flat = []
    _inline(kernel, {}, flat, [0])
    if len(flat) > _MOST:
        return 0
    made: dict[Any, int] = {}  # by which equation
    users: dict[Any, list[int]] = {}
    before = [0] * len(flat)  # a bit for each equation that one depends on
    barriers = 0
    for n, (equation, ins, outs) in enumerate(flat):
        for value in ins:
            users.setdefault(value, []).append(n)
            if value in made:
                before[n] |= before[made[value]] | 1 << made[value]
        made |= dict.fromkeys(outs, n)
        barriers |= (equation.primitive.name in _BARRIERS) << n
    held = [0] * len(flat)
    for value, n in made.items():
        aval = value[1].aval
        if flat[n][0].primitive.name in _CHEAP or not _floating(aval):
            continue
        for at in range(n, _last(n, users.get(value, []), before, barriers)):
            held[at] += vmem_size(aval.shape, aval.dtype)
    inner = [max(map(_held, subjaxprs(equation)), default=0) for equation, _, _ in flat]
    return max((a + b for a, b in zip(held, inner, strict=True)), default=0)


def _last(made: int, users: list[int], before: list[int], barriers: int) -> int:
    """The last use of a value after a barrier that itself needs the value; 0 if there is none."""
    last = 0
    for user in users:
        passed = before[user] & barriers
        while passed:
            barrier = passed.bit_length() - 1
            if before[barrier] >> made & 1:
                last = max(last, user)
                break
            passed ^= 1 << barrier
    return last


def _inline(jaxpr: Jaxpr, outer: dict[Any, Any], flat: Flat, calls: list[int]) -> list[Any]:
    """The equations of `jaxpr` with its calls in place, appended to `flat`; its results."""
    call = calls[0]
    calls[0] += 1

    def name(var: Any) -> Any:
        return outer.get(var, (call, var))

    for equation in jaxpr.eqns:
        ins = [None if isinstance(v, Literal) else name(v) for v in equation.invars]
        if (inner := callee(equation)) is None:
            outs = [(call, v) for v in equation.outvars]
            flat.append((equation, [v for v in ins if v is not None], outs))
            continue
        given = zip(inner.jaxpr.invars, ins, strict=True)
        known = {var: value for var, value in given if value is not None}
        results = _inline(inner.jaxpr, known, flat, calls)
        outer |= dict(zip(equation.outvars, results, strict=True))
    return [(call, None) if isinstance(v, Literal) else name(v) for v in jaxpr.outvars]


def _floating(aval: Any) -> bool:
    return jnp.issubdtype(getattr(aval, "dtype", int), jnp.inexact) and len(aval.shape) > 1
