"""The examination itself: every finder on every launch, the worst findings first."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from puzzles._examine.examination import Examination
from puzzles._judge import told, unwrap, work_outside
from puzzles._launch import (
    NOTE,
    SEVERITIES,
    WARNING,
    Finding,
    Launch,
    Traced,
    Unreadable,
    alone,
    faults,
    nothing_launched,
    runs_in_python,
    trace_call,
    waste,
)
from puzzles._tpu import (
    CHIPS,
    INSTALL_LIBTPU,
    Compiler,
    CompilerMissing,
    NoEstimate,
    Sanitized,
    compiled,
    estimated_cycles,
    has_libtpu,
    known_to_fit,
    lowered,
    room,
    sanitize,
    speaks,
)

_NUMBERS = "wrong numbers: nobody said which are right"
_ESTIMATED = ("v5e", "v5p")


def examine(
    fn: Callable, *args: object, chips: Sequence[str] = ("v5e",), seed: int = 0
) -> Examination:
    """What is wrong or doubtful in the launches of `fn(*args)`, without a reference and a TPU.

    fn: anything that can be called. args: arrays, or `jax.ShapeDtypeStruct`s, to which the
    simulator gives data drawn from `seed` (zeros for integers); all else is static. chips: of v4,
    v5e, v5p, v6e, 7x. Raises ValueError for another chip, and nothing for what `fn` does.
    """
    for chip in chips:
        if chip not in CHIPS:
            raise ValueError(f"no chip is called {chip!r}; there are {', '.join(CHIPS)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _examined(fn, args, tuple(chips), seed)


def _examined(fn: Any, args: tuple, chips: tuple[str, ...], seed: int) -> Examination:
    name = name_of(fn)
    if not callable(fn):
        return Examination(name, unread=f"this needs what launches a kernel, and got {fn!r:.60}")
    try:
        traced = trace_call(fn, *args)
        launches = traced.launches
    except Unreadable as error:
        return Examination(name, unread=str(error))
    except Exception as error:
        return Examination(name, unread=told(error))
    if not launches:
        return Examination(name, unread=nothing_launched(traced))
    work = _Examination(traced, launches, chips)
    work.maps()
    work.lowering()
    work.simulation(seed)
    work.memories()
    cycles = work.compilation()
    work.costs()
    work.not_looked.append(_NUMBERS)
    return Examination(
        name, work.sorted(), launches, tuple(work.looked), tuple(work.not_looked), chips, cycles
    )


def name_of(fn: Any) -> str:
    """What a callable is called: its function's name, or its class."""
    plain = unwrap(fn)
    return str(getattr(plain, "__name__", None) or type(plain).__name__)


