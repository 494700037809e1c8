"""Turn an answer that somebody wrote into the smallest change of the solution."""

from __future__ import annotations

import ast
import copy
import difflib
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from puzzles import _regions
from puzzles._author.repository import BuildError, setup_source
from puzzles._puzzle import Puzzle, load
from puzzles._rules import to_author

Hunk = tuple[int, int, list[str]]  # the first line to replace, the line after the last, new lines
_FENCED = re.compile(r"^```(\w*)[ ]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_IMPORTS = (ast.Import, ast.ImportFrom)
_MUCH = 0.6  # if more of a function's lines change, its whole code is easier to read


@dataclass(frozen=True)
class Change:
    """An answer as edits of the puzzle's text, and code to append to it."""

    edits: tuple[tuple[str, str], ...]
    code: str


def change_of(puzzle: Puzzle, answer: str) -> Change:
    """The smallest change that makes a puzzle's text this answer; BuildError if there is none.

    answer: cells, a notebook or an issue with fenced code. Functions of the puzzle that it does not
    define stay unchanged; calls such as `check(...)` are ignored.
    """
    code = code_in(puzzle, answer)
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise BuildError(to_author("answer_does_not_parse", error=error)) from None
    lines, there = code.splitlines(), {_bare(node) for node in ast.parse(puzzle.text).body}
    new = [node for node in tree.body if _bare(node) not in there]
    statements = [node for node in new if not isinstance(node, (ast.Expr, *_IMPORTS))]
    if not statements:
        raise BuildError(to_author("answer_changes_nothing", name=puzzle.name))
    imports = _imports_for(puzzle, tree, statements)
    ours = _regions.functions(puzzle.text)
    changed = {n.name: n for n in statements if isinstance(n, ast.FunctionDef) and n.name in ours}
    added = [n for n in statements if n not in changed.values()]
    appended = [*imports, *(_source(lines, node) for node in added)]
    text, edits = puzzle.text, list[tuple[str, str]]()
    for node in changed.values():
        source = f"{_source(lines, node)}\n".splitlines(keepends=True)
        own = tuple(_edits(text, _hunks(text, source, node)))
        text, edits = _regions.edit(text, own), [*edits, *own]
    written = sum(theirs.count("\n") + 1 for _, theirs in edits)
    whole = sum((node.end_lineno or 0) - node.lineno + 1 for node in changed.values())
    code = "".join(f"{source}\n" for source in appended)
    same = all(_is(text, node) for node in changed.values())
    if same and written <= _MUCH * whole and _defines(puzzle, f"{text}\n{code}"):
        return Change(tuple(edits), code)
    parts = ["\n".join(imports)] * bool(imports) + [_source(lines, node) for node in statements]
    return Change((), "\n\n\n".join(parts) + "\n")


def _imports_for(puzzle: Puzzle, answer: ast.Module, statements: list[ast.stmt]) -> list[str]:
    """The imports that an answer needs and the puzzle's module lacks."""
    setup = re.sub(r"(?m)^ *%.*$", "", setup_source(puzzle.module.rpartition(".")[0]))
    nodes = [*ast.walk(ast.parse(setup)), *answer.body]
    lines = {
        alias.asname or alias.name.partition(".")[0]: _import(node, alias)
        for node in nodes
        if isinstance(node, _IMPORTS)
        for alias in node.names
    }
    used = {n.id for top in statements for n in ast.walk(top) if isinstance(n, ast.Name)}
    bound = set(load(puzzle, puzzle.text, "solution"))
    return [line for name, line in lines.items() if name in used - bound]


def _import(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import([alias]))
    return ast.unparse(ast.ImportFrom(node.module, [alias], node.level))


def code_in(puzzle: Puzzle, answer: str) -> str:
    """The code of an answer: fenced blocks, the text itself, or the cells of a notebook that define
    a function of the puzzle.
    """
    if answer.lstrip().startswith("{"):
        texts = ["".join(cell["source"]) for cell in json.loads(answer)["cells"]]
        answer = "\n\n".join(t for t in texts if _defined(t) & _defined(puzzle.text))
    elif fenced := _FENCED.findall(answer.replace("\r\n", "\n")):
        answer = "\n\n".join(code for kind, code in fenced if kind in ("", "py", "python"))
    return re.sub(r"(?m)^[ ]*[%!].*\n?", "", textwrap.dedent(f"{answer.rstrip()}\n"))


def _defined(text: str) -> set[str]:
    return set(re.findall(r"(?m)^def (\w+)\(", text))


def _source(lines: list[str], node: ast.stmt) -> str:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(lines[first - 1 : node.end_lineno])


def _hunks(text: str, theirs: list[str], node: ast.FunctionDef) -> list[Hunk]:
    """The lines of `text` to replace so that its function becomes `node`, of lines `theirs`."""
    lines, ours = text.splitlines(keepends=True), _regions.functions(text)[node.name]
    first = min([ours.lineno, *(decorator.lineno for decorator in ours.decorator_list)]) - 1
    marks = (_regions.BEGIN, _regions.END)
    own = [n for n in range(first, ours.end_lineno or 0) if lines[n].strip() not in marks]
    matcher = difflib.SequenceMatcher(None, [lines[n] for n in own], theirs, autojunk=False)
    hunks: list[Hunk] = []
    for tag, i, j, k, m in matcher.get_opcodes():
        start = own[i] if i < len(own) else own[-1] + 1
        if tag != "equal":
            hunks.append((start, own[j - 1] + 1 if j > i else start, theirs[k:m]))
    for hunk in hunks.copy():  # drop changes of layout and comments
        rest = [h for h in hunks if h is not hunk]
        if _is(_with(lines, rest), node):
            hunks = rest
    return hunks


def _with(lines: list[str], hunks: list[Hunk]) -> str:
    """A text with its hunks replaced."""
    lines = lines.copy()
    for start, end, new in reversed(hunks):
        lines[start:end] = new
    return "".join(lines)


def _is(text: str, node: ast.FunctionDef) -> bool:
    """True if `text` defines this function, except for layout, comments and annotations."""
    try:
        return _bare(_regions.functions(text)[node.name]) == _bare(node)
    except (SyntaxError, KeyError):
        return False


def _bare(node: ast.stmt) -> str:
    """A statement without layout, comments and annotations of functions."""
    node = copy.deepcopy(node)
    for part in ast.walk(node):
        if isinstance(part, ast.arg):
            part.annotation = None
        elif isinstance(part, ast.FunctionDef):
            part.returns = None
    return ast.dump(node)


def _edits(text: str, hunks: list[Hunk]) -> Iterator[tuple[str, str]]:
    """Yield each hunk as an edit; its lines occur once in the text after the earlier edits."""
    lines, moved = text.splitlines(keepends=True), 0
    for first, last, new in hunks:
        start, end = first + moved, last + moved
        low, high = start, end
        while low == high or _times("".join(lines[low:high]), "".join(lines)) != 1:
            up = (high - end >= start - low or high == len(lines)) and low > 0
            low, high = (low - 1, high) if up else (low, high + 1)
        old, changed = lines[low:high], [*lines[low:start], *new, *lines[end:high]]
        lines[low:high] = changed
        moved += len(new) - (end - start)
        yield _shortest("".join(lines), "".join(old), "".join(changed))


def _times(part: str, text: str) -> int:
    """The number of times that a part occurs in a text; occurrences may overlap."""
    return len(re.findall(f"(?={re.escape(part)})", text))


def _shortest(after: str, old: str, new: str) -> tuple[str, str]:
    """Strip the indentation and the end of an edit of one line, if the rest still occurs once."""
    before = after.replace(new, old, 1)
    if old.count("\n") == new.count("\n") == 1:
        short, replacement = old.strip(), new.strip()
        if _times(short, before) == 1 and before.replace(short, replacement) == after:
            return short, replacement
    return old, new


def _defines(puzzle: Puzzle, text: str) -> bool:
    try:
        load(puzzle, text, "answer")
    except NameError:
        return False
    return True
