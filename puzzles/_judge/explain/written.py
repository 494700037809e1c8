"""A function of the learner, a statement a line, and the lines of its source to show."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any

from puzzles._judge.explain.edits import with_fields

_SMALL = (ast.Name, ast.Constant, ast.Tuple)
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


class Written:
    """A learner's function: its tree, its code with a statement a line, its source, given lines."""

    def __init__(self, source: str, tree: ast.FunctionDef, fixed: frozenset[str]) -> None:
        self.tree, self.lines, self._fixed = tree, statements(tree), fixed
        self.source = textwrap.dedent(source)
        self._source = source.splitlines()

    @cached_property
    def _nodes(self) -> dict[int, Any]:
        """The first node on each line of `lines`, which has its place in the source."""
        nodes: dict[int, Any] = {}
        plain = ast.walk(ast.parse("\n".join(self.lines)).body[0])
        for new, node in zip(plain, ast.walk(_undocumented(self.tree)), strict=False):
            if hasattr(new, "lineno"):
                nodes.setdefault(new.lineno - 1, node)
        return nodes

    def shown(self, first: int, last: int, new: str | None) -> tuple[str, int]:
        """The source line to show for some of `lines`, and the number of lines after it.

        new: the statements that replace them; None if they stay. Of a single statement on several
        lines, the lines that differ are shown, or its first line if all do. The line is "" if the
        puzzle gave all of them.
        """
        nodes = [self._nodes.get(n, self.tree) for n in (first, last)]
        start, end = nodes[0].lineno, _end(nodes[1])
        line = self.line(start)
        if new is None:
            return line, 0
        if first == last:
            statements: list[Any] = [_bodiless(nodes[0])]
            with suppress(SyntaxError):  # `else:`
                code = f"{new} pass" if new.endswith(":") else new
                statements += ast.parse(textwrap.dedent(code)).body[:1]
            parts = [*_differing(statements[0], statements[-1])]
            ends = (line for part in parts for line in (part.lineno, part.end_lineno))
            numbers = sorted(ends) or [start]
            whole = numbers[0] == start and numbers[-1] >= end > start
            start, end = numbers[0], min(numbers[-1], max(end, start))
            if whole and line[-1] in _BRACKETS and self.line_to_blame(start, end):
                return f"{line}…{_BRACKETS[line[-1]]}", end - start
        return self.line_to_blame(start, end), end - start

    def line_to_blame(self, start: int, end: int) -> str:
        """The first of some source lines; "" if the puzzle gave all of them."""
        given = all(self.line(number) in self._fixed for number in range(start, end + 1))
        return "" if given else self.line(start)

    def common_lines(self, theirs: list[str]) -> set[str]:
        """The source lines of statements that are also in `theirs`."""
        nodes = [self._nodes.get(n, self.tree) for n, x in enumerate(self.lines) if x in theirs]
        return {self.line(n) for node in nodes for n in range(node.lineno, _end(node) + 1)}

    def line(self, number: int) -> str:
        return self._source[number - 1].strip()

    def changed_part(self, text: str) -> str:
        """The expression, within a statement, that alone differs in `text`; "" if unclear."""
        old, new = (_undocumented(ast.parse(code).body[0]) for code in (self.source, text))
        around = {inner: node for node in ast.walk(old) for inner in ast.iter_child_nodes(node)}
        node, *more = _differing(old, new)
        # A name alone, or an index without its array, is hard to find in a line.
        while isinstance(node, _SMALL) and isinstance(around[node], ast.expr | ast.keyword):
            node = around[node]
        inside = isinstance(around.get(node), ast.expr | ast.keyword | ast.AugAssign)
        part = ast.get_source_segment(self.source, node) if inside and not more else ""
        return "" if not part or "\n" in part else part


def _differing(old: Any, new: Any) -> Iterator[Any]:
    """Yield the smallest nodes of `old` that differ from their counterparts."""
    parts, others = (sorted(ast.iter_child_nodes(node), key=_keyword) for node in (old, new))
    if ast.dump(old) != ast.dump(new):
        alike = type(old) is type(new) and len(parts) == len(others)
        inner = [n for pair in zip(parts, others, strict=alike) for n in _differing(*pair) if alike]
        yield from inner or ([old] if hasattr(old, "lineno") else [])


def _keyword(node: ast.AST) -> str:
    """The name of a keyword argument, whose place in a call does not matter; "" for all else."""
    return str(node.arg) if isinstance(node, ast.keyword) else ""


def _end(node: Any) -> int:
    """The last line of a statement in the source, without the statements inside it."""
    inside = getattr(node, "body", None)
    return inside[0].lineno - 1 if isinstance(inside, list) else node.end_lineno


def _bodiless(statement: Any) -> Any:
    """A statement with `pass` in place of its body."""
    if not isinstance(getattr(statement, "body", None), list):
        return statement
    return with_fields(statement, body=[ast.Pass()], orelse=[])


def _undocumented(tree: Any) -> Any:
    if ast.get_docstring(tree) is None:
        return tree
    return with_fields(tree, body=tree.body[1:] or [ast.Pass()])


def statements(tree: ast.FunctionDef) -> list[str]:
    """The code of a function, each statement on a line of its own, without its docstring."""
    return [line for line in ast.unparse(_undocumented(tree)).splitlines() if line]


def unused(code: str) -> list[str]:
    """The variables of a function that nothing uses, except to set other such variables."""
    tree, used = ast.parse(code), set[str]()
    assignments = [(n.targets[0], n) for n in ast.walk(tree) if isinstance(n, ast.Assign)]
    sets = [(target.id, node) for target, node in assignments if isinstance(target, ast.Name)]
    for _ in sets:
        aside = {part for name, node in sets if name not in used for part in ast.walk(node)}
        names = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and n not in aside)
        used |= {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return [name for name, _ in sets if name not in used]
