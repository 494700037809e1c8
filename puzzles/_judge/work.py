"""Is the launch what the rung asks for, and does it cost no more than the reference's?"""

from __future__ import annotations

import inspect

from puzzles._judge.accuracy import foreign
from puzzles._judge.answer import Answer, Run
from puzzles._judge.costs import Scale, at_scale, excesses
from puzzles._judge.verdict import rule_of
from puzzles._launch import Launch, faults
from puzzles._rules import Finding, sentence


def audit(run: Run) -> Finding | None:
    """The launches cost what the puzzle's audit allows, and there are as many as it takes."""
    puzzle, ask = run.puzzle, run.puzzle.audit
    if ask is None or not (puzzle.kernel or puzzle.launches):
        return None
    parameters = inspect.signature(ask).parameters
    extra = {"args": run.case.args} if "args" in parameters else {}
    # Where only a launch's plan was written, the numbers are no matter.
    title = sentence("not what is asked") if puzzle.launches else None
    return _counted(run, run.launches, len(parameters) - len(extra), title) or _asked(
        run, extra, title
    )


def _counted(
    run: Run, launches: tuple[Launch, ...], wanted: int, title: str | None
) -> Finding | None:
    looped = next((one.name for one in launches if one.times is None), None)
    if looped is not None:
        asked = f"{wanted} launch{'es' * (wanted != 1)}"
        return run.wrong("loop-of-launches", title=title, name=looped, wanted=asked)
    made = sum(one.times or 0 for one in launches)
    if made != wanted or len(launches) != wanted:
        return run.wrong("launches", title=title, name=run.puzzle.name, made=made, wanted=wanted)
    return None


def _asked(run: Run, extra: dict, title: str | None) -> Finding | None:
    assert run.puzzle.audit is not None
    try:
        run.puzzle.audit(*run.launches, **extra)
    except AssertionError as error:
        return run.wrong("audit", title=title, says=str(error))
    except Exception as error:  # it looked for operands that the learner's launch does not have
        return run.wrong("audit-unreadable", title=title, error=error)
    return None


def at_production_scale(answer: Answer) -> list[tuple[Answer, Scale]]:
    """The answer beside the reference, where the rung has a production shape."""
    answer.scale = at_scale(answer.puzzle, answer.fn)
    return [] if answer.scale is None else [(answer, answer.scale)]


def blocks(both: tuple[Answer, Scale]) -> Finding | None:
    """There, too, all blocks are there, and those of results are written."""
    _, scale = both
    for fault in (f for one in scale.mine.launches for f in faults(one)):
        return scale.wrong(rule_of(fault), says=fault.words)
    return None


def rounds(both: tuple[Answer, Scale]) -> Finding | None:
    """Nothing is rounded that the reference keeps."""
    _, scale = both
    for dot in scale.mine.dots if not scale.par.dots else ():
        if dot.rounds:  # there a dot stands for a sum or a product in f32
            where = f"`{dot.line}`" if dot.line else "a dot"
            return scale.wrong("rounds-on-the-way", "dot", who=where)
    for one in foreign(scale.mine.narrowings, scale.par.narrowings):
        return scale.wrong(one.rule, one.form, **one.facts)
    return None


def dearer(both: tuple[Answer, Scale]) -> Finding | None:
    """No cost is above the reference's by more than its slack."""
    answer, scale = both
    return next(excesses(scale, answer.puzzle.slack), None)
