"""What each stage of a verdict looks for; a stage that fails raises `Rejected`."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from puzzles._jax import Jaxpr, JaxprEqn
from puzzles._judge import words
from puzzles._judge.again import Again
from puzzles._judge.case import Case, execute
from puzzles._judge.copied import copies_fit
from puzzles._judge.limits import learners_code, raised
from puzzles._judge.memory import memory_if_small
from puzzles._judge.outside import by_pipeline, line_of, work_outside
from puzzles._judge.rules import rule_of
from puzzles._judge.values import same_form, same_numbers
from puzzles._judge.verdict import Rejected
from puzzles._launch import (
    TURNS,
    Launch,
    Traced,
    equations,
    faults,
    kernel_calls,
    longest_body,
    longest_loop,
    trace_call,
    visited,
)
from puzzles._tpu import Compiler, compiled, lowered, supported_chips

# What a puzzle's kernel and grid never need; XLA would compile or run them for minutes.
_EQUATIONS = 1000
_STEPS = 2000
_LISTED = 500_000
# So many operations a program may grow by from case to case, however few elements there are more.
_FEW = 50
_NOT_RUN = "it was not run"
_PLAN = "the launch is not what this rung asks for"  # where only its plan was written


def trace(case: Case, fn: Callable) -> Traced:
    """`fn` as it runs on the case: it raises nothing, and its launches can be read."""
    args, _ = case.args, case.expected  # an author's own fault is not the learner's
    with learners_code(case.puzzle, case.label):
        traced = trace_call(case.judged(fn), *args)
    _loops(case, traced)
    with learners_code(case.puzzle, case.label):
        grids = traced.grids
    _grids(case, grids)
    with learners_code(case.puzzle, case.label):
        launches = traced.launches
    _size(case, longest_body(traced.jaxpr), launches)
    copies_fit(case.label, launches)
    return traced


def _loops(case: Case, traced: Traced) -> None:
    turns = longest_loop(traced.jaxpr.jaxpr)
    if turns > TURNS:
        why = f"A loop of {turns:,} turns would take hours. Count blocks, not elements."
        raise Rejected("long-loop", why, case=case.label, title=_NOT_RUN)


def _grids(case: Case, grids: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """Grids are counted before anything is listed for each of their steps."""
    for name, grid in grids:
        for axis, size in enumerate(grid):
            if size < 0:
                why = f"The grid {grid} of `{name}` has {size} steps on axis {axis}."
                raise Rejected(
                    "negative-grid", f"{why} It counts blocks.", case=case.label, title=_NOT_RUN
                )
    largest = max((grid for _, grid in grids), key=math.prod, default=())
    if math.prod(largest) > _LISTED:
        why = f"The grid {largest} has {math.prod(largest):,} steps. It counts blocks, not elements"
        says = f"{why}: divide the length of each axis by that of its block."
        raise Rejected("large-grid", says, case=case.label, title=_NOT_RUN)


def _size(case: Case, body: Sequence[JaxprEqn], launches: tuple[Launch, ...]) -> None:
    """Nothing is run that would take minutes only to be wrong."""
    for one in launches:
        if not one.steps and len(one.aliases) < len(one.outputs):
            why = f"The grid {one.grid} of `{one.name}` has no steps, so nothing is ever written."
            says = (
                f"{why} Which factor of it is 0? Where a block is longer than its axis, `//` gives "
                "0, and `pl.cdiv` gives 1."
            )
            raise Rejected("empty-grid", says, case=case.label, title=_NOT_RUN)
    if len(body) > _EQUATIONS:
        raise Rejected("grown-kernel", _grown(body), case=case.label, title=_NOT_RUN)
    steps = sum(one.steps * (one.times or 1) for one in launches)
    if steps <= _STEPS:
        return
    why = f"The grid has {steps:,} steps. It counts blocks, not elements."
    for fault in (f for one in launches for f in faults(one)):
        if fault.kind == "out-of-bounds":
            step = fault.step if len(launches) == 1 else None
            raise Rejected(
                rule_of(fault), f"{why} {fault.words}", case=case.label, step=step, title=_NOT_RUN
            )
    if steps > 4 * _STEPS:
        raise Rejected("large-grid", f"{why} Take larger blocks.", case=case.label, title=_NOT_RUN)


def _grown(body: Sequence[JaxprEqn]) -> str:
    grown = f"The kernel has grown to {len(body):,} operations"
    slots = sum(by_pipeline(equation) for equation in body)
    if 2 * slots > len(body):
        return (
            f"{grown}, {slots:,} of them by `emit_pipeline`: what it does for a slot is there once "
            "for each of its slots. Two or three hide what can be hidden."
        )
    line, often = Counter(map(line_of, body)).most_common(1)[0]
    by = f", {often:,} of them by `{line}`" if line else ""
    return f"{grown}{by}: a Python loop in a kernel is unrolled. Work on whole blocks at once."


def unrolled(listed: Sequence[Case], fn: Callable) -> None:
    """No Python loop goes through the elements of an array: `jax.jit` compiles each turn apart."""
    sizes = [_operations_and_elements(case, fn) for case in listed]
    (least, fewer), (most, more) = min(sizes), max(sizes)
    if most - least < max(_FEW, more - fewer):
        return
    says = (
        f"Its program has {most:,} operations, and {least:,} in the case "
        f"{listed[sizes.index((least, fewer))].label}: under `jax.jit` a Python loop is unrolled, "
        "one copy for each turn. Work on the whole array at once."
    )
    title = "a Python loop is unrolled"
    raise Rejected("unrolled", says, case=listed[sizes.index((most, more))].label, title=title)


def _operations_and_elements(case: Case, fn: Callable) -> tuple[int, int]:
    with learners_code(case.puzzle, case.label):
        traced = trace_call(case.judged(fn), *case.args)
    count = sum(1 for _ in equations(traced.jaxpr.jaxpr))
    return count, sum(math.prod(leaf.shape) for leaf in traced.leaves)


def pallas(case: Case, traced: Traced) -> None:
    """There is a kernel, and the work is done in it."""
    if not traced.launches:
        why = f"`{case.puzzle.name}` makes no `pallas_call`"
        if traced.other_kernels:
            why += (
                f". It launches `{traced.other_kernels[0]}` by `pl.kernel`, which cannot be judged "
                "here: launch the same body by `pl.pallas_call`, which this rung asks for."
            )
        else:
            why += ": the work has to be done in a kernel."
        raise Rejected("no-kernel", why, case=case.label)
    asked = _asked_by_index_maps(traced)
    if asked:
        raise Rejected(
            "map-asks",
            f"An index map calls `pl.{asked}`, which only the kernel can ask: the map gets the "
            "program ids as its arguments, one for each axis of the grid.",
            case=case.label,
        )
    outside = work_outside(traced.jaxpr, allowed=tuple(case.puzzle.outside))
    if outside:
        name, where = outside[0]
        free = "reshape, transpose, plain slices, padding, broadcasting and casts"
        if case.puzzle.outside:
            more = ", ".join(f"`{one}`" for one in case.puzzle.outside)
            free += f", and in this rung {more}"
        says = f"`{name}` works on the data outside the kernel{where}. Allowed outside are {free}, "
        says += "as far as they cost no more than the reference's; what else the spec asks for "
        says += "belongs in a kernel or its index maps."
        raise Rejected("work-outside", says, case=case.label)


_ASKS = ("program_id", "num_programs")


def _asked_by_index_maps(traced: Traced) -> str | None:
    """`program_id` or `num_programs`, if an index map asks: the CPU answers, Mosaic refuses."""
    for call in kernel_calls(traced.jaxpr.jaxpr):
        for mapping in call.params["grid_mapping"].block_mappings:
            if asked := _asked(mapping.index_map_jaxpr.jaxpr):
                return asked
    return None


def _asked_in_a_scope(traced: Traced) -> str | None:
    """What a kernel asks inside `run_scoped`, if it does: a TPU answers, the CPU cannot."""
    for call in kernel_calls(traced.jaxpr.jaxpr):
        for equation, path in visited(call.params["jaxpr"]):
            if equation.primitive.name in _ASKS and any(map(_is_scope, path)):
                return equation.primitive.name
    return None


def _is_scope(equation: JaxprEqn) -> bool:
    return equation.primitive.name == "run_scoped"


def _asked(jaxpr: Jaxpr) -> str | None:
    names = (inner.primitive.name for inner in equations(jaxpr))
    return next((name for name in names if name in _ASKS), None)


def numbers(case: Case, traced: Traced, again: Again) -> list[np.ndarray]:
    """It runs, and gives the spec's numbers, which are returned; again: as for a diagnosis."""
    try:
        flat = execute(traced)
    except Exception as error:
        asked = _asked_in_a_scope(traced)
        if asked:
            raise Rejected(
                "scope-asks",
                f"The CPU interpreter cannot answer `pl.{asked}` inside `pl.run_scoped`: ask at "
                "the top of the kernel, and use the number inside.",
                case=case.label,
            ) from None
        if words.unexplained(error):
            _first_unsafe(case, traced)
        raise raised(error, case.label) from None
    same_form(case, traced.out)
    same_numbers(case, flat, again, traced)
    return flat


