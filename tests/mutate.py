"""Small changes of a solution's code, one at a time: what a slip of the pen or of thought gives."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from puzzles import _regions


@dataclass(frozen=True)
class Mutant:
    """The module's text with one change; `change` says which, without its line."""

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
ARITHMETIC = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
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


def mutants(text: str, dims: Mapping[str, object] = MappingProxyType({})) -> Iterator[Mutant]:
    """Every change of what the learner writes in a module's text, each once.

    dims: sizes and keyword arguments of a case, by the names that the text has for them; a mutant
    knows them by heart.
    """
    tree = ast.parse(text)
    inside = [range(r.first, r.last + 1) for r in _regions.regions(text)]
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()
    seen = {ast.dump(tree)}
    for node in ast.walk(tree):
        for mutant in _reordered(node, lines, inside):
            dump = ast.dump(ast.parse(mutant.text))
            if dump not in seen:
                seen.add(dump)
                yield mutant
        if not hasattr(node, "lineno"):
            continue
        last = node.end_lineno or node.lineno
        if not any(node.lineno in rows and last in rows for rows in inside):
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[last - 1] + (node.end_col_offset or 0)
        for new in (*changes(node), *_by_heart(node, dims)):
            changed = (data[:begin] + new.encode() + data[end:]).decode()
            try:
                dump = ast.dump(ast.parse(changed))
            except SyntaxError:
                continue
            if dump not in seen:
                seen.add(dump)
                was = " ".join(data[begin:end].decode().split())
                yield Mutant(changed, node.lineno, f"{was} -> {' '.join(new.split())}")


def _reordered(node: ast.AST, lines: list[str], inside: list[range]) -> Iterator[Mutant]:
    """Neighbouring statements swapped: a `pl.when` before or after what it should not."""
    body = getattr(node, "body", [])
    statements = body if isinstance(body, list) else []
    for one, other in itertools.pairwise(statements):
        (a, b), (c, d) = _lines(one), _lines(other)
        if any(a in rows and d in rows for rows in inside):
            text = "".join(
                lines[: a - 1] + lines[c - 1 : d] + lines[b : c - 1] + lines[a - 1 : b] + lines[d:]
            )
            first, second = (" ".join(lines[n - 1].split()) for n in (a, c))
            yield Mutant(text, a, f"{first} <-> {second}")


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """First and last line of a statement, decorators included."""
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(one.lineno for one in decorators)])
    return first, statement.end_lineno or statement.lineno


def changes(node: ast.AST) -> Iterator[str]:
    """What could stand in the place of `node`."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARISONS.get(type(node.ops[0]), ()):
            yield _with(node, ops=[other()])
    elif isinstance(node, ast.BinOp):
        for other in ARITHMETIC.get(type(node.op), ()):
            yield _with(node, op=other())
        yield _text(node.left)
        yield _text(node.right)
        if isinstance(node.op, ORDERED):
            yield _with(node, left=node.right, right=node.left)
    elif isinstance(node, ast.Constant):
        yield from _constants(node.value)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield _with(node, attr=NAMES[node.attr])
    elif isinstance(node, ast.Tuple | ast.List):
        yield from _elements(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
        yield from _launches(node)
    elif isinstance(node, ast.UnaryOp):
        yield _text(node.operand)
    elif isinstance(node, ast.FunctionDef):
        yield from _branches(node)
    elif isinstance(node, ast.AugAssign):
        yield f"{ast.unparse(node.target)} = {ast.unparse(node.value)}"
        yield "pass"
    elif isinstance(node, ast.Assign | ast.Expr):
        yield "pass"
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield _narrowed(node, node.targets[0])
    elif isinstance(node, ast.Lambda):
        yield from _clamped(node)
    elif isinstance(node, ast.IfExp):
        yield _text(node.body)
        yield _text(node.orelse)


def _constants(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield str(value + 1)
        yield f"({value - 1})"
    elif isinstance(value, float):
        yield f"({-value})"
        yield "0.0"
        yield f"({value * 2})"
    elif value in NAMES:
        yield repr(NAMES[str(value)])


def _elements(node: ast.Tuple | ast.List) -> Iterator[str]:
    """Neighbours swapped: axes of a grid, components of an index map, dims of a block."""
    for n in range(len(node.elts) - 1):
        elements = [*node.elts]
        elements[n], elements[n + 1] = elements[n + 1], elements[n]
        yield _with(node, elts=elements)
    if isinstance(node.ctx, ast.Load):
        for n, element in enumerate(node.elts):
            if isinstance(element, ast.Name):
                for new in (f"{element.id} + 1", f"{element.id} - 1", "0"):
                    elements = [*node.elts]
                    elements[n] = ast.parse(new, mode="eval").body
                    yield _with(node, elts=elements)


def _calls(node: ast.Call) -> Iterator[str]:
    """Two arguments swapped, an argument for the call, a keyword dropped."""
    for n in range(len(node.args) - 1):
        arguments = [*node.args]
        arguments[n], arguments[n + 1] = arguments[n + 1], arguments[n]
        yield _with(node, args=arguments)
    for argument in node.args[:3]:
        if not isinstance(argument, ast.Constant | ast.Lambda | ast.Starred):
            yield _text(argument)
    for n in range(len(node.keywords)):
        yield _with(node, keywords=node.keywords[:n] + node.keywords[n + 1 :])


def _by_heart(node: ast.AST, dims: Mapping[str, object]) -> Iterator[str]:
    """The number of one case for a size or a keyword argument."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        if isinstance(dims.get(node.id), int | float):
            yield repr(dims[node.id])


