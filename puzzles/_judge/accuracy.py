"""Is anything rounded on the way? By its numbers, and by the places in its program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from puzzles._jax import Jaxpr, JaxprEqn, Literal, Var
from puzzles._judge.case import Case
from puzzles._judge.numbers import narrow, on_tpu
from puzzles._judge.origin import line_of, observed
from puzzles._launch import (
    ARITHMETIC,
    LAYOUT,
    PALLAS_CALL,
    REDUCTIONS,
    TRANSCENDENTAL,
    Traced,
    entered,
    equations,
)
from puzzles._puzzle import Puzzle
from puzzles._rules import Finding, Where, sentence

# The part of the elements that may be further from the f32 result than one rounding takes them: a
# right answer has none, two roundings 16 % and more.
SHARE = 0.02
# What the order of an f32 sum may change, relative and in units of the root mean square.
_NOISE = 2e-5
# Beyond so many steps of its dtype a result is rather another formula's than rounded once more.
_STEPS = 2
# Two kernels that round at the same places may still sum in another order.
_ALIKE = 0.1
_EXACT = {"max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "clamp"}
_EXACT |= {"reduce_max", "reduce_min", "argmax", "argmin", "cummax", "cummin"}
_ROUNDS = (ARITHMETIC | TRANSCENDENTAL | REDUCTIONS) - _EXACT  # narrow dots a TPU refuses
_MOVES = LAYOUT | {"select_n"}


def too_far(exact: np.ndarray, got: np.ndarray) -> tuple[float, float]:
    """The part of `got` that is not `exact`, in f32, rounded once to the dtype of `got`.

    And how far from it the typical one of them is, in steps of that dtype; 0 if there is none.
    """
    w, g = exact.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(w) & np.isfinite(g)
    scale = float(np.sqrt(np.mean(w[finite] ** 2))) if finite.any() else 0.0
    spacing = float(jax.numpy.finfo(got.dtype).eps) * 2.0 ** (np.frexp(w)[1] - 1)
    allowed = spacing / 2 + _NOISE * (np.abs(w) + scale)
    wrong = finite & (np.abs(g - w) > allowed)
    steps = np.abs(g - w)[wrong] / spacing[wrong]
    return float(np.mean(wrong)), float(np.median(steps)) if len(steps) else 0.0


def rounded_alike(puzzle: Puzzle, one: np.ndarray, other: np.ndarray) -> bool:
    """Whether so few elements differ that both were rounded at the same places; True of f32."""
    if puzzle.roundings is None or not narrow(one.dtype):
        return True
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return float(np.mean(~same)) <= _ALIKE


def roundings(case: Case, flat: Sequence[np.ndarray]) -> dict[str, Any] | None:
    """The facts of a result that is rounded more often than once, else None."""
    if case.puzzle.roundings is None or on_tpu():
        return None
    for exact, got in zip(case.exact, flat, strict=True):
        part, steps = too_far(exact, got) if narrow(got.dtype) else (0.0, 0.0)
        if part > SHARE:
            kind = got.dtype.name
            first = "a rounding first" if steps < _STEPS else "a formula first"
            look = sentence(first, kind=kind)
            return {"part": part, "kind": kind, "share": SHARE, "steps": steps, "look": look}
    return None


def narrowings(traced: Traced) -> list[Finding]:
    """Where a program or a kernel of it rounds to a narrow float and goes on computing with that.

    A product with one number, a scale, is no such place.
    """
    return list(_walk(traced.jaxpr.jaxpr, {}, set(), False))


def foreign(mine: Iterable[Finding], par: Iterable[Finding]) -> list[Finding]:
    """Those of an answer that are of no kind that the reference has."""
    usual = {(one.facts["kernel"], one.form) for one in par}
    return [one for one in mine if (one.facts["kernel"], one.form) not in usual]


def _place(equation: JaxprEqn, form: str, dtype: Any, kernel: bool) -> Finding:
    line = line_of(equation)
    who = f"`{line}`" if line else "the kernel" if kernel else "the function"
    facts = {"who": who, "dtype": dtype.name, "kernel": kernel}
    return Finding("rounds-on-the-way", Where(), facts, form)


def _walk(jaxpr: Jaxpr, refs: dict[Var, Var], stored: set[Var], kernel: bool) -> Iterator[Finding]:
    """refs: the outermost variable of each Ref that is known. stored: Refs that get rounded values.

    A Ref is read before it is stored to, but a step later: so each kernel is walked twice.
    """
    how: dict[Var, str] = {}  # of each rounded variable: what to say if it goes on in float32
    ones: set[Var] = set()  # made of bools
    wide: dict[Var, Finding] = {}  # in float32 again, and rounded again if nothing comes between
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
                wide[out] = _place(equation, known, before, kernel)
        elif name == "mul" and any(v in ones for v in equation.invars if isinstance(v, Var)):
            pass  # a mask: numbers or zeros
        elif name in _ROUNDS and _narrow(out):
            if not _scales(equation):
                how[out] = "there and back"
                yield _place(equation, "computed", out.aval.dtype, kernel)
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