class _Examination:
    """One pass of all finders over a program."""

    def __init__(
        self, traced: Traced, launches: tuple[Launch, ...], chips: tuple[str, ...]
    ) -> None:
        self.traced, self.launches, self.chips = traced, launches, chips
        self.each = alone(traced, launches)
        self.whole = runs_in_python(traced.jaxpr.jaxpr)
        self.findings: list[Finding] = []
        self.looked: list[str] = []
        self.not_looked: list[str] = []
        if traced.other_kernels:
            self.not_looked.append(f"anything in `{traced.other_kernels[0]}`, of `pl.kernel`")

    def add(self, found: Iterator[Finding] | Sequence[Finding]) -> None:
        """Keep what is new: of two finders that see one thing, the first tells it."""
        for one in found:
            if all(_about(one) != _about(other) for other in self.findings):
                self.findings.append(one)

    def sorted(self) -> tuple[Finding, ...]:
        return tuple(sorted(self.findings, key=lambda one: SEVERITIES.index(one.severity)))

    def maps(self) -> None:
        """What the blocks of every step say."""
        for launch in self.launches:
            self.add(faults(launch))
        steps = sum(launch.steps for launch in self.launches)
        self.looked.append(
            "out-of-bounds, never-written, revisited, alias, parallel, misaligned, promise: the "
            f"blocks of {'the only step' if steps == 1 else f'all {steps:,} steps'}"
        )

    def lowering(self) -> None:
        """What Mosaic refuses, told of the kernel that it refuses."""
        whole = list(lowered(self.traced))
        found = [
            replace(one, launch=launch.name, line=one.line or launch.line)
            for program, launch in (zip(self.each, self.launches, strict=True) if whole else ())
            for one in lowered(program)
        ]
        if not whole:  # the compiler's own word on blocks
            self.findings = [
                replace(f, severity=WARNING) if f.kind == "misaligned" else f for f in self.findings
            ]
        if whole and not found:
            self.not_looked.append(f"lowering of what is around the kernels: {whole[0].says}")
        self.add(found)
        self.looked.append("lowering: Mosaic")

    def simulation(self, seed: int) -> None:
        """What the simulator finds in the program, or in each kernel alone."""
        programs: list[tuple[Traced, tuple[Launch, ...]]] = [(self.traced, self.launches)]
        if not self.whole:
            pairs = zip(self.each, self.launches, strict=True)
            programs = [(one, (launch,)) for one, launch in pairs]
        for program, launches in programs:
            made = self.sanitized(program, launches, seed)
            self.add(one for one in made.findings if not self.explained(one))
            if made.steps:
                self.looked.append(f"uninitialised, hazard: in the simulator, {made.steps}")
            if made.why_not:
                self.not_looked.append(f"uninitialised, hazard: {made.why_not}")
        self.looked = list(dict.fromkeys(self.looked))
        self.not_looked = list(dict.fromkeys(self.not_looked))

    def explained(self, one: Finding) -> bool:
        """Whether the blocks already say why the numbers are not always the same."""
        cause = {"uninitialised": "never-written", "parallel": "parallel"}.get(one.kind)
        known = [f for f in self.findings if f.kind == cause and f.operand]
        return any(one.operand in (None, f.operand) for f in known)

    def sanitized(self, program: Traced, launches: Sequence[Launch], seed: int) -> Sanitized:
        try:
            return sanitize(program, launches, seed)
        except Exception as error:  # the simulator runs what XLA's CPU compiler takes
            return Sanitized(why_not=f"the program does not run on a CPU: {told(error)}")

    def memories(self) -> None:
        """VMEM and SMEM, by chip."""
        for launch in self.launches:
            self.add(list(room(launch, self.chips)))
        self.looked.append(f"vmem, smem: for {', '.join(self.chips)}")

    def compilation(self) -> str:
        """What libtpu refuses; the cycles that it estimates."""
        if not has_libtpu():
            self.not_looked.append(f"compile: libtpu is not installed: {INSTALL_LIBTPU}")
            return ""
        pairs = list(zip(self.each, self.launches, strict=True))
        here = [(one, launch) for one, launch in pairs if not speaks(one)]
        if len(here) < len(pairs):
            self.not_looked.append("compile: kernels that speak to other devices")
        if not here:
            return ""
        try:
            with Compiler() as compiler:
                found = list(compiled([one for one, _ in here], compiler, self.chips))
        except CompilerMissing as error:
            self.not_looked.append(f"compile: {error}")
            return ""
        refused = {chip for _, one in found for chip in one.chips}
        fine = [chip for chip in self.chips if chip not in refused]
        self.findings = list(known_to_fit(self.findings, fine))
        for number, one in found:
            _, launch = here[number]
            self.add([replace(one, launch=launch.name, line=launch.line)])
        self.looked.append(f"compile: libtpu, for {', '.join(self.chips)}")
        return "" if found else self.cycles()

    def cycles(self) -> str:
        chip = next((chip for chip in self.chips if chip in _ESTIMATED), None)
        if chip is None:
            return ""
        try:
            return f"{estimated_cycles(self.traced, chip):,} on {chip} by libtpu's estimate"
        except NoEstimate:
            return ""

    def costs(self) -> None:
        """What costs time, and is right all the same."""
        for launch in self.launches:
            self.add(waste(launch))
        outside = work_outside(self.traced.jaxpr)
        if outside:
            names = ", ".join(dict.fromkeys(f"`{name}`" for name, _ in outside[:4]))
            line = next((line for _, line in outside if line), None)
            says = (
                f"{len(outside)} floating-point operation{'s' * (len(outside) != 1)} on the data "
                f"run outside of the kernels: {names}. XLA reads and writes HBM for them."
            )
            self.add([Finding("outside", NOTE, says, line=line)])
        self.looked.append("idle, refetch, outside: what costs time only")


def _about(one: Finding) -> tuple[object, ...]:
    return one.kind, one.launch, one.operand
