"""A normal form of code: the same for `2 * x` and `x * 2`, another for other names."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

_EITHER_WAY = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
_MIRRORED = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.FunctionDef, ast.ClassDef, ast.Try, ast.Match)


def normal(node: ast.AST) -> str:
    """Operands that may change places are sorted, comparisons point one way, names are kept."""
    return ast.dump(_Normal().visit(ast.parse(ast.unparse(node))))  # a copy, for it is changed


class _Normal(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, _EITHER_WAY):
            return node
        ordered = sorted(_operands(node, type(node.op)), key=ast.dump)
        return ast.Tuple([ast.Constant(type(node.op).__name__), *ordered])

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        before = ast.parse(ast.unparse(node.target), mode="eval").body
        return self.visit(ast.Assign([node.target], ast.BinOp(before, node.op, node.value)))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return self.visit(ast.Assign([node.target], node.value)) if node.value else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        if len(sides) == 2 and type(node.ops[0]) in _MIRRORED:
            return ast.Compare(sides[1], [_MIRRORED[type(node.ops[0])]()], [sides[0]])
        if len(sides) == 2 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            left, right = sorted(sides, key=ast.dump)
            return ast.Compare(left, node.ops, [right])
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        whole = type(node.value) is float and node.value.is_integer()
        return ast.Constant(int(node.value)) if whole else node  # type: ignore[arg-type]


def _operands(node: ast.expr, op: type) -> Iterator[ast.expr]:
    """The operands of a chain of one operator; what is inside has its normal form already."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, op):
        yield from _operands(node.left, op)
        yield from _operands(node.right, op)
    elif isinstance(node, ast.Tuple) and _is_chain(node, op):
        yield from node.elts[1:]
    else:
        yield node


def _is_chain(node: ast.Tuple, op: type) -> bool:
    first = node.elts[0] if node.elts else None
    return isinstance(first, ast.Constant) and first.value == op.__name__


def leaves(text: str) -> Iterator[ast.stmt]:
    """The statements of a text that hold no others, then the keyword arguments as statements."""
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.stmt) and not isinstance(node, _BLOCKS):
            yield node
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg:  # prose writes it like an assignment
            word = ast.Assign([ast.Name(node.arg, ast.Store())], node.value)
            yield ast.copy_location(word, node)


def statements(piece: str) -> Iterator[ast.stmt]:
    """The same of a piece of prose that may be code, a line by itself where the whole is none."""
    piece = textwrap.dedent(piece).strip().rstrip(",")
    try:
        yield from leaves(piece)
    except (SyntaxError, ValueError):
        lines = piece.splitlines()
        for line in lines if len(lines) > 1 else ():
            yield from statements(line)
