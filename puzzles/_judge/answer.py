"""A function as an answer to a puzzle, and what it does on each case, made when it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from puzzles._compile import Compiler
from puzzles._jax import JaxprEqn, function_place
from puzzles._judge.case import Case, cases, fresh_case, in_jax, own_seed
from puzzles._judge.costs import Scale
from puzzles._judge.exceptions import learners_code
from puzzles._judge.numbers import Mismatch, on_tpu
from puzzles._judge.origin import Origin, file_of, origin
from puzzles._judge.source import Code
from puzzles._launch import Launch, Traced, trace_call
from puzzles._program import kernel_calls
from puzzles._puzzle import Puzzle
from puzzles._rules import Finding
from puzzles._simulator import (
    DevicesRun,
    Semantics,
    SimulationError,
    run_devices,
    simulate,
    step_by_step,
)

# Seconds for which the cause of wrong numbers is looked for; then the place alone is told.
PATIENCE = 2.0


class Answer:
    """What `judge` is asked: its arguments, the runs, and what has been done for the verdict.

    seed: draws the data of all cases and the fresh case; without one, the cases have the data of
    seed 0, and the source of `fn` draws the fresh case. thorough: JAX's own interpreter
    runs all listed cases. compiler: compiles with the real TPU compiler, too. patience: seconds for
    which the cause of wrong numbers is looked for; two unless given.
    """

    def __init__(
        self,
        puzzle: Puzzle,
        fn: Callable,
        seed: int | None = None,
        thorough: bool = False,
        compiler: Compiler | None = None,
        patience: float | None = None,
    ) -> None:
        self.puzzle, self.thorough, self.compiler = puzzle, thorough, compiler
        self.code = Code(puzzle, fn)
        self._patience = PATIENCE if patience is None else patience
        self._end: float | None = None
        self.ran: dict[str, str] = {}  # what has looked at it, for the receipt
        self.scale: Scale | None = None  # what it costs at production scale, once that is asked
        self.lowered: list[Any] = []  # the programs that Mosaic has lowered
        self._seed = seed
        self.on = cache(lambda case: Run(self, case))

    def in_time(self) -> bool:
        """Whether the cause may still be looked for: from the first question on, for `patience`."""
        if self._end is None:
            self._end = time.monotonic() + self._patience
        return time.monotonic() < self._end

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """It on each listed case."""
        return tuple(map(self.on, cases(self.puzzle, self._seed or 0)))

    @cached_property
    def fresh(self) -> Run | None:
        """It on the case that is drawn: by its own text, if no seed was given."""
        seed = own_seed(self.puzzle, self.code.text) if self._seed is None else self._seed
        case = fresh_case(self.puzzle, seed)
        return None if case is None else self.on(case)


class Run:
    """An answer on one case; what the learner's code raises there is a `RejectedError`."""

    def __init__(self, answer: Answer, case: Case) -> None:
        self.answer, self.case, self.puzzle, self.label = answer, case, case.puzzle, case.label
        self.not_in_numpy = ""  # why it was not run as on a TPU

    @cached_property
    def traced(self) -> Traced:
        """Its program."""
        args, _ = self.case.args, self.case.expected  # an author's own fault is not the learner's
        with learners_code(self.label):
            return trace_call(self.case.judged(self.answer.code.runs), *args)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Those of its kernels; of a function without, what it plans."""
        with learners_code(self.label):
            if self.puzzle.kernel:
                return self.traced.launches
        planned = self.puzzle.launches
        return () if planned is None else planned(self.result, *self.case.args)

    @cached_property
    def own(self) -> tuple[Launch, ...]:
        """The launches but for those of another rung, of its kernels: they are judged there."""
        calls, path = kernel_calls(self.traced.jaxpr.jaxpr), self.puzzle.path

        def here(call: JaxprEqn) -> bool:
            places = function_place(call.params["jaxpr"])[0], file_of(call)
            files = [Path(place) for place in places if place]
            return not files or any(f == path or f.parent != path.parent for f in files)

        return tuple(one for call, one in zip(calls, self.launches, strict=True) if here(call))

    @cached_property
    def result(self) -> Any:
        """What a function without a kernel returns."""
        if self.puzzle.accepts is None:
            _ = self.case.expected
        with learners_code(self.label):
            return self.case.plainly(self.answer.code.runs)

    @cached_property
    def flat(self) -> list[np.ndarray]:
        """All results; raises what running them raises."""
        if self.puzzle.axes:
            self.answer.ran["values"] = "devices in NumPy"
            return self.played.results
        if self.puzzle.kernel:
            # XLA multiplies and subtracts in one step: of large scores an exp is then too far off.
            by_jax = self.answer.thorough and not self.case.fresh
            flat = None if by_jax or on_tpu() else self.in_numpy
            self.answer.ran["values"] = "CPU interpreter" if flat is None else "NumPy interpreter"
            return in_jax(self.traced) if flat is None else flat
        return [np.asarray(x) for x in jax.tree.leaves(self.result)]

    @cached_property
    def in_numpy(self) -> list[np.ndarray] | None:
        """All results where launches run, in NumPy, as JAX interprets them; None if it cannot."""
        return self.flat if self.puzzle.axes else step_by_step(self.traced)

    @cached_property
    def played(self) -> DevicesRun:
        """A run on the devices of a mesh; raises `HazardError` for what a TPU must not do."""
        return run_devices(self.traced, Semantics())

    @cached_property
    def as_on_tpu(self) -> list[np.ndarray] | None:
        """All results where launches run, in NumPy, as they may on a TPU; None if it cannot."""
        if self.puzzle.axes:
            with suppress(SimulationError):
                return simulate(self.traced)
            return None
        if all(map(_in_one_way, self.launches)):
            return self.in_numpy
        return step_by_step(self.traced, strict=True)

    @cached_property
    def differs(self) -> tuple[int, np.ndarray, Mismatch] | None:
        """The first result that is not the spec's: its position, what was wanted, where it is."""
        return self.case.mismatch(self.flat)

    @property
    def mismatch(self) -> tuple[int, np.ndarray, Mismatch]:
        """That, where it is known that there is one."""
        assert self.differs is not None
        return self.differs

    @cached_property
    def place(self) -> Origin | None:
        """The output of a launch that the first wrong result is, where only layout lies between."""
        if self.differs is None or not self.puzzle.kernel:
            return None
        position, _, wrong = self.mismatch
        return origin(self.traced, position, wrong.wrong)

    def wrong(
        self,
        rule: str,
        /,
        form: str = "",
        title: str | None = None,
        **facts: object,
    ) -> Finding:
        """That a rule is broken on this case."""
        return Finding(rule, facts, self.label, form=form, title=title)


def _in_one_way(launch: Launch) -> bool:
    """Whether a TPU can only do what the interpreter does: in this order, each block apart."""
    words = zip(launch.dimension_semantics or (), launch.grid, strict=False)
    parallel = any(word.endswith("parallel") and size > 1 for word, size in words)
    return not (parallel or launch.aliases or launch.copies or launch.log.written_inputs)
