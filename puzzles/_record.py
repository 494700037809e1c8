"""The record of a puzzle: its known mistakes and other right answers, in a TOML file next to it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from puzzles import _regions

_EDIT = {"replace", "with"}
_KEYS = {"alternative": {"name", "code", "edits", *_EDIT}}
_KEYS["mistake"] = {"says", "stage", *_KEYS["alternative"]}


class RecordError(ValueError):
    """A record cannot be read; the text has the file, the line and the remedy."""


@dataclass(frozen=True)
class Alternative:
    """Another correct solution: edits of the puzzle's text, and `code` that redefines its names.

    edits: pairs of the text to replace, which occurs once, and the text to put there, in order.
    """

    name: str
    edits: tuple[tuple[str, str], ...] = ()
    code: str = ""

    def apply(self, text: str) -> str:
        """`text` with this change made; RegionError if an edit does not fit it."""
        changed = _regions.edit(text, self.edits)
        return f"{changed}\n{self.code}" if self.code else changed


@dataclass(frozen=True)
class Mistake(Alternative):
    """A plausible wrong answer: `name` continues "a kernel that ...", `says` occurs in the verdict.

    `stage` is the stage of the verdict that must reject it.
    """

    says: str = ""
    stage: str = "values"


@dataclass(frozen=True)
class Record:
    """The known mistakes and the alternatives of a puzzle, in the order of its file."""

    mistakes: tuple[Mistake, ...] = ()
    alternatives: tuple[Alternative, ...] = ()


def edits_of(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The edits of a TOML table: a single edit as `replace` and `with`, several as `edits`."""
    rows = [*([row] if _EDIT & {*row} else []), *row.get("edits", ())]
    return tuple((row["replace"], row["with"]) for row in rows)


def read(path: Path, shown: str) -> Record:
    """The record in a file, empty if there is none; RecordError if it cannot be read.

    shown: the file's path in messages.
    """
    if not path.exists():
        return Record()
    text = path.read_text(encoding="utf-8")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = str(error).rpartition("at line ")[2].partition(",")[0]
        where = int(line) if line.isdigit() else len(text.splitlines())
        raise RecordError(f"{shown}:{where}: this is not TOML: {error}") from None
    if unknown := sorted({*tables} - {*_KEYS}):
        raise RecordError(f"{shown}:1: [[{unknown[0]}]] is neither [[mistake]] nor [[alternative]]")
    rows = [(kind, row) for kind in _KEYS for row in tables.get(kind, ())]
    names = [row.get("name") for _, row in rows]
    for kind, row in rows:
        if why := _fault(kind, row, names):
            raise RecordError(f"{shown}:{line_number(text, row.get('name', ''))}: {why}")
    return Record(
        tuple(Mistake(**_fields(row)) for kind, row in rows if kind == "mistake"),
        tuple(Alternative(**_fields(row)) for kind, row in rows if kind == "alternative"),
    )


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"edits": edits_of(row)} | {k: row[k] for k in row if k not in (*_EDIT, "edits")}


def _fault(kind: str, row: Mapping[str, Any], names: Iterable[Any]) -> str:
    """The fault of an answer's table, with its remedy; "" if it has none."""
    edits = [table for table in (row, *row.get("edits", ())) if _EDIT & {*table}]
    strings = [v for table in (row, *edits) for key, v in table.items() if key != "edits"]
    if unknown := sorted({*row} - _KEYS[kind]):
        return f"a {kind} has no `{unknown[0]}`: it has {', '.join(sorted(_KEYS[kind]))}"
    if any(not {*table} >= _EDIT for table in edits):
        return "an edit has `replace` and `with`: write both"
    if not all(isinstance(value, str) for value in strings) or not row.get("name"):
        return f"a {kind} has a `name`, and its values are strings"
    if [*names].count(row["name"]) > 1:
        return f"a second answer is called {row['name']!r}: rename one"
    return ""


def line_number(text: str, name: str) -> int:
    """The line in a record's text that names the answer `name`; 1 if there is none."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("name") and _is_name(line, name):
            return number
    return 1


def _is_name(line: str, name: str) -> bool:
    try:
        return tomllib.loads(line).get("name") == name
    except tomllib.TOMLDecodeError:
        return False