def _first_unsafe(case: Case, traced: Traced) -> None:
    """Where the interpreter fails and names no line, the simulator may know the place."""
    try:
        memory_if_small(case, traced)
    except Rejected as rejected:
        found = rejected.verdict
        title = "memory is not used safely"
        raise Rejected(found.rule, found.says, case=case.label, title=title) from None


def work(case: Case, launches: tuple[Launch, ...]) -> None:
    """The launches cost what the puzzle's audit allows, and there are as many as it takes."""
    audit = case.puzzle.audit
    if audit is None:
        return
    reject = partial(Rejected, case=case.label, title=_PLAN if case.puzzle.launches else None)
    parameters = inspect.signature(audit).parameters
    extra = {"args": case.args} if "args" in parameters else {}
    wanted = len(parameters) - len(extra)
    looped = next((one.name for one in launches if one.times is None), None)
    if looped is not None:
        why = f"`{looped}` is launched in a loop whose length only running it tells."
        asked = f"This rung asks for {wanted} launch{'es' * (wanted != 1)} in all."
        raise reject("loop-of-launches", f"{why} {asked}")
    made = sum(one.times or 0 for one in launches)
    if made != wanted or len(launches) != wanted:
        counts = f"{made} launches where this rung asks for {wanted}"
        raise reject("launches", f"`{case.puzzle.name}` makes {counts}.")
    try:
        audit(*launches, **extra)
    except AssertionError as error:
        raise reject("audit", str(error)) from None
    except Exception as error:  # it looked for operands that the learner's launch does not have
        why = f"its operands or dots are of another form than expected ({error})"
        says = f"This rung cannot read your launch: {why}."
        raise reject("audit-unreadable", says) from None


def tpu(traces: Mapping[Case, Traced], compiler: Compiler | None) -> list[str]:
    """Block rules and Mosaic lowering on every case; with a compiler, libtpu on every one, too."""
    for case, traced in traces.items():
        seen = (f for one in traced.launches for f in faults(one) if f.kind == "misaligned")
        for finding in (*seen, *lowered(traced)):
            raise Rejected(finding.kind, finding.words, case=case.label)
    if compiler is None:
        return ["Mosaic lowering"]
    for number, finding in compiled(list(traces.values()), compiler):
        raise Rejected("compile", finding.words, case=list(traces)[number].label)
    return ["Mosaic lowering", f"libtpu for {', '.join(supported_chips())}"]
