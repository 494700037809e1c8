"""A verdict as data and text; on a pass the lesson, the costs next to the reference's, notes."""

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
from puzzles._launch import Launch, single_slots
from puzzles._puzzle import Puzzle
from puzzles._receipt import amount, amounts, causes_words, receipt_text, scaled, stored, time_words
from puzzles._rules import RULES, address, plural, sentence, title_of
from puzzles._simulator import Wire

_CHIP = CHIPS["v5e"]


@dataclass(frozen=True)
class Verdict:
    """The result of `judge`: a pass, or the first finding; `str()` has the whole text.

    says: the place, the fault and the remedy. diagnosis: the message of the known mistake that
    gives the same numbers. picture: right and wrong blocks as text.
    receipt: on a pass, the cost of the launch; details: its parts, folded in a notebook.
    notes: more lines, such as progress. seed: of the random case, if the answer fails it.
    title: replaces the title of the stage. first: the likely cause, shown before the rest.
    rule: the name of the broken rule in `RULES`; "" on a pass.
    launches: the answer's launches on the case that decided; () if there is nothing to draw.
    wire: the traffic between devices on this case, up to a hazard; None on one device.
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
    wire: Wire | None = field(default=None, compare=False, repr=False)

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

    __repr__ = __str__  # the plain text in a notebook


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
        wire=answer.runs[0].wire,
    )


def lesson(puzzle: Puzzle) -> str:
    """The first sentence of the puzzle's `explain`."""
    flat = " ".join(puzzle.explain.split())
    end = flat.find(". ")
    return flat if end < 0 else flat[: end + 1]


def _receipt(answer: Answer) -> tuple[str | None, str | None]:
    """The cost of the launches, and details: at the production shape, or on the largest case."""
    puzzle = answer.puzzle
    if not puzzle.kernel:
        last = answer.runs[-1]
        if not last.launches:
            return None, None
        details = f"{receipt_text(last.launches, title=last.label)}\n{sentence('no_kernel')}"
        return line(puzzle, last.label, Cost(last.launches, ())), details
    ran = (
        f"values on {plural(len(answer.runs), 'case')}",
        "compiled on this TPU" if on_tpu() else answer.ran["values"],
        f"TPU simulator ({answer.ran['simulator']})",
        "Mosaic lowering",
        *filter(None, [answer.ran.get("libtpu")]),
    )
    if puzzle.axes:
        run = max(answer.runs, key=lambda run: run.played.wire.seconds)
        text, rows = wire_line(run.label, run.played.wire), wire_rows(run.played.wire, _CHIP.name)
        return text, f"{receipt_text(run.launches, ran=ran, title=run.label)}\n{rows}".strip()
    if (scale := answer.scale) is not None:
        return line(puzzle, scale.label, scale.answer, scale.par), beside(scale, ran)
    largest = max(answer.runs, key=lambda run: sum(launch.hbm_bytes for launch in run.launches))
    summary = line(puzzle, largest.label, Cost(largest.launches, ()))
    text = receipt_text(largest.launches, ran=ran, title=largest.label)
    return summary, text


def _remarks(answer: Answer, details: str | None) -> Iterator[str]:
    """Yield notes on a pass. The details, if there are some, say that nothing was launched."""
    if re.search(r"\bnan_to_num\b", answer.code.text):
        yield sentence("hides_nan")
    if not answer.puzzle.kernel:
        if details is None:
            yield sentence("no_kernel")
        return
    launches = [launch for run in answer.runs for launch in run.launches]
    if not on_tpu() and not all(launch.settings.interpret for launch in launches):
        yield sentence("interpret_left_out")
    if re.search(r"interpret\s*=\s*True\b", answer.code.text):
        yield sentence("interpret_always")
    run = answer.runs[0]
    names = [name for launch in run.launches for name in single_slots(launch)]
    if names and not any(map(single_slots, run.case.reference.launches)):
        yield sentence("one_buffer", name=names[0])


def line(puzzle: Puzzle, label: str, cost: Cost, par: Cost | None = None) -> str:
    """The headline metric of the puzzle, and a bound: "At N=512: 6 steps; at least ..."."""
    plainly = f"{plural(cost.steps, 'step')}, {amount(cost.bytes)} moved"
    metric = _par(puzzle, cost, par or cost) or plainly
    return f"At {label}: {'; '.join(filter(None, (metric, time_words(cost.launches, _CHIP))))}."


def beside(scale: Scale, ran: tuple[str, ...]) -> str:
    """Both costs as a table, without rows of zeros; "made outside" only if it differs."""
    cost, par = scale.answer, scale.par
    outside, theirs = (f"at most {size}" for size in amounts(cost.outside, par.outside))
    several = cost.steps > 1 or any(launch.copies for launch in cost.launches)
    rows: list[tuple[str, str, str]] = [
        (name, a, b)
        for name, worth, a, b in (
            ("grid", cost.grids != "()", cost.grids, par.grids),
            ("steps", cost.steps > 1, f"{cost.steps:,}", f"{par.steps:,}"),
            ("with dots", cost.with_dots, f"{cost.with_dots:,}", f"{par.with_dots:,}"),
            ("blocks", several, f"{cost.transfers:,} moved", f"{par.transfers:,} moved"),
            ("HBM", cost.bytes, *amounts(cost.bytes, par.bytes)),
            ("made outside", False, outside, theirs),
            ("VMEM", cost.vmem, *amounts(cost.vmem, par.vmem)),
            ("SMEM", cost.smem, *amounts(cost.smem, par.smem)),
            ("FLOPs", cost.dots, scaled(cost.flops), scaled(par.flops)),
        )
        if worth or a != b
    ]
    if all(a == b for _, a, b in rows):
        rows = [("", "yours, and the reference's", ""), *((name, a, "") for name, a, _ in rows)]
    else:
        rows = [("", "yours", "reference"), *rows]
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{name:<{wide[0]}}  {a:<{wide[1]}}  {b}".rstrip() for name, a, b in rows]
    texts = {
        "time": causes_words(cost.launches, _CHIP),
        "stored": stored(cost.launches),
        "ran": ", ".join(ran) if cost.steps > 1 else "",
    }
    lines += [f"{name:<{wide[0]}}  {text}" for name, text in texts.items() if text]
    return "\n".join(lines)


def _par(puzzle: Puzzle, cost: Cost, par: Cost) -> str | None:
    """The headline metric: 'dots in 36 of 64 steps (the reference: 28 of 64)'; or None."""
    if puzzle.par is None:
        return None
    try:
        metric, theirs = puzzle.par(*cost.launches), puzzle.par(*par.launches)
    except Exception:  # `par` may need operands that this launch lacks
        return None
    return f"{metric} (the reference: {theirs})" if theirs and metric != theirs else metric
