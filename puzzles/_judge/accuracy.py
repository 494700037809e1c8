"""The places in a program that round intermediate values to a narrow float."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from puzzles._jax import Jaxpr, JaxprEqn, Literal, Var
from puzzles._judge.origin import observed, source_text, where_made
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
from puzzles._rules import Breach

_EXACT = {"max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "clamp"}
_EXACT |= {"reduce_max", "reduce_min", "argmax", "argmin", "cummax", "cummin"}
_ROUNDS = (ARITHMETIC | TRANSCENDENTAL | REDUCTIONS) - _EXACT
_MOVES = LAYOUT | {"select_n"}
_COMPARES = {"eq", "ne", "lt", "le", "gt", "ge"}
_Rounded = dict[Var, str | Breach]  # see `how` of `_Scope`


def narrowings(traced: Traced) -> list[Breach]:
    """The places in a program and its kernels that round to a narrow float and compute with it.

    A product with a scalar does not count.
    """
    return list(_places(traced.jaxpr.jaxpr, {}, {}, False))


def foreign(own: Iterable[Breach], par: Iterable[Breach]) -> list[Breach]:
    """The roundings of `own` of kinds that `par`, the reference, lacks; products excuse dots."""
    usual = {(finding.facts["kernel"], finding.form) for finding in par}
    usual |= {(kernel, "narrow dot") for kernel, form in usual if form == "computed"}
    return [f for f in own if (f.facts["kernel"], f.form) not in usual]


def _place(equation: JaxprEqn, form: str, dtype: Any, kernel: bool, within: str) -> Breach:
    line = source_text(equation) or within
    operation = f"`{equation.primitive.name}`{where_made(equation).lstrip(',')}"
    who = f"`{line}`" if line else "the kernel" if kernel else operation
    facts = {"who": who, "dtype": dtype.name, "kernel": kernel}
    return Breach("rounds-on-the-way", facts, form=form)


@dataclass
class _Scope:
    """Facts about the variables of a program.

    refs: the outermost variable of each Ref.
    how: for rounded variables, the finding or its form if a computation in float32 follows.
    wide: for rounded variables that are float32 again, the finding, unless they are rounded again.
    masks: variables made of bools.
    written: variables made of the source's own numbers; zeros have no digits to lose.
    line: the line of the call around the program.
    """

    refs: dict[Var, Var]
    line: str = ""
    how: _Rounded = field(default_factory=dict)
    wide: dict[Var, Breach] = field(default_factory=dict)
    masks: set[Var] = field(default_factory=set)
    written: set[Var] = field(default_factory=set)

    def returned(self, jaxpr: Jaxpr) -> list[Breach]:
        """The findings about the results of the program."""
        return [self.wide[v] for v in jaxpr.outvars if isinstance(v, Var) and v in self.wide]


def _places(jaxpr: Jaxpr, refs: dict[Var, Var], stored: _Rounded, kernel: bool) -> Iterator[Breach]:
    """Yield the findings of a program. stored: `how`, of Refs with rounded values; it grows."""
    scopes = [_Scope(refs)]

    def enters(equation: JaxprEqn, _: Jaxpr) -> bool:
        return around_kernels(equation) and not _made_of_numbers(equation, scopes[-1].written)

    for equation, begins, ends in through(jaxpr, enters):
        scope = scopes[-1]
        if begins is not None:
            pairs = outside(equation, begins).items()
            inner = {own: scope.refs[v] for own, v in pairs if v in scope.refs}
            scopes.append(_Scope(inner, source_text(equation) or scope.line))
        elif ends is not None:
            yield from scopes.pop().returned(ends)
        elif _made_of_numbers(equation, scope.written):
            scope.written.update(equation.outvars)
        else:
            yield from _goes_on(equation, scope)
            if equation.primitive.name == PALLAS_CALL:
                yield from _in_kernel(equation, scope)
            elif equation.outvars and not observed(equation):
                yield from _rounded(equation, scope, stored, kernel)
    yield from scopes[0].returned(jaxpr)


def _in_kernel(call: JaxprEqn, scope: _Scope) -> list[Breach]:
    """The findings of a kernel.

    It is read twice, because a step may read a Ref that an earlier step stored to further below.
    """
    kernel = call.params["jaxpr"]
    operands = call.invars[call.params["grid_mapping"].num_dynamic_grid_bounds :]
    pairs = zip(kernel.invars, operands, strict=False)
    stored = {ref: scope.how[v] for ref, v in pairs if isinstance(v, Var) and v in scope.how}
    own = {v: v for v in kernel.invars}
    return [list(_places(kernel, own, stored, True)) for _ in range(2)][1]


def _goes_on(equation: JaxprEqn, scope: _Scope) -> Iterator[Breach]:
    """Yield the finding of an operand that is float32 again and is not rounded here."""
    again = [scope.wide[v] for v in equation.invars if isinstance(v, Var) and v in scope.wide]
    # An equation, or the whole of a call such as `jnp.where`, that only moves numbers.
    if again and all(inner.primitive.name in _MOVES for inner in inner_equations(equation)):
        scope.wide |= dict.fromkeys(equation.outvars, again[0])
    elif again and not _rounds(equation):
        yield again[0]


def _rounded(equation: JaxprEqn, scope: _Scope, stored: _Rounded, kernel: bool) -> Iterator[Breach]:
    """Update the facts for an equation, and yield a finding if it computes in a narrow float."""
    name, how, out = equation.primitive.name, scope.how, equation.outvars[0]
    form = next((how[v] for v in equation.invars if isinstance(v, Var) and v in how), None)
    if name in ("swap", "addupdate") and form:
        stored[scope.refs.get(equation.invars[0], equation.invars[0])] = form
    elif name == "get" and scope.refs.get(equation.invars[0], equation.invars[0]) in stored:
        held = stored[scope.refs.get(equation.invars[0], equation.invars[0])]
        how[out] = "kept" if isinstance(held, str) else held
    elif name in _MOVES and form:
        how[out] = form
    elif name == "convert_element_type":
        before, after = equation.invars[0].aval.dtype, out.aval.dtype
        if before.kind == "b":
            scope.masks.add(out)
        elif _rounds(equation):
            how[out] = "there and back"
        elif before.kind in "iu" and before.itemsize > 2 and narrow(after):
            how[out] = "numbers"
        elif form and not narrow(after):
            place = _place(equation, str(form), before, kernel, scope.line)
            scope.wide[out] = place if isinstance(form, str) else form
    elif name == "dot_general" and narrow(out.aval.dtype) and not kernel:  # Mosaic rejects others
        how[out] = _place(equation, "narrow dot", out.aval.dtype, kernel, scope.line)
    elif name in _COMPARES and form == "numbers":
        yield _place(equation, "numbers", equation.invars[0].aval.dtype, kernel, scope.line)
    elif name == "mul" and any(v in scope.masks for v in equation.invars if isinstance(v, Var)):
        pass  # a mask: numbers or zeros
    elif name in _ROUNDS and narrow(out.aval.dtype):
        if not _scales(equation):
            how[out] = "there and back"
            yield _place(equation, "computed", out.aval.dtype, kernel, scope.line)
        elif form:
            how[out] = form


def _made_of_numbers(equation: JaxprEqn, written: set[Var]) -> bool:
    """True if all operands are numbers in the source, or computed from such numbers."""
    made = all(isinstance(v, Literal) or v in written for v in equation.invars)
    return made and bool(equation.invars) and not equation.effects


def _rounds(equation: JaxprEqn) -> bool:
    if equation.primitive.name != "convert_element_type":
        return False
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    return narrow(after) and not narrow(before) and before.kind == "f"


def _scales(equation: JaxprEqn) -> bool:
    """True for a product with a scalar, which rounds at most once."""
    return equation.primitive.name in ("mul", "div") and any(
        isinstance(v, Literal) or not v.aval.shape for v in equation.invars
    )
