"""The learner's line that explains a wrong answer, found by exchanging code with right answers.

Lines and expressions of the solution and of the alternatives replace the learner's, one at a time,
until the answer is right. A budget of work limits the search.
"""

from __future__ import annotations

import ast
import copy
import difflib
import inspect
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from puzzles._judge.answer import Answer, Run
from puzzles._judge.case import Case, cases, fresh_case
from puzzles._judge.explain.by_trying import first_wrong
from puzzles._judge.explain.edits import edits
from puzzles._judge.explain.partners import ALIKE, likeness, partners_of, tokens_of
from puzzles._judge.explain.written import Written, unused
from puzzles._judge.numbers import on_tpu
from puzzles._judge.questions.work import audit
from puzzles._rules import sentence

_LINES = 3  # replaced at once; if more lines differ, it is another kernel
_PLACES = 3  # in which lines differ, if two places are exchanged at once
_TOKENS = 4  # that differ at most between two expressions to exchange
_EDITS = 48  # of the learner's own code, tried at most in a function
_EXPRESSIONS = 16  # exchanged at most in a function
_EXCHANGED = {
    "replace": "line_exchanged_replace",
    "delete": "line_exchanged_delete",
    "insert": "line_exchanged_insert",
    "append": "line_exchanged_append",
    "several": "line_exchanged_several",
    "statement": "line_exchanged_statement",
}
_EMPTY = "line_exchanged_empty"  # for `pass` as a function's only statement
_LEAVES = (ast.Name, ast.Constant, ast.Starred)


@dataclass(frozen=True)
class _Exchange:
    """A function's text after an exchange; the key of its words, and the line to show.

    line: "" if the puzzle gave it. more: the number of lines after it. other: a second line.
    """

    text: str
    words: str
    line: str
    other: str = ""
    more: int = 0


