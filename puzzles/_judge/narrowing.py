"""Where a program rounds to a narrow float on the way, and goes on computing with what is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from puzzles._jax import Jaxpr, JaxprEqn, Literal, Var
from puzzles._judge.outside import line_of, observed
from puzzles._judge.rounding import narrow
from puzzles._launch import (
    ARITHMETIC,
    PALLAS_CALL,
    REDUCTIONS,
    TRANSCENDENTAL,
    Traced,
    entered,
    equations,
)
from puzzles._rules import sentence

_EXACT = {"max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "clamp"}
_EXACT |= {"reduce_max", "reduce_min", "argmax", "argmin", "cummax", "cummin"}
_ROUNDS = (ARITHMETIC | TRANSCENDENTAL | REDUCTIONS) - _EXACT  # narrow dots a TPU refuses
# What hands numbers on as they are.
_MOVES = {"reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "slice", "copy"}
_MOVES |= {"concatenate", "select_n", "pad", "rev", "dynamic_slice", "stop_gradient"}


@dataclass(frozen=True)
class Narrowing:
    """One place: where (in a kernel?), how (a sentence's name), to which dtype, in which line."""

    kernel: bool
    how: str
    dtype: str
    line: str

    @property
    def words(self) -> str:
        """What it does, and what to do."""
        who = f"`{self.line}`" if self.line else "the kernel" if self.kernel else "the function"
        return f"{who} {sentence(self.how, dtype=self.dtype)}."


def narrowings(traced: Traced) -> list[Narrowing]:
    """All places in a program and its kernels; a product with one number, a scale, is none."""
    return list(_walk(traced.jaxpr.jaxpr, {}, set(), False))


def foreign(mine: Iterable[Narrowing], par: Iterable[Narrowing]) -> list[Narrowing]:
    """Those of an answer that are of no kind that the reference has."""
    usual = {(one.kernel, one.how) for one in par}
    return [one for one in mine if (one.kernel, one.how) not in usual]


def _walk(
    jaxpr: Jaxpr, refs: dict[Var, Var], stored: set[Var], kernel: bool
) -> Iterator[Narrowing]:
    """refs: the outermost variable of each Ref that is known. stored: Refs that get rounded values.

    A Ref is read before it is stored to, but a step later: so each kernel is walked twice.
    """
    how: dict[Var, str] = {}  # of each rounded variable: what to say if it goes on in float32
    ones: set[Var] = set()  # made of bools
    wide: dict[Var, Narrowing] = {}  # in float32 again, and rounded again if nothing comes between
    written: set[Var] = set()  # made of the source's own numbers: zeros have no digits to lose
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if _made_of_numbers(equation, written):
            written.update(equation.outvars)
            continue
        again = [wide[v] for v in equation.invars if isinstance(v, Var) and v in wide]
        if again and _moves(equation):
            wide |= dict.fromkeys(equation.outvars, again[0])
        elif again and not _rounds(equation):
            yield again[0]
        if name == PALLAS_CALL:
            inner = equation.params["jaxpr"]
            given = equation.invars[equation.params["grid_mapping"].num_dynamic_grid_bounds :]
            pairs = zip(inner.invars, given, strict=False)
            kept = {mine for mine, one in pairs if isinstance(one, Var) and one in how}
            own = {v: v for v in inner.invars}
            _ = list(_walk(inner, own, kept, True))
            yield from _walk(inner, own, kept, True)
            continue
        for inner, known_as in entered(equation):
            inside = {own: refs[one] for own, one in known_as.items() if one in refs}
            yield from _walk(inner, inside, stored, kernel)
        if observed(equation) or not equation.outvars:
            continue
        known = next((how[v] for v in equation.invars if isinstance(v, Var) and v in how), None)
        out = equation.outvars[0]
        if name in ("swap", "addupdate") and known:
            stored.add(refs.get(equation.invars[0], equation.invars[0]))
        elif name == "get" and refs.get(equation.invars[0], equation.invars[0]) in stored:
            how[out] = "kept"
        elif name in _MOVES and known:
            how[out] = known
        elif name == "convert_element_type":
            before, after = equation.invars[0].aval.dtype, out.aval.dtype
            if before.kind == "b":
                ones.add(out)
            elif _rounds(equation):
                how[out] = "there and back"
            elif known and not narrow(after):
                wide[out] = Narrowing(kernel, known, before.name, line_of(equation))
        elif name == "mul" and any(v in ones for v in equation.invars if isinstance(v, Var)):
            pass  # a mask: numbers or zeros
        elif name in _ROUNDS and _narrow(out):
            if not _scales(equation):
                how[out] = "there and back"
                yield Narrowing(kernel, "computed", out.aval.dtype.name, line_of(equation))
            elif known:
                how[out] = known
    yield from (wide[v] for v in jaxpr.outvars if isinstance(v, Var) and v in wide)


def _made_of_numbers(equation: JaxprEqn, written: set[Var]) -> bool:
    """Whether all that an equation takes are numbers of the source, or made of those."""
    if not equation.invars or equation.effects:
        return False
    return all(isinstance(v, Literal) or v in written for v in equation.invars)


def _moves(equation: JaxprEqn) -> bool:
    """Whether it, or all within a call like that of `jnp.where`, only hands numbers on."""
    inner = [one for jaxpr, _ in entered(equation) for one in equations(jaxpr)]
    return all(one.primitive.name in _MOVES for one in inner or [equation])


def _rounds(equation: JaxprEqn) -> bool:
    if equation.primitive.name != "convert_element_type":
        return False
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    return narrow(after) and not narrow(before) and before.kind == "f"


def _narrow(variable: Any) -> bool:
    dtype = getattr(variable.aval, "dtype", None)
    return dtype is not None and hasattr(dtype, "itemsize") and narrow(dtype)


def _scales(equation: JaxprEqn) -> bool:
    """Whether it multiplies by one number: a power of two is exact, and others are one rounding."""
    return equation.primitive.name in ("mul", "div") and any(
        isinstance(v, Literal) or not v.aval.shape for v in equation.invars
    )