def _narrowed(node: ast.Assign, ref: ast.Subscript) -> str:
    """What is stored goes through bf16."""
    name = ast.unparse(ref.value)
    value = f"({ast.unparse(node.value)}).astype(jnp.bfloat16).astype({name}.dtype)"
    return f"{ast.unparse(ref)} = {value}"


def _clamped(node: ast.Lambda) -> Iterator[str]:
    """An index map that is right for the first seven blocks."""
    elements = node.body.elts if isinstance(node.body, ast.Tuple) else [node.body]
    for n, element in enumerate(elements):
        if not isinstance(element, ast.Constant):
            clamped = ast.parse(f"jnp.minimum({ast.unparse(element)}, 6)", mode="eval").body
            changed = [*elements[:n], clamped, *elements[n + 1 :]]
            body = _changed(node.body, {"elts": changed}) if len(elements) > 1 else clamped
            yield _with(node, body=body)


def _launches(node: ast.Call) -> Iterator[str]:
    """A grid with an axis for nothing; an operand that stays in VMEM as a whole."""
    called = ast.unparse(node.func)
    if called == "pl.BlockSpec" and node.args:
        yield "pl.BlockSpec()"
    grid = next((k.value for k in node.keywords if k.arg == "grid"), None)
    if isinstance(grid, ast.Tuple):
        whole = copy.deepcopy(node)
        for one in ast.walk(whole):
            if isinstance(one, ast.Lambda):
                own = len(grid.elts)
                one.args.args.insert(own, ast.arg("for_nothing"))
            if isinstance(one, ast.keyword) and one.arg == "grid":
                one.value.elts.append(ast.Constant(2))
        yield ast.unparse(whole)


def _branches(node: ast.FunctionDef) -> Iterator[str]:
    """A `pl.when` that always or never runs, or runs when it should not."""
    for n, decorator in enumerate(node.decorator_list):
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pl.when":
            for condition in (
                "True",
                "False",
                f"jnp.logical_not({ast.unparse(decorator.args[0])})",
            ):
                call = ast.parse(f"pl.when({condition})", mode="eval").body
                others = [*node.decorator_list]
                others[n] = call
                yield _statement(node, decorator_list=others)


def _with(node: ast.AST, **fields: object) -> str:
    """The source of `node` with some of its fields changed."""
    return _text(_changed(node, fields))


def _statement(node: ast.stmt, **fields: object) -> str:
    text = ast.unparse(_changed(node, fields))
    return text.replace("\n", "\n" + " " * node.col_offset)


def _changed(node: ast.AST, fields: dict[str, object]) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    simple = (
        ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript | ast.Tuple | ast.List
    )
    return text if isinstance(node, simple) else f"({text})"
