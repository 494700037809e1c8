"""Small changes of a solution's code, one at a time, such as a slip of the pen makes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from puzzles import _regions
from puzzles._judge.explain.edits import OPERATORS, swapped, variants, with_fields


@dataclass(frozen=True)
class Mutant:
    """The module's code with a change; `change` describes it without its line."""

    text: str
    line: int
    change: str


COMPARISONS = {
    ast.Eq: (ast.NotEq, ast.GtE, ast.LtE),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult)
NAMES = {
    "max": "min",
    "min": "max",
    "maximum": "minimum",
    "minimum": "maximum",
    "zeros_like": "ones_like",
    "zeros": "ones",
    "float32": "bfloat16",
    "bfloat16": "float32",
    "sum": "max",
    "any": "all",
    "all": "any",
    "logical_and": "logical_or",
    "logical_or": "logical_and",
    "cdiv": "floor_divide",
    "parallel": "arbitrary",
}


def mutants(
    text: str, changes: Callable[[ast.AST], Iterator[ast.AST]] | None = None
) -> Iterator[Mutant]:
    """Yield every change of the learner's lines in a module's text, without repetition.

    changes: yields the replacements of a node; by default all of `slips`, and statements swapped.
    """
    written = {n for one in _regions.regions(text) for n in range(one.first, one.last + 1)}

    def inside(node: ast.AST) -> bool:
        lines = range(getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) + 1)
        return written.issuperset(lines)

    def options(node: ast.AST, following: Sequence[ast.stmt]) -> Iterator[tuple[str, Any]]:
        if not inside(node):
            return
        for new in (changes or slips)(node):
            yield f"{_shown(node)} -> {_shown(new)}", new
        after = following if changes is None else ()
        for other in filter(inside, after):  # such as a `pl.when` in the wrong order
            one, two = (ast.unparse(part).splitlines()[0] for part in (node, other))
            yield f"{one}; {two} -> {two}; {one}", [other, node]

    for node, change, changed in variants(ast.parse(text), options):
        yield Mutant(changed, node.lineno, change)


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def slips(node: ast.AST) -> Iterator[ast.AST]:
    """Yield replacements for `node`."""
    match node:
        case ast.Compare(ops=[op]):
            yield from (with_fields(node, ops=[other()]) for other in COMPARISONS.get(type(op), ()))
        case ast.BinOp(left=left, op=op, right=right):
            if type(op) in OPERATORS:
                yield with_fields(node, op=OPERATORS[type(op)]())
            yield left
            yield right
            if isinstance(op, ORDERED):
                yield with_fields(node, left=right, right=left)
        case ast.Constant(value=value):
            yield from map(ast.Constant, _constants(value))
        case ast.Attribute(attr=name) if name in NAMES:
            yield with_fields(node, attr=NAMES[name])
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            yield from (with_fields(node, elts=some) for some in _elements(parts, node.ctx))
        case ast.Call():
            yield from _calls(node)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.AugAssign(target=target, value=value):
            yield ast.parse(f"{ast.unparse(target)} = {ast.unparse(value)}").body[0]
            yield ast.Pass()
        case ast.Assign() | ast.Expr():
            yield ast.Pass()
        case ast.IfExp(body=body, orelse=other):
            yield body
            yield other


def _constants(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        yield value - 1
    elif isinstance(value, float):
        yield -value
        yield 0.0
        yield value * 2
    elif value in NAMES:
        yield NAMES[str(value)]


def _elements(parts: list[ast.expr], ctx: ast.expr_context) -> Iterator[list[ast.expr]]:
    """Neighbours swapped: axes of a grid, components of an index map, dims of a block."""
    yield from swapped(parts)
    for n, part in enumerate(parts):
        if isinstance(part, ast.Name) and isinstance(ctx, ast.Load):
            for new in (f"{part.id} + 1", f"{part.id} - 1", "0"):
                yield [*parts[:n], _expression(new), *parts[n + 1 :]]


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    """Two arguments swapped, an argument for the call, a keyword dropped, another `pl.when`."""
    yield from (with_fields(node, args=some) for some in swapped(node.args))
    for argument in node.args[:3]:
        if not isinstance(argument, ast.Constant | ast.Lambda | ast.Starred):
            yield argument
    for n in range(len(node.keywords)):
        yield with_fields(node, keywords=node.keywords[:n] + node.keywords[n + 1 :])
    if ast.unparse(node.func) == "pl.when":
        for condition in ("True", "False", f"jnp.logical_not({ast.unparse(node.args[0])})"):
            yield with_fields(node, args=[_expression(condition)])


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
