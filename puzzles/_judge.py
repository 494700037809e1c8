"""The verdict on a function: the stages in their order. Pure: nothing is printed here."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from puzzles import _memory, _numbers, _source, _stages, _tpu, _values
from puzzles._launch import Launch
from puzzles._puzzle import Puzzle
from puzzles._receipt import receipt_text
from puzzles._verdict import Rejected, Verdict

_INTERPRET = (
    "One thing: without `interpret=INTERPRET` in the call, it does not run on a CPU if you call it."
)
_NO_KERNEL = "This rung has no kernel of its own, so there was nothing to simulate or to lower."


def judge(
    puzzle: Puzzle,
    fn: Callable,
    *,
    seed: int = 0,
    thorough: bool = False,
    compiler: _tpu.Compiler | None = None,
) -> Verdict:
    """The verdict on `fn` as an answer to `puzzle`; raises nothing for a learner's fault.

    seed: draws other data. thorough: simulates also the cases that `check` leaves to the analysis,
    for time. compiler: compiles with the real TPU compiler, too.
    """
    try:
        untouched = _source.is_starter(puzzle, fn)
        if untouched:
            raise Rejected("unsolved", _where_to_start(puzzle, untouched))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                verdict = _judge(puzzle, fn, seed, thorough, compiler)
        except Rejected:
            left = _source.ellipsis_left(puzzle, fn)
            if left:
                raise Rejected(
                    "unsolved", f"A `...` still stands for a value in `{left[0]}`: `{left[1]}`"
                ) from None
            unfilled = _source.partly_filled(puzzle, fn) if puzzle.starter is None else None
            if unfilled:
                raise Rejected("unsolved", _where_to_start(puzzle, unfilled)) from None
            raise
    except Rejected as rejected:
        verdict = dataclasses.replace(rejected.verdict, puzzle=puzzle.name)
        old = _stages.old_notebook(puzzle, fn)
        return dataclasses.replace(verdict, notes=(*verdict.notes, *([old] if old else [])))
    return verdict


def _where_to_start(puzzle: Puzzle, name: str) -> str:
    if puzzle.starter is not None:
        return f"`{name}` is as you found it. Find the bug, then run this cell again."
    return f"Fill in `{name}` where it says YOUR CODE HERE. Stuck? `hint({puzzle.name})`."


def _judge(
    puzzle: Puzzle, fn: Callable, seed: int, thorough: bool, compiler: _tpu.Compiler | None
) -> Verdict:
    if not puzzle.kernel:
        return _judge_plain(puzzle, fn, seed)
    runs: list[_stages.Run] = []
    for case, dims in enumerate(puzzle.cases):
        run = _stages.trace(puzzle, fn, case, _label(dims), seed)
        if case == 0:
            _stages.pallas(puzzle, run)
        _stages.numbers(puzzle, run, seed)
        runs.append(run)
    simulated = _memory.memory(puzzle, runs, seed, thorough)
    for run in runs:
        _stages.audit(puzzle, run.launches, run.label, run.args)
    ran = [f"values on {len(runs)} case{'s' * (len(runs) > 1)}"]
    ran.append("compiled on this TPU" if _values.on_tpu() else "CPU interpreter")
    ran.append(f"TPU simulator ({simulated})")
    ran += _stages.tpu(runs, compiler)
    largest = max(runs, key=lambda run: sum(one.hbm_bytes for one in run.launches))
    receipt = receipt_text(largest.launches, ran=tuple(ran), title=largest.label)
    forgot = not _values.on_tpu() and not all(one.interpret for run in runs for one in run.launches)
    return _passed(puzzle, receipt, notes=(_INTERPRET,) if forgot else ())


def _label(dims: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in dims.items())


def _first_sentence(text: str) -> str:
    flat = " ".join(text.split())
    end = flat.find(". ")
    return flat if end < 0 else flat[: end + 1]


def _judge_plain(puzzle: Puzzle, fn: Callable, seed: int) -> Verdict:
    """A rung of plain Python or JAX: no `pallas`, `memory` or `tpu` stage."""
    launches: tuple[Launch, ...] = ()
    for case, dims in enumerate(puzzle.cases):
        args, label = _values.arguments(puzzle, case, seed), _label(dims)
        try:
            result = _values.plainly(puzzle, fn, args)
        except Exception as error:
            raise _stages.raised(error, label) from None
        if result is None:
            raise Rejected(
                "values", f"`{puzzle.name}` returns None: is a `return` missing?", case=label
            )
        if puzzle.accepts is not None:
            try:
                puzzle.accepts(result, *args)
            except AssertionError as error:
                raise Rejected("values", str(error), case=label) from None
        else:
            _numbers.same_form(puzzle, result, case, label, seed)
            flat = [np.asarray(x) for x in jax.tree.leaves(result)]
            _numbers.same_numbers(puzzle, flat, case, label, seed)
        if puzzle.launches is not None:
            launches = puzzle.launches(result, *args)
            _stages.audit(puzzle, launches, label, args)
    receipt = receipt_text(launches, title=_label(puzzle.cases[-1])) if launches else None
    return _passed(puzzle, receipt, notes=(_NO_KERNEL,))


def _passed(puzzle: Puzzle, receipt: str | None, notes: tuple[str, ...] = ()) -> Verdict:
    lesson = _first_sentence(puzzle.explain)
    return Verdict(True, "passed", lesson, None, puzzle.name, receipt=receipt, notes=notes)
