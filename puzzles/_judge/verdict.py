"""A verdict as data and text; on a pass the lesson, the cost next to the reference's, remarks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from puzzles._compile import CHIPS
from puzzles._judge.answer import Answer
from puzzles._judge.cost import Cost
from puzzles._judge.costs import Scale
from puzzles._judge.numbers import on_tpu
from puzzles._judge.wire import wire_line, wire_rows
from puzzles._launch import Launch
from puzzles._puzzle import Puzzle
from puzzles._receipt import (
    amount,
    amounts,
    causes_words,
    receipt_text,
    scaled,
    stored,
    time_words,
)
from puzzles._rules import RULES, address, sentence, title_of

_CHIP = CHIPS["v5e"]


@dataclass(frozen=True)
class Verdict:
    """What `judge` found, at the first stage that failed; `str()` gives all of it.

    says: where, what, what to try. diagnosis: the mistake that the numbers match, in its own words.
    picture: right and wrong blocks as text. receipt: what the launch costs, on a pass, and details:
    its parts, to be unfolded. notes: more lines, such as progress. seed: what drew the fresh case,
    where that is the case that failed. title: in place of the stage's own. first: what may explain
    all of it, to be read before the rest. rule: what decided, a name in `RULES`; empty on a pass.
    launches: the answer's launches on the case that decided; () if there is nothing to draw.
    """

    passed: bool
    stage: str
    says: str
    diagnosis: str | None = None
    puzzle: str = ""
    case: str | None = None
    receipt: str | None = None
    details: str | None = None
    picture: str | None = None
    notes: tuple[str, ...] = ()
    seed: int | None = None
    title: str | None = None
    first: str | None = None
    rule: str = ""
    launches: tuple[Launch, ...] = field(default=(), compare=False, repr=False)

    @property
    def headline(self) -> str:
        """The first line."""
        mark = "✓" if self.passed else "·" if self.stage == "unsolved" else "✗"
        case = f" (case {self.case})" if self.case else ""
        return f"{mark} {self.puzzle}: {self.title or title_of(self.stage)}{case}"

    def __str__(self) -> str:
        parts = [self.first, self.diagnosis, self.says, self.picture, self.receipt, *self.notes]
        if self.rule and RULES[self.rule].story:
            parts.append(f"Rule `{self.rule}`: {address(self.rule)}")
        body = "\n".join(_indent(part) for part in parts if part)
        folded = f"\n\n{_indent(self.details)}" if self.details else ""
        return f"{self.headline}\n{body}{folded}"

    __repr__ = __str__  # what a notebook keeps as plain text


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def passed(answer: Answer) -> Verdict:
    puzzle = answer.puzzle
    cost, details = _receipt(answer)
    return Verdict(
        True,
        "passed",
        lesson(puzzle),
        puzzle=puzzle.name,
        receipt=cost,
        details=details,
        notes=tuple(_remarks(answer, details)),
        launches=answer.runs[0].launches,
    )


def lesson(puzzle: Puzzle) -> str:
    """The first sentence of what the rung explains."""
    flat = " ".join(puzzle.explain.split())
    end = flat.find(". ")
    return flat if end < 0 else flat[: end + 1]


def _receipt(answer: Answer) -> tuple[str | None, str | None]:
    """What the launches cost, and details: at production scale, or on the case that moves most."""
    puzzle = answer.puzzle
    if not puzzle.kernel:
        last = answer.runs[-1]
        if not last.launches:
            return None, None
        details = f"{receipt_text(last.launches, title=last.label)}\n{sentence('no_kernel')}"
        return line(puzzle, last.label, Cost(last.launches, ())), details
    ran = (
        f"values on {len(answer.runs)} case{'s' * (len(answer.runs) > 1)}",
        "compiled on this TPU" if on_tpu() else answer.ran["values"],
        f"TPU simulator ({answer.ran['simulator']})",
        "Mosaic lowering",
        *filter(None, [answer.ran.get("libtpu")]),
    )
    if puzzle.axes:
        run = max(answer.runs, key=lambda run: run.played.wire.seconds)
        told, rows = wire_line(run.label, run.played.wire), wire_rows(run.played.wire, _CHIP.name)
        return told, f"{receipt_text(run.launches, ran=ran, title=run.label)}\n{rows}".strip()
    if (scale := answer.scale) is not None:
        return line(puzzle, scale.label, scale.mine, scale.par), beside(scale, ran)
    largest = max(answer.runs, key=lambda run: sum(one.hbm_bytes for one in run.launches))
    told = line(puzzle, largest.label, Cost(largest.launches, ()))
    text = receipt_text(largest.launches, ran=ran, title=largest.label)
    return told, text


def _remarks(answer: Answer, details: str | None) -> Iterator[str]:
    """What is worth a sentence beside a pass; that nothing was launched stands in its details."""
    if not answer.puzzle.kernel:
        if details is None:
            yield sentence("no_kernel")
        return
    launches = [one for run in answer.runs for one in run.launches]
    if not on_tpu() and not all(one.settings.interpret for one in launches):
        yield sentence("interpret_left_out")
    if re.search(r"interpret\s*=\s*True\b", answer.code.text):
        yield sentence("interpret_always")


def line(puzzle: Puzzle, label: str, mine: Cost, par: Cost | None = None) -> str:
    """The number that the rung is about, and what bounds it: "At N=512: 6 steps; at least ..."."""
    plainly = f"{mine.steps:,} step{'s' * (mine.steps != 1)}, {amount(mine.bytes)} moved"
    told = _par(puzzle, mine, par or mine) or plainly
    return f"At {label}: {'; '.join(filter(None, (told, time_words(mine.launches, _CHIP))))}."


def beside(scale: Scale, ran: tuple[str, ...]) -> str:
    """Both costs as a table, of what is not zero; what is made outside only where it differs."""
    mine, par = scale.mine, scale.par
    made, theirs = (f"at most {size}" for size in amounts(mine.outside, par.outside))
    several = mine.steps > 1 or any(one.copies for one in mine.launches)
    rows: list[tuple[str, str, str]] = [
        (name, a, b)
        for name, worth, a, b in (
            ("grid", mine.grids != "()", mine.grids, par.grids),
            ("steps", mine.steps > 1, f"{mine.steps:,}", f"{par.steps:,}"),
            ("with dots", mine.with_dots, f"{mine.with_dots:,}", f"{par.with_dots:,}"),
            ("blocks", several, f"{mine.transfers:,} moved", f"{par.transfers:,} moved"),
            ("HBM", mine.bytes, *amounts(mine.bytes, par.bytes)),
            ("made outside", False, made, theirs),
            ("VMEM", mine.vmem, *amounts(mine.vmem, par.vmem)),
            ("SMEM", mine.smem, *amounts(mine.smem, par.smem)),
            ("FLOPs", mine.dots, scaled(mine.flops), scaled(par.flops)),
        )
        if worth or a != b
    ]
    if all(a == b for _, a, b in rows):
        rows = [("", "yours, and the reference's", ""), *((name, a, "") for name, a, _ in rows)]
    else:
        rows = [("", "yours", "reference"), *rows]
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{name:<{wide[0]}}  {a:<{wide[1]}}  {b}".rstrip() for name, a, b in rows]
    told = {
        "time": causes_words(mine.launches, _CHIP),
        "stored": stored(mine.launches),
        "ran": ", ".join(ran) if mine.steps > 1 else "",
    }
    lines += [f"{name:<{wide[0]}}  {text}" for name, text in told.items() if text]
    return "\n".join(lines)


def _par(puzzle: Puzzle, mine: Cost, par: Cost) -> str | None:
    """The number that the rung is about: 'dots in 36 of 64 steps (the reference: 28 of 64)'."""
    if puzzle.par is None:
        return None
    try:
        told, theirs = puzzle.par(*mine.launches), puzzle.par(*par.launches)
    except Exception:  # the author asks for operands that this launch does not have
        return None
    return f"{told} (the reference: {theirs})" if theirs and told != theirs else told
