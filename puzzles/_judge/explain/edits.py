"""Small edits of a function's text, such as undo a slip: `<=` for `<`, axis 1 for axis 0."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, TypeGuard

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt, ast.GtE),
    ast.LtE: (ast.Lt, ast.GtE, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt, ast.LtE),
    ast.GtE: (ast.Gt, ast.LtE, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
# Each operator, and the operator that a slip writes in its place.
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_AXES = (0, 1, 2)

Edit = tuple[int, str, str, str]  # rank, kind, the line that is edited, the text after the edit


def edits(text: str, fixed: frozenset[str], right: Set[str] = frozenset()) -> list[Edit]:
    """The edits of a function's text, the likeliest first.

    fixed: lines of the puzzle, stripped, that are not edited. right: lines that are only moved. The
    kind is "replace", or "order" if a statement and the next one are exchanged.
    """
    lines, tree = text.splitlines(), ast.parse(text)
    names = _bound_together(tree)

    def line_of(node: ast.AST) -> str:
        first = next(iter(getattr(node, "decorator_list", ())), node)  # such as `@pl.when(…)`
        return lines[getattr(first, "lineno", 1) - 1].strip()

    def options(node: Any, following: Sequence[ast.stmt]) -> Iterator[tuple[Any, Any]]:
        if not hasattr(node, "lineno") or node.lineno == 1 or line_of(node) in fixed:
            return
        if line_of(node) not in right:
            yield from (((rank, "replace"), new) for rank, new in _changes(node, names))
        for member in following:
            if line_of(member) not in fixed:
                yield (3, "order"), [member, node]

    found = [(*how, line_of(node), changed) for node, how, changed in variants(tree, options)]
    return sorted(found, key=lambda edit: edit[0])


def variants(
    tree: ast.Module, options: Callable[[Any, Sequence[ast.stmt]], Iterator[tuple[Any, Any]]]
) -> Iterator[tuple[Any, Any, str]]:
    """Yield (node, label, text) for each replacement of a node, without repeated texts.

    options: `(node, following)` to pairs of a label and a replacement. `following` holds the next
    statement, if there is one; a list of statements replaces both.
    """
    texts = {ast.unparse(tree)}
    for holder, key, node in list(_places(tree)):
        following = holder[key + 1 : key + 2] if isinstance(node, ast.stmt) else []
        for label, new in options(node, following):
            place = slice(key, key + 2) if isinstance(new, list) else key
            was, holder[place] = holder[place], new
            changed = ast.unparse(tree)
            holder[place] = was
            if changed not in texts:
                texts.add(changed)
                yield node, label, changed


def _places(tree: ast.AST) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (parent, name or index in the parent, node) for each node."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if isinstance(value, list):
                yield from ((value, n, part) for n, part in enumerate(value))
            elif isinstance(value, ast.AST):
                yield vars(parent), name, value


def _bound_together(tree: ast.Module) -> dict[str, tuple[list[str], list[str]]]:
    """The neighbours of each name in a tuple or a list of parameters, and all other names."""
    groups: list[list[str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store):
            groups.append([part.id for part in node.elts if isinstance(part, ast.Name)])
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            groups.append([node.target.id])
        elif isinstance(node, ast.Lambda | ast.FunctionDef) and node is not tree.body[0]:
            groups.append([argument.arg for argument in node.args.args])
    bound = list(dict.fromkeys(name for group in groups for name in group))
    neighbours = {}
    for name in bound:
        near = {member for group in groups if name in group for member in group}
        neighbours[name] = (sorted(near - {name}), [n for n in bound if n not in near])
    return neighbours


def _changes(
    node: ast.AST, names: dict[str, tuple[list[str], list[str]]]
) -> Iterator[tuple[int, ast.AST]]:
    """Yield (rank, replacement) for a node."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield from ((0, with_fields(node, ops=[o()])) for o in _COMPARISONS.get(type(op), ()))
            yield from ((1, with_fields(node, comparators=[new])) for new in _beside(right))
            if isinstance(left, ast.Name):
                yield from ((2, with_fields(node, left=new)) for new in _beside(left))
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            yield 0, ast.Assign([with_fields(target, ctx=ast.Store())], value, lineno=node.lineno)
        case ast.Assign(targets=[ast.Subscript() as target], value=value):
            yield 0, ast.AugAssign(target, ast.Add(), value)
        case ast.BinOp(left=left, op=op, right=right):
            if type(op) in OPERATORS:
                yield 1, with_fields(node, op=OPERATORS[type(op)]())
            if isinstance(op, ast.Sub | ast.Div | ast.FloorDiv | ast.MatMult):
                yield 1, with_fields(node, left=right, right=left)
            yield from ((2, part) for part in (left, right))
            yield from ((2, new) for new in _regrouped(node))
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() as value):
            neighbourhood = (value - 1, value + 1) if value in _AXES else ()
            yield from ((1, ast.Constant(new)) for new in neighbourhood if new in _AXES)
        case ast.Name(id=name, ctx=ast.Load()):
            for rank, candidates in enumerate(names.get(name, ()), start=1):
                yield from ((rank, ast.Name(new, ast.Load())) for new in candidates)
        case ast.Call(func=func, args=args):
            yield from ((2, with_fields(node, args=variant)) for variant in swapped(args))
            if getattr(func, "attr", "") == "num_programs":
                yield 1, ast.BinOp(node, ast.Sub(), ast.Constant(1))
        case ast.Tuple(elts=parts, ctx=ast.Load()):
            yield from ((1, with_fields(node, elts=variant)) for variant in swapped(parts))
            yield from ((1, with_fields(node, elts=variant)) for variant in _renumbered(parts))


