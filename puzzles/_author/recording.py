"""`python -m puzzles record` and `edit`: answers that people wrote, and the verdicts on them."""

from __future__ import annotations

import ast
import difflib
import json
import re
import textwrap
from dataclasses import replace

from puzzles import _regions
from puzzles._author import proof
from puzzles._author.answers import change_of
from puzzles._author.repository import BuildError
from puzzles._judge import Verdict, judge
from puzzles._puzzle import Puzzle, variant
from puzzles._record import Alternative, Mistake, Record
from puzzles._rules import to_author

_WIDTH = 100
_ALTERNATIVES = re.compile(r"(?m)(?:^#.*\n)*^\[\[alternative\]\]$")


def recorded(puzzle: Puzzle, answer: str, name: str, says: str) -> tuple[Alternative, Puzzle]:
    """Append an answer to a puzzle's record; return the answer, and the puzzle with it.

    says: the diagnosis of wrong values. At other stages, words from the verdict: if the verdict
    does not contain `says`, a sentence of it is used instead.
    """
    change = change_of(puzzle, answer)
    new = Alternative(name, change.edits, change.code)
    text = _code(new.apply(puzzle.text))
    before = (*puzzle.mistakes, *puzzle.alternatives)
    if any(old.name == name or _code(old.apply(puzzle.text)) == text for old in before):
        raise BuildError(to_author("recorded_before", name=name, puzzle=puzzle.name))
    verdict = _verdict(puzzle, new)
    if verdict.stage == "unsolved" or not (verdict.passed or says or verdict.stage != "values"):
        raise BuildError(to_author("not_recorded", verdict=verdict))
    mistakes, alternatives = puzzle.mistakes, puzzle.alternatives
    if verdict.passed:
        alternatives = (*alternatives, new)
    else:
        if verdict.stage != "values" and (not says or says not in str(verdict)):
            says = _own_words(verdict)
        new = Mistake(name, new.edits, new.code, says, verdict.stage)
        mistakes = (*mistakes, new)
    path = puzzle.record_path
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(with_answer(text, new), encoding="utf-8", newline="\n")
    return new, replace(puzzle, record=Record(mistakes, alternatives))


def problem_of(puzzle: Puzzle, change: Alternative) -> str | None:
    """The problem of an answer in a puzzle's record; None if it has none."""
    if isinstance(change, Mistake):
        return proof.mistake_problem(puzzle, change)
    return proof.alternative_problem(puzzle, change)


def shown(puzzle: Puzzle, change: Alternative) -> str:
    """The text of an answer in a puzzle's record: its diff from the solution, and its verdict."""
    texts = puzzle.text, change.apply(puzzle.text)
    ours, theirs = (_regions.without_marks(text).splitlines() for text in texts)
    diff = [*difflib.unified_diff(ours, theirs, n=2, lineterm="")][2:]
    kind = f"{change.stage}: {change.says}" if isinstance(change, Mistake) else "passed"
    place = f"{puzzle.place_of(change)}: {change.name}\n{kind}"
    return "\n".join([place, "", *diff, "", str(_verdict(puzzle, change))])


def find_answer(puzzle: Puzzle, name: str) -> Alternative:
    """The answer called `name`, or the only answer whose name contains it; else BuildError."""
    answers = [*puzzle.mistakes, *puzzle.alternatives]
    alike = [a for a in answers if a.name == name] or [a for a in answers if name in a.name]
    if len(alike) != 1:
        names = "\n".join(f"  {answer.name}" for answer in alike or answers)
        raise BuildError(to_author("which_answer", name=name, puzzle=puzzle.name, names=names))
    return alike[0]


def _verdict(puzzle: Puzzle, change: Alternative) -> Verdict:
    return judge(puzzle, variant(puzzle, change))


def _code(text: str) -> str:
    """The code of a text, for comparisons that ignore layout and comments."""
    return ast.dump(ast.parse(text))


def _own_words(verdict: Verdict) -> str:
    """The remedy of an exception, or the first sentence of another finding."""
    lines = verdict.says.splitlines()
    return lines[-1] if verdict.stage == "error" else re.split(r"(?<=[.:]) ", lines[0])[0]


# The file


def with_answer(text: str, change: Alternative) -> str:
    """The text of a record with `change` added: after the last mistake, or at the end."""
    lines = [f"name = {_string(change.name)}"]
    if isinstance(change, Mistake):
        lines += [f'stage = "{change.stage}"'] * (change.stage != "values")
        lines += [_prose("says", change.says)]
    if change.code:
        lines += [_value("code", change.code)]
    kind = "mistake" if isinstance(change, Mistake) else "alternative"
    for old, new in change.edits:
        lines += ["", f"[[{kind}.edits]]"] * (len(change.edits) > 1)
        lines += [_value("replace", old), _value("with", new)]
    block = "\n".join([f"[[{kind}]]", *lines, ""])
    rest = _ALTERNATIVES.search(text) if kind == "mistake" else None
    end = rest.start() if rest else len(text)
    before, after = text[:end].rstrip("\n"), text[end:]
    return "\n".join([f"{before}\n"] * bool(before) + [block] + [after] * bool(after))


def _string(text: str) -> str:
    """A TOML string on one line: a literal string if the text has quotes or backslashes."""
    quoted = '"' in text or "\\" in text
    return f"'{text}'" if quoted and "'" not in text else json.dumps(text, ensure_ascii=False)


def _value(key: str, code: str) -> str:
    """Code as a literal string, which needs no escapes; a basic string if it has three quotes."""
    line = f"{key} = '{code}'" if "'" not in code else f"{key} = '''{code}'''"
    if not code:
        return f'{key} = ""'
    if "'''" in code or code.endswith("'"):
        return f"{key} = {json.dumps(code, ensure_ascii=False)}"
    if "\n" in code or len(line) > _WIDTH:
        return f"{key} = '''\n{code}'''"
    return line


def _prose(key: str, text: str) -> str:
    """Prose on one line, or folded: a backslash at the end continues a line."""
    line = f"{key} = {_string(text)}"
    if len(line) <= _WIDTH:
        return line
    escaped = text.replace("\\", "\\\\").replace('"""', '""\\"').replace("\n", "\\n")
    folded = textwrap.wrap(escaped, _WIDTH - 3, break_long_words=False, break_on_hyphens=False)
    end = '\\"' if folded[-1].endswith('"') else folded[-1][-1]
    folded[-1] = folded[-1][:-1] + end
    return f'{key} = """\n' + " \\\n".join(folded) + '"""'
