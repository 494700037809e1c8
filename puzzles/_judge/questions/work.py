"""Questions of stage `work`: is the program small enough, and is its cost low enough?"""

from __future__ import annotations

import inspect
import math
from collections import Counter

from puzzles._judge.accuracy import foreign
from puzzles._judge.answer import Answer, Run
from puzzles._judge.costs import Scale, at_scale, smaller
from puzzles._judge.exceptions import RejectedError
from puzzles._judge.origin import source_text
from puzzles._judge.questions.memory import MANY_STEPS
from puzzles._launch import Traced
from puzzles._program import equations, longest_body, longest_loop
from puzzles._rules import Breach, plural, sentence

# Limits that no puzzle needs; beyond them XLA compiles or runs for minutes.
_EQUATIONS = 1000
_LISTED = 500_000
_TURNS = 1_000_000  # of a loop
# operations by which a program may always grow from case to case
_FEW = 50


def loops(run: Run) -> Breach | None:
    """Require that JAX traces the answer, and that no loop takes hours."""
    turns = longest_loop(run.traced.jaxpr.jaxpr)
    return run.wrong("long-loop", turns=turns) if turns > _TURNS else None


def grids(run: Run) -> Breach | None:
    """Require, before the blocks of each step are listed, that no grid is too large."""
    largest = max((grid for _, grid in run.traced.grids), key=math.prod, default=())
    if math.prod(largest) > _LISTED:
        return run.wrong("large-grid", grid=largest, steps=math.prod(largest))
    return None


def counted(run: Run) -> Breach | None:
    """Require that every launch runs a known number of times."""
    for launch in run.launches:
        if launch.times is None:
            return run.wrong("loop-of-launches", name=launch.name)
    return None


def body(run: Run) -> Breach | None:
    """Require that no kernel is unrolled into too many operations for a compiler."""
    return _grown(run.traced, run.label)


def _grown(traced: Traced, label: str) -> Breach | None:
    operations = longest_body(traced.jaxpr)
    if len(operations) <= _EQUATIONS:
        return None
    line, often = Counter(map(source_text, operations)).most_common(1)[0]
    facts = {"count": len(operations), "often": often, "line": line}
    return Breach("grown-kernel", facts, label, form="line" if line else "")


def steps(run: Run) -> Breach | None:
    """Require that the launches together have no more steps than a puzzle needs."""
    count = sum(launch.steps * launch.times for launch in run.launches if launch.times)
    many = count > 4 * MANY_STEPS
    return run.wrong("large-grid", form="together", steps=count) if many else None


def unrolled(answer: Answer) -> Breach | None:
    """Require that no Python loop iterates over an array: `jax.jit` compiles each iteration."""
    if not answer.puzzle.jit:
        return None
    sizes = [_operations_and_elements(run) for run in answer.runs]
    (least, fewer), (most, more) = min(sizes), max(sizes)
    if most - least < max(_FEW, more - fewer):
        return None
    large, small = (answer.runs[sizes.index(size)] for size in ((most, more), (least, fewer)))
    return large.wrong("unrolled", most=most, least=least, other=small.label)


def _operations_and_elements(run: Run) -> tuple[int, int]:
    count = sum(1 for _ in equations(run.traced.jaxpr.jaxpr))
    return count, sum(math.prod(leaf.shape) for leaf in run.traced.leaves)


def audit(run: Run) -> Breach | None:
    """Require launches that pass the puzzle's audit, as many as it has parameters."""
    puzzle, ask = run.puzzle, run.puzzle.audit
    if ask is None:
        return None
    parameters = inspect.signature(ask).parameters
    optional = {"args": lambda: run.case.args, "wire": lambda: run.played.wire}
    extra = {name: give() for name, give in optional.items() if name in parameters}
    # A puzzle about a launch's configuration has no numbers to mention.
    title = sentence("not_what_is_asked") if puzzle.launches else None
    count, right = sum(launch.times or 0 for launch in run.launches), len(parameters) - len(extra)
    if count != right or len(run.launches) != right:
        made = plural(count, "launch")
        return run.wrong("launches", title=title, name=puzzle.name, made=made, wanted=right)
    try:
        ask(*run.launches, **extra)
    except AssertionError as error:
        return run.wrong("audit", title=title, says=str(error))
    except Exception as error:  # it needs operands that the learner's launch lacks
        return run.wrong("audit-unreadable", title=title, error=error)
    return None


def at_production_scale(answer: Answer) -> list[Scale]:
    """The answer next to the reference at the production shape; [] if there is none.

    A kernel that grows from case to case is traced at a smaller shape first: the trace of a Python
    loop over the blocks of a production shape would take minutes.
    """
    if len({len(longest_body(run.traced.jaxpr)) for run in answer.runs}) > 1:
        parts = smaller(answer.puzzle, answer.code.runs)
        lengths = [len(longest_body(traced.jaxpr)) for _, traced in parts]
        if parts and lengths[1] > 1.5 * lengths[0] > 0:
            label, traced = parts[1]
            if finding := _grown(traced, label):
                raise RejectedError(finding)
    answer.scale = at_scale(answer.puzzle, answer.code.runs)
    return [] if answer.scale is None else [answer.scale]


def rounds(scale: Scale) -> Breach | None:
    """Require, at the production shape, no roundings that the reference avoids."""
    for dot in scale.answer.dots if not scale.par.dots else ():
        sums = math.prod(dot.lhs) * math.prod(dot.rhs) > math.prod(
            dot.out
        )  # Mosaic rejects other dots
        if dot.rounds and sums:  # a dot instead of a sum or a product in f32
            where = f"`{dot.line}`" if dot.line else "a dot"
            return scale.wrong("rounds-on-the-way", "dot", who=where)
    for finding in foreign(scale.answer.narrowings, scale.par.narrowings):
        return scale.wrong(finding.rule, finding.form, **finding.facts)
    return None
