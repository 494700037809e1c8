"""The examination itself: every finder on every launch, the worst findings first."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._compile import (
    CHIPS,
    Compiler,
    CompilerMissingError,
    compiled,
    compiled_as_traced,
    known_to_fit,
    lowered,
    on_chip,
    on_shared_cores,
    room,
)
from puzzles._examine.examination import Examination
from puzzles._examine.ignores import without_ignored
from puzzles._judge import equations_outside, message_of, unwrap, wire_receipt
from puzzles._launch import (
    ERROR,
    NOTE,
    SEVERITIES,
    WARNING,
    Finding,
    Launch,
    Traced,
    faults,
    line_of,
    nothing_launched,
    program_of,
    revisited_inside,
    told,
    trace_call,
    waste,
)
from puzzles._program import (
    OTHER_KERNELS,
    UnreadableError,
    devices_called,
    equations,
    for_gpus,
    kernel_calls,
    runs_in_python,
)
from puzzles._receipt import many_steps
from puzzles._rules import sentence
from puzzles._simulator import on_mesh, sanitize, speaks

under_way: list[Any] = []  # functions under examination: `examining` skips their launches


def examine(
    fn: Callable, *args: object, chips: Sequence[str] = ("v5e",), seed: int = 0,
    compile_timeout: float = 120,
) -> Examination:  # fmt: skip
    """Return errors and risks in the launches of `fn(*args)`, without a reference and a TPU.

    fn: any callable. args: arrays, or `jax.ShapeDtypeStruct`s, which are replaced by data drawn
    from `seed` (zeros for integers); all else is static. chips: of v4, v5e, v5p, v6e, 7x.
    compile_timeout: seconds that libtpu has for each chip. Raises ValueError for another chip;
    exceptions of `fn` are in the examination.
    """
    if not chips or not CHIPS.keys() >= {*chips}:
        raise ValueError(f"chips are some of {', '.join(CHIPS)}, and not {', '.join(chips)!r}")
    under_way.append(fn)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, args)
            for n, chip in enumerate(chips):
                with on_chip(chip):
                    found = _examined(fn, args, (*chips[n:], *chips[:n]), seed, compile_timeout)
                if "SparseCores" not in found.unread:  # only a chip that has them traces them
                    break
            return found
    finally:
        under_way.pop()


def _examined(fn: Any, args: tuple, chips: tuple, seed: int, timeout: float) -> Examination:
    name = name_of(fn)
    try:
        traced = _traced(fn, args)
        if for_gpus(traced.jaxpr.jaxpr):
            return Examination(name, unread=sentence("for_gpus"))
        launches = traced.launches
    except UnreadableError as error:
        return Examination(name, unread=str(error))
    except Exception as error:
        return Examination(name, unread=message_of(error, lines=5))
    if not launches and all(each.cores != "SparseCores" for each in traced.other_kernels):
        return Examination(name, unread=nothing_launched(traced))
    work = _Examination(traced, launches, chips)
    if launches:
        work.launch_by_launch()
        work.lowering()
        work.simulation(seed)
        work.outside()
    work.compilation(timeout, lambda: [k.program for k in _traced(fn, args).other_kernels])
    work.looked.append(f"traced for one {chips[0]}: JAX reports this TPU to the function")
    work.not_looked.append("wrong numbers: there is no reference")
    lists = (work.looked, work.not_looked, work.unseen)
    looked, not_looked, unseen = (tuple(dict.fromkeys(each)) for each in lists)
    name = launches[0].name if launches and name == "wrapped" else name  # a `pallas_call` itself
    made = Examination(
        name, work.findings, launches, looked, not_looked, chips, unseen=unseen, wire=work.wire
    )
    bodies = [call.params["jaxpr"] for call in kernel_calls(traced.jaxpr.jaxpr)]
    lines = (line_of(each.source_info) for body in bodies for each in equations(body))
    return without_ignored(made, lines)


def _traced(fn: Callable, args: tuple) -> Traced:
    """The function's trace; with JAX's devices called TPUs if it raises or launches nothing."""
    with contextlib.suppress(Exception):
        traced = trace_call(fn, *args)
        if [*kernel_calls(traced.jaxpr.jaxpr), *traced.other_kernels]:
            return traced
    with contextlib.suppress(Exception), devices_called():
        return trace_call(fn, *args)
    return trace_call(fn, *args)


def name_of(fn: Any) -> str:
    """The name of a callable: its function's name, or its class."""
    names = (getattr(function, "__name__", None) for function in (fn, unwrap(fn)))
    return next(filter(None, names), type(unwrap(fn)).__name__)