def line_exchanged(run: Run, corrects: str = "corrects_numbers") -> str | None:
    """The learner's lines that, edited or replaced by a right answer's, make it right, or None.

    corrects: the key of the words for that.

    Find-the-bug puzzles are left out, because this would give their bug away.
    """
    puzzle, code = run.puzzle, run.answer.code
    if on_tpu() or puzzle.starter is not None or not code.function:
        return None
    texts_run: set[str] = set()
    sources = {name: inspect.getsource(code.written[name]) for name in code.trees}
    texts = (puzzle.starter_text, "\n".join(sources.values()))
    starter_lines, own_lines = (Counter(map(str.strip, text.splitlines())) for text in texts)
    fixed = frozenset(line for line in starter_lines if own_lines[line] <= starter_lines[line])
    written = [Written(sources[name], tree, fixed) for name, tree in code.trees.items()]
    pairs = [(own, partners_of(puzzle, own.tree.name, own.lines)) for own in written]
    several: str | None = None  # about the lines of a statement that is right after an exchange

    def edits_of_own(own: Written, partners: list[list[str]]) -> Iterator[_Exchange]:
        right = own.common_lines(partners[0] if partners else [])
        attempts = edits(own.source, fixed, right) if len(own.lines) > 2 else []
        attempts.sort(key=lambda edit: not numbers and edit[0] > 0 and edit[1] != "order")
        for _, kind, line, text in attempts[: _EDITS if several is None else _EDITS // 2]:
            words = "line_order" if kind == "order" else _EXCHANGED["replace"]
            yield _Exchange(text, words, line)

    # Unsafe copies mostly lack a wait; wrong numbers mostly come from one line.
    numbers = corrects == "corrects_numbers"
    lines = (_single_lines, edits_of_own, _lines) if numbers else (_lines, edits_of_own)
    for exchanges in (*lines, _expressions, _several_lines):
        if several is not None and exchanges is not edits_of_own:  # an edit blames a single line
            return several
        for own, partners in pairs:
            for exchange in exchanges(own, partners):
                if exchange.text in texts_run or not exchange.line:
                    continue
                texts_run.add(exchange.text)
                if not run.answer.affords(run.case):
                    run.answer.gave_up = several is None
                    return several
                if _right_as(run, own.tree.name, exchange):
                    more = "line" if exchange.more == 1 else f"{exchange.more} lines"
                    facts = {"line": exchange.line, "other": exchange.other, "more": more}
                    form = "statement" if exchange.line[-2:-1] == "…" else "several"
                    words = _EXCHANGED[form] if exchange.more else exchange.words
                    if part := own.changed_part(exchange.text):
                        words, facts["part"] = "part_exchanged", part
                    if idle := [x for x in unused(exchange.text) if x not in unused(own.source)]:
                        facts["names"] = " and ".join(f"`{name}`" for name in dict.fromkeys(idle))
                        form = "two_unused" if exchange.other else "line_unused"
                        words = words if exchange.more else form
                    text = sentence(words, corrects=sentence(corrects), **facts)
                    if not idle and (exchanges is not _single_lines or not exchange.more):
                        return text
                    several = several or text
    return several


def _right_as(run: Run, name: str, exchange: _Exchange) -> bool:
    """True if the answer is right in all cases after an exchange in function `name`."""
    code, puzzle = run.answer.code, run.puzzle
    names = dict(code.names)
    try:
        tree = ast.parse(exchange.text)
        if any(map(_grows, ast.walk(tree))):
            return False
        exec(compile(tree, "<exchanged>", "exec", dont_inherit=True), names)
        answer = Answer(puzzle, names[name] if name == puzzle.name else code.with_names(names))
        all_cases = (run.case, *cases(puzzle, run.case.seed), fresh_case(puzzle, run.case.seed))
        return all(_right(answer, case) for case in dict.fromkeys(filter(None, all_cases)))
    except Exception:  # other lines may need the replaced line
        return False


def _grows(node: ast.AST) -> bool:
    """True for a loop that may never end: a `while`, or a loop over a list that it appends to."""
    if not isinstance(node, ast.For):
        return isinstance(node, ast.While)
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    lists = {ast.unparse(f.value) for f in calls if isinstance(f, ast.Attribute)}
    return ast.unparse(node.iter) in lists


def _right(answer: Answer, case: Case) -> bool:
    """True if the numbers are right, the audit passes, and NumPy can run it: JAX takes seconds."""
    changed = answer.on(case)
    if case.puzzle.kernel and (first_wrong(changed) is not None or changed.in_numpy is None):
        return False
    return changed.differs is None and (case.fresh or not audit(changed))


def _single_lines(own: Written, partners: list[list[str]]) -> Iterator[_Exchange]:
    """Yield deletions of a line, code for `pass`, and exchanges for the most similar line."""
    for theirs in partners if len(own.lines) > 2 else ():  # else it is the whole function
        for how, i, j, k, end in _opcodes(own.lines, theirs):
            empty = own.lines[i:j] and own.lines[i].strip() == "pass"
            if j - i == 1 and (how == "delete" or empty):
                text = _spliced(own.lines, theirs, (i, j, k, end))
                yield _Exchange(text, _EMPTY if empty else _EXCHANGED[how], own.shown(i, i, "")[0])
        for i, line in enumerate(own.lines[1:], start=1):
            head = line.partition("= ")[0]  # a line that assigns the same comes before others
            alike = [likeness(line, o) + (o.partition("= ")[0] == head) for o in theirs]
            k = alike.index(max(alike))
            if alike[k] > ALIKE and line not in theirs and _indent(line) == _indent(theirs[k]):
                shown, more = own.shown(i, i, theirs[k])
                text = _spliced(own.lines, theirs, (i, i + 1, k, k + 1))
                yield _Exchange(text, _EXCHANGED["replace"], shown, more=more)


def _lines(own: Written, partners: list[list[str]]) -> Iterator[_Exchange]:
    """Yield exchanges of a single line."""
    return (exchange for length, exchange in _in_a_row(own, partners) if length < 2)


def _several_lines(own: Written, partners: list[list[str]]) -> Iterator[_Exchange]:
    """Yield exchanges of a few lines in a row, the shortest first, then of two places at once."""
    longer = [pair for pair in _in_a_row(own, partners) if pair[0] > 1]
    yield from (exchange for _, exchange in sorted(longer, key=lambda pair: pair[0]))
    for theirs in partners:
        opcodes = _opcodes(own.lines, theirs)
        for one, two in itertools.combinations(opcodes, 2) if len(opcodes) <= _PLACES else ():
            shown = [
                own.shown(min(i, j - 1), j - 1, "\n".join(theirs[k:end]) if i < j else None)[0]
                for _, i, j, k, end in (one, two)
            ]
            moved = {one[0], two[0]} == {"insert", "delete"}
            text = _spliced(own.lines, theirs, one[1:], two[1:])
            words = "line_exchanged_move" if moved else "line_exchanged_two"
            first = shown[one[0] == "insert"] if moved else shown[0]
            yield _Exchange(text, words, first if all(shown) else "", other=shown[1])


def _in_a_row(own: Written, partners: list[list[str]]) -> Iterator[tuple[int, _Exchange]]:
    """Yield (length, exchange) for a few lines in a row."""
    pairs = [(opcode, lines) for lines in partners for opcode in _split(own.lines, lines)]
    for (how, i, j, k, end), theirs in pairs:
        after = i == j and (i == len(own.lines) or _indent(theirs[k]) > _indent(own.lines[i]))
        new = None if i == j else "\n".join(theirs[k:end])
        line, more = own.shown(i - after, max(j - 1, i - after), new)
        text = _spliced(own.lines, theirs, (i, j, k, end))
        words = _EXCHANGED["append" if after else how]
        yield max(j - i, end - k), _Exchange(text, words, line, more=more)


def _spliced(own: list[str], theirs: list[str], *spans: tuple[int, int, int, int]) -> str:
    """`own` with the lines k to end of `theirs` for its lines i to j, in each span."""
    lines = list(own)
    for i, j, k, end in reversed(spans):
        lines[i:j] = theirs[k:end]
    return "\n".join(lines)


def _opcodes(own: list[str], theirs: list[str]) -> list[tuple[str, int, int, int, int]]:
    """The opcodes of `difflib` with which `own` comes closer to `theirs`, in few lines."""
    matched = difflib.SequenceMatcher(None, own, theirs, autojunk=False)
    return [
        (how, i, j, k, end)
        for how, i, j, k, end in matched.get_opcodes()
        # An exchange of the whole function would show no useful place.
        if how != "equal" and i > 0 and j - i <= min(_LINES, len(own) - 2)
    ]


def _split(own: list[str], theirs: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the opcodes, and those of each line in blocks of equal length."""
    for how, i, j, k, end in _opcodes(own, theirs):
        yield how, i, j, k, end
        for n in range(j - i) if 1 < j - i == end - k else ():
            yield how, i + n, i + n + 1, k + n, k + n + 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _expressions(own: Written, partners: list[list[str]]) -> Iterator[_Exchange]:
    """Yield exchanges of similar expressions, on lines that the most similar version lacks."""
    right = {line.strip() for line in partners[0]} if partners else set()
    trees = [ast.parse("\n".join(lines)) for lines in partners]
    theirs = {ast.unparse(node): (line, node) for tree in trees for line, node in _parts(tree)}
    pairs = []
    for line, node in _parts(own.tree):
        for text, (there, new) in theirs.items() if line not in right else ():
            before, after = Counter(tokens_of(ast.unparse(node))), Counter(tokens_of(text))
            differ = (before - after).total() + (after - before).total()
            if differ <= _TOKENS and text != ast.unparse(node):
                pairs.append((differ, -likeness(tokens_of(line), tokens_of(there)), node, new))
    for _, _, node, new in sorted(pairs, key=lambda pair: pair[:2])[:_EXPRESSIONS]:
        text = ast.unparse(copy.deepcopy(own.tree, {id(node): new}))
        yield _Exchange(text, _EXCHANGED["replace"], own.line_to_blame(node.lineno, node.lineno))


def _parts(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield (line of its statement, expression) for each expression with several parts."""
    for statement in (n for n in ast.walk(tree) if isinstance(n, ast.stmt)):
        for child in (n for n in ast.iter_child_nodes(statement) if isinstance(n, ast.expr)):
            inner = isinstance(statement, ast.FunctionDef)  # then `child` is a decorator
            line = f"@{ast.unparse(child)}" if inner else ast.unparse(statement).splitlines()[0]
            for node in ast.walk(child):
                stored = isinstance(getattr(node, "ctx", None), ast.Store)
                if isinstance(node, ast.expr) and not isinstance(node, _LEAVES) and not stored:
                    yield line, node
