"""What each stage of a verdict looks for; a stage that fails raises `Rejected`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from puzzles import _faults, _launch, _source, _tpu, _values, _words
from puzzles._jax import Jaxpr
from puzzles._launch import Launch
from puzzles._numbers import same_form, same_numbers
from puzzles._outside import work_outside
from puzzles._puzzle import Puzzle
from puzzles._trace import Traced, equations, kernel_calls, kernel_size, subjaxprs, trace_call
from puzzles._verdict import Rejected

# What a puzzle's kernel and grid never need; XLA would compile or run them for minutes.
_EQUATIONS = 1000
_STEPS = 2000


@dataclass(frozen=True)
class Run:
    """One case of a kernel rung: its arguments, its trace and its launches."""

    case: int
    label: str
    args: tuple
    traced: Traced
    launches: tuple[Launch, ...]


def trace(puzzle: Puzzle, fn: Callable, case: int, label: str, seed: int) -> Run:
    args = _values.arguments(puzzle, case, seed)
    plain = fn
    if hasattr(fn, "__wrapped__"):  # a jitted function would answer from its own trace cache
        plain = fn.__wrapped__
    try:
        traced = trace_call(_values.observed(puzzle, plain), *args)
    except Exception as error:
        raise raised(error, label) from None
    try:
        run = Run(case, label, args, traced, _launch.launches(traced))
    except _launch.Abstract as error:
        raise Rejected("error", str(error), case=label) from None
    _size(run)
    return run


def _size(run: Run) -> None:
    """Nothing is run that would take minutes only to be wrong."""
    count = kernel_size(run.traced.jaxpr)
    if count > _EQUATIONS:
        grown = f"The kernel has grown to {count:,} operations"
        why = f"{grown}: a Python loop in a kernel is unrolled. Work on whole blocks at once."
        raise Rejected("work", why, case=run.label)
    steps = sum(one.steps * (one.times or 1) for one in run.launches)
    if steps <= _STEPS:
        return
    why = f"The grid has {steps:,} steps. It counts blocks, not elements."
    for fault in (f for one in run.launches for f in _faults.faults(one)):
        if fault.kind == "out of bounds":
            raise Rejected(
                "memory", f"{why} {fault.says}", case=run.label, step=step_ids(run, fault)
            )
    if steps > 10 * _STEPS:
        raise Rejected("work", f"{why} Take larger blocks.", case=run.label)


def raised(error: Exception, label: str) -> Rejected:
    """A rejection for the learner's exception."""
    return Rejected("error", _words.told(error), case=label)


def pallas(puzzle: Puzzle, run: Run) -> None:
    if not run.launches:
        raise Rejected(
            "pallas",
            f"`{puzzle.name}` makes no `pallas_call`: the work has to be done in a kernel.",
        )
    asked = _asked_by_index_maps(run)
    if asked:
        raise Rejected(
            "error",
            f"An index map calls `pl.{asked}`, which only the kernel can ask: the map gets the "
            "program ids as its arguments, one for each axis of the grid.",
            case=run.label,
        )
    outside = work_outside(run.traced.jaxpr, allowed=tuple(puzzle.outside))
    if outside:
        name, line = outside[0]
        where = f": `{line}`" if line else ""
        raise Rejected(
            "pallas",
            f"`{name}` works on the data outside the kernel{where}. Allowed outside are reshape, "
            "transpose, plain slices, padding, broadcasting and casts; arithmetic and reordering "
            "belong in the kernel or its index maps.",
        )


def _asked_by_index_maps(run: Run) -> str | None:
    """`program_id` or `num_programs`, if an index map asks: the CPU answers, Mosaic refuses."""
    for call in kernel_calls(run.traced.jaxpr.jaxpr):
        for mapping in call.params["grid_mapping"].block_mappings:
            if asked := _asked(mapping.index_map_jaxpr.jaxpr):
                return asked
    return None


def _asked_in_a_scope(run: Run) -> str | None:
    """The same, if a kernel asks inside `run_scoped`: a TPU answers, the CPU cannot."""
    for call in kernel_calls(run.traced.jaxpr.jaxpr):
        for scope in _scopes(call.params["jaxpr"]):
            if asked := _asked(scope):
                return asked
    return None


