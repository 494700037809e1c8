"""Solution regions: one text gives the starter, the solution and every mistake."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"
HERE = "# YOUR CODE HERE"
_CELL = re.compile(r"^# %%.*$", re.MULTILINE)


class RegionError(ValueError):
    """The regions of a puzzle module cannot be read; the text names the line."""


@dataclass(frozen=True)
class Region:
    """Lines `first` to `last` (1-based, inclusive) between a BEGIN and an END mark."""

    first: int
    last: int


def split_cells(text: str) -> list[tuple[str, str]]:
    """The percent-format cells as (marker line, body); the text before the first marker has ''."""
    marks = list(_CELL.finditer(text))
    starts = [m.start() for m in marks] + [len(text)]
    cells = [("", text[: starts[0]])]
    for mark, end in zip(marks, starts[1:], strict=True):
        cells.append((mark.group(), text[mark.end() + 1 : end]))
    return cells


def without_author(text: str) -> str:
    """The module's text without the cells tagged `author`, as in the notebook."""
    cells = [
        (f"{marker}\n" if marker else "") + body
        for marker, body in split_cells(text)
        if '"author"' not in marker
    ]
    return "".join(cells)


def regions(text: str) -> list[Region]:
    """Every solution region of `text`, in order."""
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    marks = [(number, line) for number, line in lines if line in (BEGIN, END)]
    spans = []
    for (first, begin), (last, end) in zip_longest(marks[::2], marks[1::2], fillvalue=(0, "")):
        if (begin, end) != (BEGIN, END) or last == first + 1:
            raise RegionError(f"line {first}: write '{BEGIN}', code, and then '{END}'")
        spans.append(Region(first + 1, last - 1))
    return spans


def region_lines(text: str) -> list[str]:
    """The stripped lines of code inside regions, which no page for learners may show."""
    lines = text.splitlines()
    inside = [lines[n].strip() for r in regions(text) for n in range(r.first - 1, r.last)]
    return [line for line in inside if line and not line.startswith("#")]


def without_marks(text: str) -> str:
    """`text` with the BEGIN and END lines removed, as in `solution()` and in solved notebooks."""
    lines = [line for line in text.splitlines(keepends=True) if line.strip() not in (BEGIN, END)]
    return "".join(lines)


def starter(text: str) -> str:
    """`text` with every region replaced by `...`.

    A region of statements becomes a `...`; keyword arguments keep their names; list elements become
    a `...,`. Raises RegionError for anything else.
    """
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    for region in reversed(regions(text)):
        body = lines[region.first - 1 : region.last]
        indent = re.match(r"\s*", next(line for line in body if line.strip()))[0]  # type: ignore[index]
        blank = [f"{indent}{line}\n" for line in _blank(tree, region, body)]
        lines[region.first - 2 : region.last + 1] = blank
    result = "".join(lines)
    try:
        ast.parse(result)
    except SyntaxError as error:
        raise RegionError(f"the starter does not parse: line {error.lineno}: {error.msg}") from None
    return result


def _blank(tree: ast.Module, region: Region, body: list[str]) -> list[str]:
    """The lines that replace `region` in the starter."""

    def inside(node: ast.AST) -> bool:
        return region.first <= node.lineno and node.end_lineno <= region.last  # type: ignore[attr-defined]

    if any(isinstance(n, ast.stmt) and inside(n) for n in ast.walk(tree)):
        count = sum(1 for line in body if line.strip() and not line.strip().startswith("#"))
        return [f"...  {HERE} (about {count} line{'s' if count > 1 else ''})"]
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    for call in calls:
        if inside(call):
            continue
        names = [k.arg for k in call.keywords if inside(k)]
        if names and None not in names and not any(inside(a) for a in call.args):
            return [f"{name}=...,  {HERE}" for name in names]
    if any(isinstance(n, ast.expr) and inside(n) for n in ast.walk(tree)):
        return [f"...,  {HERE}"]
    raise RegionError(
        f"line {region.first}: a region holds whole statements, list elements or keyword arguments"
    )


def edit(text: str, edits: Iterable[tuple[str, str]]) -> str:
    """`text` with each `old` replaced by its `new`; every `old` must occur exactly once."""
    for old, new in edits:
        count = text.count(old)
        if count != 1:
            raise RegionError(f"occurs {count} times instead of once: {old!r}")
        text = text.replace(old, new)
    return text


@functools.lru_cache(maxsize=64)
def functions(text: str) -> dict[str, ast.FunctionDef]:
    """The module's top-level functions by name. The result is cached: do not change it."""
    return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}


def same_code(a: ast.AST, b: ast.AST) -> bool:
    """True if two nodes differ at most in layout and comments."""
    return ast.dump(a) == ast.dump(b)


def only_ellipsis(node: ast.FunctionDef) -> bool:
    """True if the body is only `...`, after an optional docstring."""
    body = node.body if ast.get_docstring(node) is None else node.body[1:]
    return bool(body) and all(_is_ellipsis_statement(s) for s in body)


def _is_ellipsis_statement(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node) == "..."


def ellipsis_values(node: ast.AST) -> Iterator[ast.AST]:
    """Yield each `...` that is used as a value: not as an index, nor as a statement."""
    called = getattr(getattr(node, "func", None), "attr", "")
    if isinstance(node, ast.Subscript):
        yield from ellipsis_values(node.value)
    elif isinstance(node, ast.Tuple) or called in ("__getitem__", "__setitem__"):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.Constant):
                yield from ellipsis_values(child)
    elif (isinstance(node, ast.FunctionDef) and only_ellipsis(node)) or (
        isinstance(node, ast.Constant) and node.value is Ellipsis
    ):
        yield node
    elif not (isinstance(node, ast.stmt) and _is_ellipsis_statement(node)):
        for child in ast.iter_child_nodes(node):
            yield from ellipsis_values(child)


def parse_function(source: str) -> ast.FunctionDef | None:
    """The first function in `source`, which may be indented; None if there is none."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return None
    return next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)
