"""Is anything rounded on the way? The places in a program where it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from puzzles._jax import Jaxpr, JaxprEqn, Literal, Var
from puzzles._judge.origin import line_of, observed
from puzzles._launch import ARITHMETIC, REDUCTIONS, TRANSCENDENTAL, Traced
from puzzles._program import (
    LAYOUT,
    PALLAS_CALL,
    around_kernels,
    inner_equations,
    narrow,
    outside,
    through,
)
from puzzles._rules import Finding

_EXACT = {"max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "clamp"}
_EXACT |= {"reduce_max", "reduce_min", "argmax", "argmin", "cummax", "cummin"}
_ROUNDS = (ARITHMETIC | TRANSCENDENTAL | REDUCTIONS) - _EXACT  # narrow dots a TPU refuses
_MOVES = LAYOUT | {"select_n"}


def narrowings(traced: Traced) -> list[Finding]:
    """Where a program or a kernel of it rounds to a narrow float and goes on computing with that.

    A product with one number, a scale, is no such place.
    """
    return list(_places(traced.jaxpr.jaxpr, {}, set(), False))


def foreign(mine: Iterable[Finding], par: Iterable[Finding]) -> list[Finding]:
    """Those of an answer that are of no kind that the reference has."""
    usual = {(one.facts["kernel"], one.form) for one in par}
    return [one for one in mine if (one.facts["kernel"], one.form) not in usual]


def _place(equation: JaxprEqn, form: str, dtype: Any, kernel: bool) -> Finding:
    line = line_of(equation)
    who = f"`{line}`" if line else "the kernel" if kernel else "the function"
    facts = {"who": who, "dtype": dtype.name, "kernel": kernel}
    return Finding("rounds-on-the-way", facts, form=form)


@dataclass
class _Known:
    """What is known of the variables of a program.

    refs: the outermost variable of each Ref. how: of what was rounded, what to say if it goes on in
    float32. wide: of what is in float32 again, what is told unless it is rounded once more at once.
    ones: made of bools. written: made of the source's own numbers; zeros have no digits to lose.
    """

    refs: dict[Var, Var]
    how: dict[Var, str] = field(default_factory=dict)
    wide: dict[Var, Finding] = field(default_factory=dict)
    ones: set[Var] = field(default_factory=set)
    written: set[Var] = field(default_factory=set)

    def returned(self, jaxpr: Jaxpr) -> list[Finding]:
        """What the results of the program say."""
        return [self.wide[v] for v in jaxpr.outvars if isinstance(v, Var) and v in self.wide]


def _places(
    jaxpr: Jaxpr, refs: dict[Var, Var], stored: set[Var], kernel: bool
) -> Iterator[Finding]:
    """stored: the Refs that get rounded values; it grows."""
    scopes = [_Known(refs)]

    def enters(equation: JaxprEqn, _: Jaxpr) -> bool:
        written = scopes[-1].written
        return around_kernels(equation) and not _made_of_numbers(equation, written)

    for equation, begins, ends in through(jaxpr, enters):
        its = scopes[-1]
        if begins is not None:
            given = outside(equation, begins).items()
            scopes.append(_Known({own: its.refs[v] for own, v in given if v in its.refs}))
        elif ends is not None:
            yield from scopes.pop().returned(ends)
        elif _made_of_numbers(equation, its.written):
            its.written.update(equation.outvars)
        else:
            yield from _goes_on(equation, its)
            if equation.primitive.name == PALLAS_CALL:
                yield from _in_kernel(equation, its)
            elif equation.outvars and not observed(equation):
                yield from _rounded(equation, its, stored, kernel)
    yield from scopes[0].returned(jaxpr)


def _in_kernel(call: JaxprEqn, its: _Known) -> list[Finding]:
    """A Ref is read before it is stored to, but a step later: so the kernel is read twice."""
    kernel = call.params["jaxpr"]
    given = call.invars[call.params["grid_mapping"].num_dynamic_grid_bounds :]
    pairs = zip(kernel.invars, given, strict=False)
    stored = {mine for mine, one in pairs if isinstance(one, Var) and one in its.how}
    own = {v: v for v in kernel.invars}
    return [list(_places(kernel, own, stored, True)) for _ in range(2)][1]


def _goes_on(equation: JaxprEqn, its: _Known) -> Iterator[Finding]:
    """What is in float32 again, and is not rounded once more."""
    again = [its.wide[v] for v in equation.invars if isinstance(v, Var) and v in its.wide]
    if again and _moves(equation):
        its.wide |= dict.fromkeys(equation.outvars, again[0])
    elif again and not _rounds(equation):
        yield again[0]


def _rounded(equation: JaxprEqn, its: _Known, stored: set[Var], kernel: bool) -> Iterator[Finding]:
    """Note what an equation rounds, and hands on; and where it computes in a narrow float."""
    name, how, out = equation.primitive.name, its.how, equation.outvars[0]
    known = next((how[v] for v in equation.invars if isinstance(v, Var) and v in how), None)
    if name in ("swap", "addupdate") and known:
        stored.add(its.refs.get(equation.invars[0], equation.invars[0]))
    elif name == "get" and its.refs.get(equation.invars[0], equation.invars[0]) in stored:
        how[out] = "kept"
    elif name in _MOVES and known:
        how[out] = known
    elif name == "convert_element_type":
        before, after = equation.invars[0].aval.dtype, out.aval.dtype
        if before.kind == "b":
            its.ones.add(out)
        elif _rounds(equation):
            how[out] = "there and back"
        elif known and not narrow(after):
            its.wide[out] = _place(equation, known, before, kernel)
    elif name == "mul" and any(v in its.ones for v in equation.invars if isinstance(v, Var)):
        pass  # a mask: numbers or zeros
    elif name in _ROUNDS and narrow(out.aval.dtype):
        if not _scales(equation):
            how[out] = "there and back"
            yield _place(equation, "computed", out.aval.dtype, kernel)
        elif known:
            how[out] = known


def _made_of_numbers(equation: JaxprEqn, written: set[Var]) -> bool:
    """Whether all that an equation takes are numbers of the source, or made of those."""
    if not equation.invars or equation.effects:
        return False
    return all(isinstance(v, Literal) or v in written for v in equation.invars)


def _moves(equation: JaxprEqn) -> bool:
    """Whether it, or all within a call like that of `jnp.where`, only hands numbers on."""
    return all(one.primitive.name in _MOVES for one in inner_equations(equation))


def _rounds(equation: JaxprEqn) -> bool:
    if equation.primitive.name != "convert_element_type":
        return False
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    return narrow(after) and not narrow(before) and before.kind == "f"


def _scales(equation: JaxprEqn) -> bool:
    """Whether it multiplies by one number: a power of two is exact, and others are one rounding."""
    return equation.primitive.name in ("mul", "div") and any(
        isinstance(v, Literal) or not v.aval.shape for v in equation.invars
    )