def _scopes(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    for equation in jaxpr.eqns:
        for inner in subjaxprs(equation):
            if equation.primitive.name == "run_scoped":
                yield inner
            yield from _scopes(inner)


def _asked(jaxpr: Jaxpr) -> str | None:
    names = (inner.primitive.name for inner in equations(jaxpr))
    return next((name for name in names if name in ("program_id", "num_programs")), None)


def numbers(puzzle: Puzzle, run: Run, seed: int) -> None:
    try:
        flat = _values.execute(run.traced)
    except Exception as error:
        asked = _asked_in_a_scope(run)
        if asked:
            raise Rejected(
                "error",
                f"The CPU interpreter cannot answer `pl.{asked}` inside `pl.run_scoped`: ask at "
                "the top of the kernel, and use the number inside.",
                case=run.label,
            ) from None
        raise raised(error, run.label) from None
    same_form(puzzle, run.traced.out, run.case, run.label, seed)
    same_numbers(puzzle, flat, run.case, run.label, seed, run.launches)


def old_notebook(puzzle: Puzzle, fn: Callable) -> str | None:
    """What to say if the notebook holds another spec than this version of the puzzles."""
    if _source.same_spec(puzzle, fn):
        return None
    return (
        f"`{puzzle.spec.__name__}` in your notebook is not the one that this version checks "
        "against: take the newest notebook, or the version of the puzzles that yours came with."
    )


def step_ids(run: Run, fault: _faults.Fault) -> tuple[int, ...] | None:
    """The program ids of the step that a fault names."""
    if fault.step is None or len(run.launches) != 1:
        return None
    return tuple(int(n) for n in run.launches[0].program_ids[fault.step])


def audit(puzzle: Puzzle, launches: tuple[Launch, ...], label: str, args: tuple) -> None:
    """The launches cost what the puzzle's audit allows, and there are as many as it takes."""
    if puzzle.audit is None:
        return
    parameters = inspect.signature(puzzle.audit).parameters
    extra = {"args": args} if "args" in parameters else {}
    wanted = len(parameters) - len(extra)
    looped = next((one.name for one in launches if one.times is None), None)
    if looped is not None:
        why = f"`{looped}` is launched in a loop whose length only running it tells."
        asked = f"This rung asks for {wanted} launch{'es' * (wanted != 1)} in all."
        raise Rejected("work", f"{why} {asked}", case=label)
    made = sum(one.times or 0 for one in launches)
    if made != wanted or len(launches) != wanted:
        counts = f"{made} launches where this rung asks for {wanted}"
        raise Rejected("work", f"`{puzzle.name}` makes {counts}.", case=label)
    try:
        puzzle.audit(*launches, **extra)
    except AssertionError as error:
        raise Rejected("work", str(error), case=label) from None
    except Exception as error:  # it looked for operands that the learner's launch does not have
        why = f"its operands or dots are of another form than expected ({error})"
        raise Rejected("work", f"This rung cannot read your launch: {why}.", case=label) from None


def tpu(runs: list[Run], compiler: _tpu.Compiler | None) -> list[str]:
    """Block rules and Mosaic lowering on every case; with a compiler, libtpu on the first."""
    for run in runs:
        for fault in (f for one in run.launches for f in _faults.faults(one)):
            if fault.kind == "misaligned":
                raise Rejected("tpu", fault.says, case=run.label)
        try:
            _tpu.lower(run.traced)
        except _tpu.LoweringError as error:
            raise Rejected("tpu", error.says, case=run.label) from None
    ran = ["Mosaic lowering"]
    if compiler is not None:
        for run in runs:
            refused = {c: why for c, why in compiler.compile(run.traced).items() if why}
            if refused:
                chip, why = next(iter(refused.items()))
                raise Rejected("tpu", f"The compiler for {chip} refuses it: {why}", case=run.label)
        ran.append(f"libtpu for {', '.join(_tpu.supported_chips())}")
    return ran