class _Examination:
    """One pass of all finders over a program."""

    def __init__(
        self, traced: Traced, launches: tuple[Launch, ...], chips: tuple[str, ...]
    ) -> None:
        self.traced, self.launches, self.chips = traced, launches, chips
        calls = zip(kernel_calls(traced.jaxpr.jaxpr), launches, strict=True)
        self.each = [program_of(call, jaxpr) for call, jaxpr in calls]
        self.speaking = any(map(speaks, self.each))  # to other devices
        # Findings by launch, kind and operand.
        self.told: dict[tuple[int | None, str, str | None], Finding] = {}
        self.refused: set[int] = set()  # launches that Mosaic does not lower
        self.unseen: list[str] = []  # memory and the like: "nothing found" is not said of it
        self.looked: list[str] = []
        self.not_looked: list[str] = []
        self.wire = ""
        for kernel in traced.other_kernels:
            self.not_looked.append(sentence("only_compiled", name=kernel.name, where=kernel.cores))
            self.unseen.append(f"memory of `{kernel.name}`")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the worst first; equal findings of several launches only once."""
        each = dict.fromkeys(self.told.values())
        return tuple(sorted(each, key=lambda finding: SEVERITIES.index(finding.severity)))

    def add(self, findings: Iterable[Finding], launch: int | None = None) -> None:
        """Keep the new findings of a launch: the first finder of a fault reports it."""
        for finding in (on_shared_cores(finding, self.chips) for finding in findings):
            self.told.setdefault((launch, finding.kind, finding.operand), finding)

    def launch_by_launch(self) -> None:
        """Add the findings about the blocks of every step, about memory and about lost time."""
        for n, launch in enumerate(self.launches):
            self.add(faults(launch), n)
            self.written_whole(n, [o.name for o in launch.outputs if launch.rewritten(o.name)])
            costs = *waste(launch), *many_steps(launch, CHIPS[self.chips[0]])
            self.add([*revisited_inside(launch), *room(launch, self.chips), *costs], n)
        steps = sum(launch.steps for launch in self.launches)
        which = "the only step" if steps == 1 else f"all {steps:,} steps"
        self.looked.append(sentence("what_blocks_say", which=which))
        self.looked.append(f"vmem, smem: for {', '.join(self.chips)}")

    def written_whole(self, n: int, operands: Sequence[str]) -> None:
        """Warn only that blocks of `operands` come back: each visit writes the whole block."""
        for about in [(n, "revisited", operand) for operand in operands]:
            if (f := self.told.get(about)) is not None and f.severity == ERROR:
                says = sentence("written_whole", says=f.says.partition(" On a TPU")[0])
                self.told[about] = replace(f, severity=WARNING, says=says)

    def lowering(self) -> None:
        """Add the refusals of Mosaic, each for its kernel."""
        whole = list(lowered(self.traced))
        for n, (program, launch) in enumerate(zip(self.each, self.launches, strict=True)):
            # A kernel that communicates with other devices lowers only inside its `shard_map`.
            for f in lowered(program) if whole and not speaks(program) else ():
                self.refused.add(n)
                self.add([replace(f, launch=launch.name, line=f.line or launch.line)], n)
        for about, f in self.told.items() if not whole else ():  # the compiler decides on blocks
            if f.kind == "misaligned":
                self.told[about] = replace(f, severity=WARNING)
        if whole and not self.refused:
            if self.speaking:
                names = " or ".join(dict.fromkeys(launch.name for launch in self.launches))
                line = self.launches[0].line if len(self.launches) == 1 else None
                self.add(replace(f, launch=names, line=f.line or line) for f in whole)
                self.refused.update(range(len(self.each)))
            else:
                self.not_looked.append(f"lowering of what is around the kernels: {whole[0].says}")
        self.looked.append("lowering: Mosaic")

    def simulation(self, seed: int) -> None:
        """Add the findings of a simulated run of the program, or of each kernel alone."""
        alone = not on_mesh(self.traced) and not runs_in_python(self.traced.jaxpr.jaxpr)
        for n, program in enumerate(self.each if alone else [self.traced]):
            launches = self.launches[n : n + 1] if alone else self.launches
            result = sanitize(program, launches, seed)
            fine = result.steps == "all steps" and not result.findings
            for m, launch in enumerate(launches, n) if fine else ():
                self.written_whole(m, [o.name for o in launch.outputs if o.piped])
            for finding in [f for f in result.findings if not self.explained(f, n)]:
                named = (m for m, it in enumerate(self.launches) if it.name == finding.launch)
                self.add([finding], n if alone else next(named, None))
            if result.steps:
                self.looked.append(f"uninitialised, hazard: in NumPy, {result.steps}")
            if result.why_not:
                self.not_looked.append(f"uninitialised, hazard: {result.why_not}")
            if not result.steps and not result.findings:
                self.unseen.append("memory")
            if result.steps and not result.findings:
                self.wire = wire_receipt(program, self.chips[0])

    def explained(self, finding: Finding, n: int) -> bool:
        """Whether blocks explain a finding, Mosaic refuses its line, or other kernels decide."""
        refusal = self.told.get((n, "lowering", None))
        if refusal and (finding.kind, finding.line) == ("lowering", refusal.line):
            self.told[n, "lowering", None] = replace(refusal, operand=finding.operand)
            return True
        causes = {"uninitialised": ("never-written", "revisited"), "parallel": ("parallel",)}
        kinds = causes.get(finding.kind, ())
        operands = [f.operand for f in self.findings if f.kind in kinds and f.operand]
        at_end = finding.kind == "uninitialised" and not finding.step
        rest = at_end and self.traced.feeds_others(finding.launch)
        return rest or (bool(operands) and finding.operand in (None, *operands))

    def compilation(self, timeout: float, others: Callable[[], list[Traced]]) -> None:
        """Add the refusals of libtpu; others: traces the kernels that are not read."""
        kernels: Any = *self.launches, *self.traced.other_kernels
        here = [n for n, program in enumerate(self.each) if n not in self.refused]
        programs = [self.traced] if self.speaking else [self.each[n] for n in here]
        answers, chips = [], [*self.chips]
        try:
            with Compiler(timeout) as compiler:
                if here:
                    answers = [(here[n], f) for n, f in compiled(programs, compiler, chips)]
                refused = [chip for _, answer in answers for chip in answer.chips]
                if self.traced.other_kernels:
                    rest = compiled_as_traced(others, compiler, chips)
                    answers += [(len(self.launches) + n, f) for n, f in rest]
                elif not here:
                    return
        except CompilerMissingError as error:
            self.not_looked.append(f"compile: {error}")
            return
        fine = [chip for chip in chips if chip not in refused]
        for about in [about for about in self.told if about[0] in here]:
            self.add(known_to_fit(self.told.pop(about), fine), about[0])
        for number, answer in answers:
            kernel = kernels[number]
            if answer.kind == "unanswered":
                on = ", ".join(answer.chips)
                self.not_looked.append(f"compile: `{kernel.name}` for {on}: {answer.says}")
                chips = [chip for chip in chips if chip not in answer.chips]
                continue
            empty = (each.name for each in getattr(kernel, "operands", ()) if 0 in each.shape)
            operand = next(empty, None) if "no elements" in answer.says else None
            where = dict(launch=kernel.name, line=answer.line or kernel.line, operand=operand)
            self.add([replace(answer, **where)], number)
        if chips:
            self.looked.append(f"compile: libtpu, for {', '.join(chips)}")

    def outside(self) -> None:
        """Add a note about the work outside kernels."""
        if outside := equations_outside(self.traced, allowed=tuple(OTHER_KERNELS)):
            names = ", ".join(dict.fromkeys(f"`{e.primitive.name}`" for e in outside[:4]))
            line = next(filter(None, (line_of(equation.source_info) for equation in outside)), None)
            words = "one_runs_outside" if len(outside) == 1 else "several_run_outside"
            self.add([told("outside", words, NOTE, count=len(outside), names=names, line=line)])
        self.looked.append("idle, steps, refetch, outside: what costs time only")
