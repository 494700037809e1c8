"""Fingerprints: a key that is equal for programs that compute the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from puzzles._equations import is_key
from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Tracer, Var

# The origin of a program does not change its results.
_ORIGINS = {"debug_info", "name_and_src_info", "source_info"}
# Neither do its derivative rules, which are new functions in each trace.
_RULES = {"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees"}
_LEFT_OUT = _ORIGINS | _RULES
_PLAIN = {int, float, bool, str, type(None)}


def fingerprint(program: Any) -> Hashable:
    """A key that is equal for programs that do the same on equal arguments.

    A parameter of an unknown type is compared by identity, so two equal programs may differ.
    """
    return _Reader().read(program)


class _Reader:
    """One pass over a program; variables are numbered in the order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[Var, int] = {}

    def read(self, value: Any) -> Hashable:
        if type(value) in _PLAIN:
            return type(value), value
        # From JAX 0.11 on, a nested program's constants are tracers of the Refs around it.
        if isinstance(value, Tracer):
            value = value.val
        if isinstance(value, Var):
            return self.numbers.setdefault(value, len(self.numbers)), value.aval
        if isinstance(value, Literal):
            return "literal", self.array(np.asarray(value.val)), value.aval
        if isinstance(value, Jaxpr) and not isinstance(value, ClosedJaxpr):
            return self.jaxpr(value)
        if isinstance(value, ClosedJaxpr):
            return self.jaxpr(value.jaxpr), tuple(map(self.read, value.consts))
        if hasattr(value, "__array__") and hasattr(value, "dtype"):  # of JAX 0.7
            return self.array(value)
        if isinstance(value, tuple | list):
            return type(value), tuple(map(self.read, value))
        if isinstance(value, Mapping):
            return type(value), tuple((key, self.read(value[key])) for key in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = (f.name for f in dataclasses.fields(value) if f.name not in _ORIGINS)
            return type(value), tuple(self.read(getattr(value, name)) for name in fields)
        try:
            hash(value)
        except TypeError:
            return _Itself(value)
        return type(value), value

    def array(self, value: Any) -> Hashable:
        if is_key(value):  # a random key has no bytes in NumPy
            return _Itself(value)
        data = np.asarray(value)
        return data.shape, data.dtype, data.tobytes()

    def jaxpr(self, jaxpr: Jaxpr) -> Hashable:
        heads = tuple(map(self.read, (*jaxpr.constvars, *jaxpr.invars)))
        body = tuple(map(self.equation, jaxpr.eqns))
        return heads, body, tuple(map(self.read, jaxpr.outvars))

    def equation(self, equation: JaxprEqn) -> Hashable:
        params = equation.params
        return (
            equation.primitive,
            tuple(map(self.read, equation.invars)),
            tuple((name, self.read(params[name])) for name in params if name not in _LEFT_OUT),
            tuple(map(self.read, equation.outvars)),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Itself:
    """An object compared by identity, kept alive so that its id is not reused."""

    value: Any
