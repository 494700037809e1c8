"""May it be run, and does it? Its launches can be read, are no longer than a rung's, and work in a
kernel: what is asked of a run before its numbers. A question gives a `Finding`, or None."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from puzzles._jax import Jaxpr, JaxprEqn
from puzzles._judge.answer import Answer, Run
from puzzles._judge.memory import blocks, faults_of_copies
from puzzles._judge.origin import equations_outside, line_of, where_made
from puzzles._judge.raised import learners_code, raised
from puzzles._program import equations, kernel_calls, longest_body, longest_loop, visited
from puzzles._rules import RULES, Finding, sentence

# What a puzzle's kernel and grid never need; XLA would compile or run them for minutes.
_EQUATIONS = 1000
_STEPS = 2000
_LISTED = 500_000
_TURNS = 1_000_000  # of a loop
_COPIES = 2000  # a kernel that goes outside with so many is not worth the wait
# So many operations a program may grow by from case to case, however few elements there are more.
_FEW = 50
NOT_RUN = RULES["large-grid"].title


def loops(run: Run) -> Finding | None:
    """It raises nothing while JAX traces it, and no loop in it takes hours."""
    turns = longest_loop(run.traced.jaxpr.jaxpr)
    return run.wrong("long-loop", turns=turns) if turns > _TURNS else None


def grids(run: Run) -> Finding | None:
    """Grids are counted before anything is listed for each of their steps."""
    with learners_code(run.label):
        launched = run.traced.grids
    for name, grid in launched:
        for axis, size in enumerate(grid):
            if size < 0:
                return run.wrong("negative-grid", grid=grid, name=name, size=size, axis=axis)
    largest = max((grid for _, grid in launched), key=math.prod, default=())
    if math.prod(largest) > _LISTED:
        return run.wrong("large-grid", grid=largest, steps=math.prod(largest))
    return None


def readable(run: Run) -> Finding | None:
    """Its launches can be read and counted, and have steps."""
    for one in run.launches:
        if one.times is None:
            return run.wrong("loop-of-launches", name=one.name)
        if not one.steps and len(one.aliases) < len(one.outputs):
            return run.wrong("empty-grid", grid=one.grid, name=one.name)
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
    """Nothing is run that would take minutes only to be wrong."""
    count = sum(one.steps * one.times for one in run.launches if one.times)
    found = blocks(run) if count > _STEPS else None
    if found is not None and found.rule == "out-of-bounds":
        return replace(found, title=NOT_RUN)
    return run.wrong("large-grid", form="together", steps=count) if count > 4 * _STEPS else None


def copies_fit(run: Run) -> Finding | None:
    """Both ends of a copy hold equally much, and of many none goes outside.

    JAX fails at others in words of its own, or passes.
    """
    for launch in run.launches:
        many = launch.log.cut or sum(copy.times for copy in launch.copies) > _COPIES
        for one in faults_of_copies(launch):
            if one.kind == "unequal":
                return run.wrong("unequal-copy", says=one.says)
            if one.kind == "outside" and many:
                return run.wrong("out-of-bounds", title=NOT_RUN, says=one.says)
    return None


# What a run is asked before it is run, however it is judged then.
MAY_RUN = (loops, grids, readable, body, steps, copies_fit)


def in_a_kernel(run: Run) -> Finding | None:
    """There is a kernel."""
    if run.launches:
        return None
    other = (*run.traced.other_kernels, "")[0]
    return run.wrong("no-kernel", form="other" if other else "", name=run.puzzle.name, other=other)


def asks_outside(run: Run) -> Finding | None:
    """No index map asks for `program_id`: the CPU answers, Mosaic refuses."""
    maps = (
        equation
        for call in kernel_calls(run.traced.jaxpr.jaxpr)
        for mapping in call.params["grid_mapping"].block_mappings
        for equation in equations(mapping.index_map_jaxpr.jaxpr)
    )
    asked = _asked(maps)
    return None if asked is None else run.wrong("map-asks", asked=asked)


def works_outside(run: Run) -> Finding | None:
    """The work is done in the kernel."""
    allowed = run.puzzle.outside
    outside = equations_outside(run.traced, allowed=tuple(allowed))
    if not outside:
        return None
    name, where = outside[0].primitive.name, where_made(outside[0])
    names = ", ".join(f"`{one}`" for one in allowed)
    more = sentence("allowed here", names=names) if names else ""
    return run.wrong("work-outside", name=name, where=where, more=more)


def runs(run: Run) -> Finding | None:
    """It raises nothing while it runs."""
    try:
        _ = run.flat
    except Exception as error:
        calls = kernel_calls(run.traced.jaxpr.jaxpr)
        asked = _asked(e for call in calls for e in _in_scopes(call.params["jaxpr"]))
        if asked:  # a TPU answers, the CPU cannot
            return run.wrong("scope-asks", asked=asked)
        return raised(error, run.label)
    return None


def _in_scopes(kernel: Jaxpr) -> Iterator[JaxprEqn]:
    for equation, path in visited(kernel):
        if any(outer.primitive.name == "run_scoped" for outer in path):
            yield equation


def _asked(some: Iterable[JaxprEqn]) -> str | None:
    """`program_id` or `num_programs`, if one of some equations asks."""
    names = (equation.primitive.name for equation in some)
    return next((name for name in names if name in ("program_id", "num_programs")), None)


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
