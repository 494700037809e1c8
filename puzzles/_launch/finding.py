"""Findings: errors, warnings and notes about launches."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from puzzles._equations import function_place
from puzzles._jax import user_frame
from puzzles._rules import fault

_JAX = os.path.join(os.path.dirname(jax.__file__), "_src")
_ENDS_A_CALL = re.compile(r"[^(\[{]*[)\]}]")

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
KINDS = (
    "out-of-bounds", "never-written", "revisited", "uninitialised", "hazard", "alias",
    "misaligned", "promise", "vmem", "smem", "parallel", "outside", "lowering", "compile", "idle",
    "steps", "refetch", "race",
)  # fmt: skip


class Line(str):
    """`file:number: text`, with the absolute path, the number and the column of the code.

    column: from 1; None if unknown. file: "" if there is no such file.
    """

    file: str
    line_number: int
    column: int | None


@dataclass(frozen=True)
class Finding:
    """An error, a warning or a note about a launch.

    kind: one of KINDS. severity: an "error" is wrong on a TPU; a "warning" may be wrong, or depends
    on timing or data; a "note" costs time only. says: the fault and its place. remedy: the fix.
    launch: the kernel's name. operand: a ref's name, None for a fault of the grid. step: program
    ids of a grid step. block: the operand's block at this step. line: "file:number: text" of the
    source. chips: the chips that have the fault; () for all.
    """

    kind: str
    severity: str
    says: str
    remedy: str = ""
    launch: str | None = None
    operand: str | None = None
    step: tuple[int, ...] | None = None
    line: str | None = None
    chips: tuple[str, ...] = ()
    block: tuple[int, ...] | None = None

    @property
    def words(self) -> str:
        """The message: fault, place and remedy."""
        return f"{self.says} {self.remedy}".strip()

    @property
    def place(self) -> dict[str, Any]:
        """The file, the line_number and the column of its line; None if it is in no file."""
        line = in_file(self.line)
        return vars(line) if line else dict.fromkeys(("file", "line_number", "column"))


def told(kind: str, words: str, severity: str = ERROR, /, **facts: Any) -> Finding:
    """Return a finding with the message of the key `words`; some of `facts` are its place."""
    says, remedy = fault(words, **facts)
    where = ("launch", "operand", "step", "line", "chips", "block")
    named = {name: facts[name] for name in where if name in facts}
    return Finding(kind, severity, says, remedy, **named)


def when(step: Sequence[int] | None, line: str = "") -> str:
    """ " at grid step (1, 0), in `o_ref[...] = x`", without the parts that are unknown."""
    return (f" at grid step {step}" if step else "") + (f", in `{line}`" if line else "")


def happens(step: Sequence[int] | None, who: str, event: str) -> str:
    """ "At grid step (1, 0), `o_ref[...] = x` reads ...", without the step if it is unknown."""
    says = f"At grid step {step}, {who} {event}" if step else f"{who} {event}"
    return f"{says[0].upper()}{says[1:]}"


def text_at(file: str, number: int) -> str:
    """A line of a source file, stripped; "" if it cannot be read.

    A line that ends a call of earlier lines, such as `).start()`, comes after the first of them.
    """
    line = linecache.getline(file, number)
    if not (text := line.strip()) or not _ENDS_A_CALL.match(text):
        return text
    most = len(line) - len(line.lstrip()) - (text[0] not in ")]}")
    before = (linecache.getline(file, n) for n in range(number - 1, 0, -1))
    heads = (
        earlier.strip()
        for earlier in before
        if earlier.strip() and len(earlier) - len(earlier.lstrip()) <= most
    )
    return f"{head} … {text}" if (head := next(heads, "")) else text


def placed(file: str, number: int, column: int | None = None) -> Line:
    """`file:number: text`, without the file's folder; a notebook's cell is "cell"."""
    name = "cell" if file.startswith("<") or "ipykernel" in file else os.path.basename(file)
    text = text_at(file, number)
    line = Line(f"{name}:{number}: {text}" if text else f"{name}:{number}")
    line.file = os.path.abspath(file) if os.path.isfile(file) else ""
    line.line_number, line.column = number, column
    return line


def in_file(line: str | None) -> Line | None:
    """The line, if it is in a file that exists; else None."""
    return line if isinstance(line, Line) and line.file else None


def line_of(info: Any) -> Line | None:
    """`file:number: text` of the innermost line outside JAX in an equation's `source_info`."""
    frame = None if info is None else user_frame(info)
    if frame is None:
        return None
    return placed(frame.file_name, frame.start_line, frame.start_column + 1)


def text_of(info: Any) -> str:
    """The innermost line outside JAX in an equation's `source_info`; "" if unknown."""
    frame = None if info is None else user_frame(info)
    return "" if frame is None else text_at(frame.file_name, frame.start_line)


def line_of_function(jaxpr: Any) -> Line | None:
    """`file:number: text` of the function that a jaxpr was traced from."""
    file, number = function_place(jaxpr)
    return None if not file or file.startswith(_JAX) else placed(file, number)


def ints(index: Iterable[Any]) -> tuple[int, ...]:
    """Return an index as Python integers."""
    return tuple(int(n) for n in index)
