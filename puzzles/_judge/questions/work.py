"""Questions of stage `work`: is a kernel as short, and does it cost as little, as it should?"""

from __future__ import annotations

import inspect
import math
from collections import Counter

from puzzles._judge.accuracy import foreign
from puzzles._judge.answer import Answer, Run
from puzzles._judge.costs import Scale, at_scale
from puzzles._judge.origin import line_of
from puzzles._judge.questions.memory import MANY_STEPS
from puzzles._program import equations, longest_body, longest_loop
from puzzles._rules import Finding, sentence

# What a puzzle's kernel and grid never need; XLA would compile or run them for minutes.
_EQUATIONS = 1000
_LISTED = 500_000
_TURNS = 1_000_000  # of a loop
# So many operations a program may grow by from case to case, however few elements there are more.
_FEW = 50


def loops(run: Run) -> Finding | None:
    """It raises nothing while JAX traces it, and no loop in it takes hours."""
    turns = longest_loop(run.traced.jaxpr.jaxpr)
    return run.wrong("long-loop", turns=turns) if turns > _TURNS else None


def grids(run: Run) -> Finding | None:
    """Grids are counted before anything is listed for each of their steps."""
    largest = max((grid for _, grid in run.traced.grids), key=math.prod, default=())
    if math.prod(largest) > _LISTED:
        return run.wrong("large-grid", grid=largest, steps=math.prod(largest))
    return None


def counted(run: Run) -> Finding | None:
    """Every launch runs a known number of times."""
    for launch in run.launches:
        if launch.times is None:
            return run.wrong("loop-of-launches", name=launch.name)
    return None


def body(run: Run) -> Finding | None:
    """No kernel is unrolled into more operations than a compiler takes."""
    made = longest_body(run.traced.jaxpr)
    if len(made) <= _EQUATIONS:
        return None
    line, often = Counter(map(line_of, made)).most_common(1)[0]
    form = "line" if line else ""
    return run.wrong("grown-kernel", form=form, count=len(made), often=often, line=line)


def steps(run: Run) -> Finding | None:
    """The launches together have no more steps than a puzzle needs."""
    count = sum(one.steps * one.times for one in run.launches if one.times)
    many = count > 4 * MANY_STEPS
    return run.wrong("large-grid", form="together", steps=count) if many else None


def unrolled(answer: Answer) -> Finding | None:
    """No Python loop goes through the elements of an array: `jax.jit` compiles each turn apart."""
    if not answer.puzzle.jit:
        return None
    sizes = [_operations_and_elements(run) for run in answer.runs]
    (least, fewer), (most, more) = min(sizes), max(sizes)
    if most - least < max(_FEW, more - fewer):
        return None
    here, other = (answer.runs[sizes.index(one)] for one in ((most, more), (least, fewer)))
    return here.wrong("unrolled", most=most, least=least, other=other.label)


def _operations_and_elements(run: Run) -> tuple[int, int]:
    count = sum(1 for _ in equations(run.traced.jaxpr.jaxpr))
    return count, sum(math.prod(leaf.shape) for leaf in run.traced.leaves)


def audit(run: Run) -> Finding | None:
    """The launches cost what the puzzle's audit allows, and there are as many as it takes."""
    puzzle, ask = run.puzzle, run.puzzle.audit
    if ask is None:
        return None
    parameters = inspect.signature(ask).parameters
    known = {"args": lambda: run.case.args, "wire": lambda: run.played.wire}
    extra = {name: give() for name, give in known.items() if name in parameters}
    # Where only a launch's plan was written, the numbers are no matter.
    title = sentence("not_what_is_asked") if puzzle.launches else None
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
