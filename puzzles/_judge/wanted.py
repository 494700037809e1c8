"""Is the result, and is the launch, what the rung wants? Form, numbers, roundings; its audit, and
its costs beside the reference's at production scale."""

from __future__ import annotations

import inspect
import math
from typing import Any

import jax
import numpy as np

from puzzles._judge.accuracy import foreign
from puzzles._judge.answer import Answer, Run
from puzzles._judge.costs import Scale, at_scale
from puzzles._judge.memory import rule_of
from puzzles._judge.numbers import number_words
from puzzles._launch import faults
from puzzles._rules import Finding, sentence


def accepted(run: Run) -> Finding | None:
    """The rung's author takes the result, where it is the author who says what is right."""
    if run.puzzle.accepts is None:
        return None
    if run.result is None:
        return run.wrong("none", name=run.puzzle.name)
    try:
        run.puzzle.accepts(run.result, *run.case.args)
    except AssertionError as error:
        return run.wrong("not-accepted", says=str(error))
    return None


def same_form(run: Run) -> Finding | None:
    """The result's structure, shapes and dtypes are the spec's."""
    puzzle = run.puzzle
    if puzzle.accepts is not None:
        return None
    out, want = run.traced.out if puzzle.kernel else run.result, run.case.expected
    if out is None:
        return run.wrong("none", name=puzzle.name)
    if jax.tree.structure(out) != jax.tree.structure(want):
        return run.wrong("structure", name=puzzle.name, got=_form(out), expected=_form(want))
    shapes, wanted = ([np.shape(x) for x in jax.tree.leaves(tree)] for tree in (out, want))
    if shapes != wanted and sorted(shapes) == sorted(wanted):
        expected, got = (" and ".join(map(str, some)) for some in (wanted, shapes))
        return run.wrong("order", expected=expected, got=got)
    look = sentence("look at the shape") if puzzle.kernel else ""
    for mine, theirs in zip(jax.tree.leaves(out), jax.tree.leaves(want), strict=True):
        mine = mine if hasattr(mine, "shape") else np.asarray(mine)
        for what in ("shape", "dtype"):
            a, b = getattr(mine, what), getattr(theirs, what)
            if a != b:
                return run.wrong(what, expected=b, got=a, look=look)
    return None


def _form(tree: Any) -> str:
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "one array" if hasattr(tree, "shape") else f"a {type(tree).__name__}"


def same_numbers(run: Run) -> Finding | None:
    """The result's numbers are the spec's; and if not, which block the first wrong one is in."""
    if run.puzzle.accepts is not None or run.differs is None:
        return None
    position, want, wrong = run.mismatch
    said = ""
    if (place := run.place) is not None and place.launch.grid:
        block, operand = place.block, place.operand
        holding = np.flatnonzero((operand.blocks == np.asarray(block)).all(axis=1))
        held = "held last" if len(holding) else "held by none"
        step = place.launch.at(holding[-1]) if len(holding) else None
        said = sentence(held, block=block, name=operand.name, step=step)
    return run.wrong(
        "numbers",
        count=int(wrong.wrong.sum()),
        size=want.size,
        which=run.case.which(position),
        index=list(wrong.first),
        expected=number_words(wrong.expected),
        got=number_words(wrong.got),
        place=said,
    )


def audit(run: Run) -> Finding | None:
    """The launches cost what the puzzle's audit allows, and there are as many as it takes."""
    puzzle, ask = run.puzzle, run.puzzle.audit
    if ask is None:
        return None
    parameters = inspect.signature(ask).parameters
    extra = {"args": run.case.args} if "args" in parameters else {}
    # Where only a launch's plan was written, the numbers are no matter.
    title = sentence("not what is asked") if puzzle.launches else None
    made, wanted = sum(one.times or 0 for one in run.launches), len(parameters) - len(extra)
    if made != wanted or len(run.launches) != wanted:
        return run.wrong("launches", title=title, name=puzzle.name, made=made, wanted=wanted)
    try:
        ask(*run.launches, **extra)
    except AssertionError as error:
        return run.wrong("audit", title=title, says=str(error))
    except Exception as error:  # it looked for operands that the learner's launch does not have
        return run.wrong("audit-unreadable", title=title, error=error)
    return None


def at_production_scale(answer: Answer) -> list[Scale]:
    """The answer beside the reference, where the rung has a production shape."""
    answer.scale = at_scale(answer.puzzle, answer.code.runs)
    return [] if answer.scale is None else [answer.scale]


def blocks(scale: Scale) -> Finding | None:
    """There, too, all blocks are there, and those of results are written."""
    for fault in (f for one in scale.mine.launches for f in faults(one)):
        return scale.wrong(rule_of(fault), says=fault.words)
    return None


def rounds(scale: Scale) -> Finding | None:
    """Nothing is rounded that the reference keeps."""
    for dot in scale.mine.dots if not scale.par.dots else ():
        sums = math.prod(dot.lhs) * math.prod(dot.rhs) > math.prod(dot.out)  # others Mosaic refuses
        if dot.rounds and sums:  # there a dot stands for a sum or a product in f32
            where = f"`{dot.line}`" if dot.line else "a dot"
            return scale.wrong("rounds-on-the-way", "dot", who=where)
    for one in foreign(scale.mine.narrowings, scale.par.narrowings):
        return scale.wrong(one.rule, one.form, **one.facts)
    return None
