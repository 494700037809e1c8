"""A function as an answer to a puzzle, and its runs on the cases, computed on demand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from puzzles._compile import Compiler
from puzzles._equations import function_place
from puzzles._jax import JaxprEqn
from puzzles._judge.case import Case, cases, fresh_case, in_jax, own_seed
from puzzles._judge.costs import Scale
from puzzles._judge.exceptions import learners_code
from puzzles._judge.numbers import Mismatch, on_tpu
from puzzles._judge.origin import Origin, file_of, origin
from puzzles._judge.source import Code, given
from puzzles._launch import Launch, Traced, trace_call
from puzzles._program import kernel_calls
from puzzles._puzzle import Puzzle
from puzzles._rules import Breach
from puzzles._simulator import (
    DevicesRun,
    HazardError,
    Semantics,
    SimulationError,
    Wire,
    run_devices,
    simulate,
    step_by_step,
)

# Work to look for the cause of wrong numbers, in the unit of `Case.work`: about two seconds. After
# that, a verdict has only the place. It is counted, because a limit of seconds would give another
# verdict on a busy machine.
PATIENCE = 400_000.0


class Answer:
    """The arguments of `judge`, the runs of the answer, and a log of the checks.

    seed: of the data of all cases and of the random case; None for seed 0 in the listed cases and a
    seed from the source of `fn` for the random case.
    thorough: run all listed cases in JAX's own interpreter.
    compiler: also compile with this TPU compiler. patience: the work to look for the cause of wrong
    numbers, in the unit of `Case.work`; None for `PATIENCE`.
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
        self.gave_up = False  # a possible cause of wrong numbers was left untried
        self.ran: dict[str, str] = {}  # the checks that ran, for the receipt
        self.scale: Scale | None = None  # the costs at the production shape, once compared
        self.lowered: list[Any] = []  # the programs that Mosaic has lowered
        self._seed = seed
        self.on = cache(lambda case: Run(self, case))

    def affords(self, case: Case) -> bool:
        """Pay for one run of a variant on a case; False once `patience` is used up."""
        self.gave_up = self.gave_up or self._patience <= 0
        self._patience -= case.work
        return not self.gave_up

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs on the listed cases."""
        return tuple(map(self.on, cases(self.puzzle, self._seed or 0)))

    @cached_property
    def fresh(self) -> Run | None:
        """The run on the random case; None if the puzzle has no such case."""
        seed = own_seed(self.puzzle, self.code.text) if self._seed is None else self._seed
        case = fresh_case(self.puzzle, seed)
        return None if case is None else self.on(case)


class Run:
    """An answer on a case. An exception in the learner's code becomes a `RejectedError`."""

    def __init__(self, answer: Answer, case: Case) -> None:
        self.answer, self.case, self.puzzle, self.label = answer, case, case.puzzle, case.label
        self.not_in_numpy = ""  # the reason why the simulator could not run it
        self.wire: Wire | None = None  # the traffic of `played`, up to a hazard if there is one
        self.learners_code = partial(learners_code, self.label, given(self.puzzle))

    @cached_property
    def traced(self) -> Traced:
        """The traced program."""
        args = self.case.args
        _ = self.case.expected  # outside `learners_code`: an exception here is the author's fault
        with self.learners_code():
            return trace_call(self.case.judged(self.answer.code.runs), *args)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The launches of its kernels; for a puzzle without a kernel, those that it configures."""
        with self.learners_code():
            if self.puzzle.kernel:
                return self.traced.launches
        planned = self.puzzle.launches
        return () if planned is None else planned(self.result, *self.case.args)

    @cached_property
    def own(self) -> tuple[Launch, ...]:
        """The launches without the kernels of other puzzles, which are judged there."""
        calls, path = kernel_calls(self.traced.jaxpr.jaxpr), self.puzzle.path

        def here(call: JaxprEqn) -> bool:
            places = function_place(call.params["jaxpr"])[0], file_of(call)
            files = [Path(place) for place in places if place]
            return not files or any(f == path or f.parent != path.parent for f in files)

        pairs = zip(calls, self.launches, strict=True)
        return tuple(launch for call, launch in pairs if here(call))

    @cached_property
    def result(self) -> Any:
        """The result of a function without a kernel."""
        if self.puzzle.accepts is None:
            _ = self.case.expected
        with self.learners_code():
            return self.case.plainly(self.answer.code.runs)

    @cached_property
    def flat(self) -> list[np.ndarray]:
        """The flat results; raises any exception of the run."""
        if self.puzzle.axes:
            self.answer.ran["values"] = "devices in NumPy"
            return self.played.results
        if self.puzzle.kernel:
            # XLA fuses multiply and subtract: the exp of large scores then differs too much.
            by_jax = self.answer.thorough and not self.case.fresh
            flat = None if by_jax or on_tpu() else self.in_numpy
            self.answer.ran["values"] = "CPU interpreter" if flat is None else "NumPy interpreter"
            return in_jax(self.traced) if flat is None else flat
        return [np.asarray(x) for x in jax.tree.leaves(self.result)]

    @cached_property
    def in_numpy(self) -> list[np.ndarray] | None:
        """The flat results in NumPy, as JAX interprets launches; None if NumPy cannot run them."""
        return self.flat if self.puzzle.axes else step_by_step(self.traced)

    @cached_property
    def played(self) -> DevicesRun:
        """A run on the devices of a mesh; raises `HazardError` for a race or a deadlock."""
        try:
            played = run_devices(self.traced, Semantics())
        except HazardError as error:
            self.wire = error.wire
            raise
        self.wire = played.wire
        return played

    @cached_property
    def as_on_tpu(self) -> list[np.ndarray] | None:
        """The flat results in NumPy, as a TPU may run launches; None if NumPy cannot run them."""
        if self.puzzle.axes:
            with suppress(SimulationError):
                return simulate(self.traced, self.played.results)
            return None
        if all(map(_in_one_way, self.launches)):
            return self.in_numpy
        return step_by_step(self.traced, strict=True)

    @cached_property
    def differs(self) -> tuple[int, np.ndarray, Mismatch] | None:
        """The first wrong result: its position, the expected array and the mismatch; or None."""
        return self.case.mismatch(self.flat)

    @property
    def mismatch(self) -> tuple[int, np.ndarray, Mismatch]:
        """`differs`, for callers that have already checked that it is not None."""
        assert self.differs is not None
        return self.differs

    @cached_property
    def place(self) -> Origin | None:
        """The launch's output that becomes the first wrong result; None if it is computed later."""
        if self.differs is None or not self.puzzle.kernel:
            return None
        position, _, wrong = self.mismatch
        return origin(self.traced, position, wrong.wrong)

    def wrong(
        self, rule: str, /, form: str = "", title: str | None = None, **facts: object
    ) -> Breach:
        """A finding: this case breaks a rule."""
        return Breach(rule, facts, self.label, form=form, title=title)


def _in_one_way(launch: Launch) -> bool:
    """True if a TPU can only run the steps in the interpreter's order, each on separate blocks."""
    words = zip(launch.dimension_semantics or (), launch.grid, strict=False)
    parallel = any(word.endswith("parallel") and size > 1 for word, size in words)
    return not (parallel or launch.aliases or launch.copies or launch.log.written_inputs)
