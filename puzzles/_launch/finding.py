"""What is wrong with a launch, or doubtful, or merely dear: one form for whoever finds it."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from puzzles._jax import function_place, user_frame
from puzzles._rules import fault

_JAX = os.path.join(os.path.dirname(jax.__file__), "_src")
_PLACES: dict[str, tuple[str, int]] = {}  # what `placed` was asked for, by what it returned

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
KINDS = (
    "out-of-bounds", "never-written", "revisited", "uninitialised", "hazard", "alias",
    "misaligned", "promise", "vmem", "smem", "parallel", "outside", "lowering", "compile", "idle",
    "steps", "refetch",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing to know about a launch: `says` is where and what, `remedy` what to try.

    kind: one of KINDS. severity: "error" is wrong on a TPU; "warning" may be, or depends on timing
    or data; a "note" costs time only. launch: the kernel's name. operand: a ref's name, None if it
    is the grid's fault. step: program ids of a grid step. block: the block that it holds. line:
    "file:number: text" of the source. chips: those that it holds for, where they differ.
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
        """What it says, and then the remedy."""
        return f"{self.says} {self.remedy}".strip()


def told(kind: str, words: str, severity: str = ERROR, /, **facts: Any) -> Finding:
    """A finding in the words of that name, of facts; some of these say where it is."""
    says, remedy = fault(words, **facts)
    where = ("launch", "operand", "step", "line", "chips", "block")
    named = {name: facts[name] for name in where if name in facts}
    return Finding(kind, severity, says, remedy, **named)


def when(step: Sequence[int] | None, line: str = "") -> str:
    """ " at grid step (1, 0), in `o_ref[...] = x`", or what of that is known."""
    return (f" at grid step {step}" if step else "") + (f", in `{line}`" if line else "")


def happens(step: Sequence[int] | None, who: str, what: str) -> str:
    """ "At grid step (1, 0), `o_ref[...] = x` reads ...": who does what, where a step is known."""
    says = f"At grid step {step}, {who} {what}" if step else f"{who} {what}"
    return f"{says[0].upper()}{says[1:]}"


def text_at(file: str, number: int) -> str:
    """A line of a source file, stripped; empty where it cannot be read."""
    return linecache.getline(file, number).strip()


def placed(file: str, number: int) -> str:
    """`file:number: text`, with the file's name alone; a cell of a notebook is "cell"."""
    name = "cell" if file.startswith("<") or "ipykernel" in file else os.path.basename(file)
    text = text_at(file, number)
    line = f"{name}:{number}: {text}" if text else f"{name}:{number}"
    _PLACES[line] = os.path.abspath(file), number
    return line


def place(line: str | None) -> tuple[str, int] | None:
    """The path and the number behind what `placed` returned; None where that is no file."""
    found = _PLACES.get(line or "")
    return found if found and os.path.isfile(found[0]) else None


def line_of(info: Any) -> str | None:
    """`file:number: text` of an equation's innermost line outside of JAX, by its `source_info`."""
    frame = None if info is None else user_frame(info)
    return None if frame is None else placed(frame.file_name, frame.start_line)


def text_of(info: Any) -> str:
    """The text of an equation's innermost line outside of JAX, "" where it is not known."""
    frame = None if info is None else user_frame(info)
    return "" if frame is None else text_at(frame.file_name, frame.start_line)


def line_of_function(jaxpr: Any) -> str | None:
    """`file:number: text` of the function that a jaxpr was traced from."""
    file, number = function_place(jaxpr)
    return None if not file or file.startswith(_JAX) else placed(file, number)


def ints(index: Iterable[Any]) -> tuple[int, ...]:
    """Python's integers."""
    return tuple(int(n) for n in index)