def _beside(node: ast.expr) -> list[ast.expr]:
    """A number less 1, and a number plus 1."""
    return [ast.BinOp(node, op, ast.Constant(1)) for op in (ast.Sub(), ast.Add())]


def _regrouped(node: ast.BinOp) -> Iterator[ast.expr]:
    """Yield `a * (b + c)` for `a * b + c`, and so for longer sums and products."""
    if isinstance(node.op, ast.Add | ast.Sub):
        match node.left:
            case ast.BinOp(left=a, op=ast.Mult() as times, right=b):
                yield ast.BinOp(a, times, ast.BinOp(b, node.op, node.right))
                if isinstance(a, ast.BinOp) and isinstance(a.op, ast.Mult):  # a * b * c + d
                    inner = ast.BinOp(ast.BinOp(a.right, times, b), node.op, node.right)
                    yield ast.BinOp(a.left, a.op, inner)
            case ast.BinOp(op=ast.Add() | ast.Sub()) as left:  # a * b + c + d
                for new in _regrouped(left):
                    assert isinstance(new, ast.BinOp)
                    yield ast.BinOp(new.left, new.op, ast.BinOp(new.right, node.op, node.right))


def _renumbered(parts: Sequence[ast.expr]) -> Iterator[list[ast.expr]]:
    """Yield the parts with another axis in all of them: `program_id(1), num_programs(1)`."""
    axes = [node.value for part in parts for node in ast.walk(part) if _is_axis(node)]
    for old in dict.fromkeys(axis for axis in axes if axes.count(axis) > 1):
        for new in _AXES:
            if new != old:
                yield [_Renumber(old, new).visit(copy.deepcopy(part)) for part in parts]


def _is_axis(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value in _AXES


class _Renumber(ast.NodeTransformer):
    def __init__(self, old: object, new: int) -> None:
        self.old, self.new = old, new

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(self.new) if _is_axis(node) and node.value == self.old else node


def swapped(parts: Sequence[ast.expr]) -> Iterator[list[ast.expr]]:
    """Yield the parts with two neighbours exchanged."""
    for n in range(len(parts) - 1):
        yield [*parts[:n], parts[n + 1], parts[n], *parts[n + 2 :]]


def with_fields(node: Any, **fields: object) -> Any:
    """A copy of `node` with some of its fields changed."""
    new = copy.copy(node)
    vars(new).update(fields)
    return new
