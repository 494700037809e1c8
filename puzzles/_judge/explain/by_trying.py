"""The known mistake that explains wrong numbers, found by running it, within a budget of work."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache

import jax
import numpy as np

from puzzles._judge.answer import Run
from puzzles._judge.case import Case, cases, fresh_case, in_jax
from puzzles._judge.explain.by_facts import explains, fault, garbage_kinds
from puzzles._judge.numbers import compare, on_tpu
from puzzles._judge.questions import MAY_RUN
from puzzles._launch import Traced, faults, trace_call
from puzzles._program import fingerprint
from puzzles._puzzle import Mistake, Puzzle, mutate
from puzzles._regions import RegionError
from puzzles._rules import Breach, sentence
from puzzles._simulator import HazardError, Semantics, Wire, run_devices, step_by_step


def mistake_on_record(run: Run) -> str | None:
    """The message of the only known mistake with the same program or the same numbers, or None."""
    if len(matches := _mistakes_like(run)) != 1:
        return None
    key = "all_wrong_is_nan" if _only_nan(run) else "known_numbers"
    what = "kernel" if run.puzzle.kernel else "function"
    return sentence(key, what=what, mistake=matches[0].name, says=matches[0].says)


def _mistakes_like(run: Run) -> list[Mistake]:
    """The known mistakes with the same program or the same numbers.

    NaN does not distinguish mistakes: it takes those that read or leave garbage in the same ways as
    the answer, and of several those with its numbers if garbage is one. There may be several.

    On the cases before this case and on the next, it must give the same numbers as the answer; an
    equal program does. If a fault of the launch explains the numbers, the mistake must have this
    fault.
    """
    case, puzzle = run.case, run.puzzle
    if case.fresh:  # known mistakes fail a listed case, and the answer passed all
        return []
    cause = fault(run)
    program = fingerprint(run.traced.jaxpr) if puzzle.kernel else None
    only_nan = _only_nan(run)

    likest = _likest_first(run)
    mistakes = [m for m in likest if cause is None or cause[0] in _faults_of(case, m)]
    kernels = [] if program is None else mistakes
    equal = (m for m in kernels if program == _program_of(case, m))
    same_programs = (m for m in equal if _right_before(run, m))
    compared = [] if cause is not None and only_nan else mistakes
    # `emit_pipeline` in a kernel hides how its blocks are read: then there are no kinds.
    if only_nan and compared and (kinds := garbage_kinds(run.own if puzzle.kernel else ())):
        compared = [m for m in mistakes if _garbage_kinds_of(case, m) == kinds]
    same_numbers = (m for m in compared if run.answer.affords(case) and _same_values(run, m))
    # Programs of all mistakes before the numbers of any: several mistakes may give equal numbers.
    candidates = list(itertools.islice(same_programs, 1))
    found = candidates or list(itertools.islice(same_numbers, None if only_nan else 1))
    return found if len(found) < 2 else [m for m in found if _same_with_ones(run, m)]


def _same_with_ones(run: Run, mistake: Mistake) -> bool:
    """True if an answer and a mistake also give the same numbers where garbage is one."""
    try:
        both = (run.traced, _traced(run.case, mistake))
        own, theirs = (step_by_step(t, strict=True, unwritten="one") for t in both)
    except Exception:
        return False
    return own is not None and theirs is not None and alike(run.puzzle, own, theirs)


def copies_on_record(run: Run) -> str | None:
    """The message of a known mistake whose devices make the same wrong copies, or None.

    Copies are wrong if the solution makes no such copies. Else a wait or a signal is at fault,
    which the message identifies only if it has several amounts: these depend on the data.
    Find-the-bug puzzles are left out, because this would give their bug away.
    """
    case, puzzle = run.case, run.puzzle
    if case.fresh or puzzle.starter is not None or (own := _misled(run.traced)) is None:
        return None
    amounts = set(re.findall(r"waiting for ([\d,]+)", own[0]))
    if not own[1] - _sent(run_devices(case.reference, Semantics()).wire) and len(amounts) < 3:
        return None
    for mistake in _likest_first(run, "memory"):
        if run.answer.affords(case) and own == _misled_by(case, mistake):
            return sentence("known_copies", mistake=mistake.name)
    return None


def _misled(traced: Traced) -> tuple[str, Counter[tuple[int, int, str]]] | None:
    """The message of a run's hazard, without lines of code, and its copies; None if it is safe."""
    try:
        run_devices(traced, Semantics())
    except HazardError as error:
        line = r" \(`[^`]*`\)|, in `[^`]*`| in `[^`]*`(?= \(waiting)"
        return re.sub(line, "", error.finding.says), _sent(error.wire)
    return None


def _sent(wire: Wire) -> Counter[tuple[int, int, str]]:
    """The copies between devices, by sender, receiver and place."""
    return Counter((copy.source, copy.target, str(copy.place)) for copy in wire.transfers)


@lru_cache(maxsize=512)
def _misled_by(case: Case, mistake: Mistake) -> tuple[str, Counter[tuple[int, int, str]]] | None:
    try:
        return _misled(_traced(case, mistake))
    except Exception:
        return None


def _likest_first(run: Run, stage: str = "values") -> list[Mistake]:
    """The known mistakes of a stage, sorted by how few of their lines differ from the answer's."""
    own = {line.strip() for line in run.answer.code.text.splitlines()}

    def unlike(mistake: Mistake) -> int:
        try:
            text = mistake.apply(run.puzzle.text)  # the rest of the module is equal in all
        except RegionError:  # `verify` reports it
            return len(own)
        return len(own ^ {line.strip() for line in text.splitlines()})

    return sorted((m for m in run.puzzle.mistakes if m.stage == stage), key=unlike)


def _only_nan(run: Run) -> bool:
    """True if every wrong number is NaN, which has many causes."""
    results = [
        (got, compare(want, got, run.puzzle.tolerance))
        for want, got in zip(jax.tree.leaves(run.case.expected), run.flat, strict=True)
    ]
    wrong = [got[mismatch.wrong] for got, mismatch in results if mismatch is not None]
    return bool(wrong) and all(np.isnan(x.astype(np.float32)).all() for x in wrong)


def _same_values(run: Run, mistake: Mistake) -> bool:
    """True if a mistake gives the answer's numbers on this case and on the next cases.

    A single case is not enough: all answers that wrongly read a huge number give that number.
    """
    if not (_right_before(run, mistake) and _gives(run, mistake, run.flat)):
        return False
    later = _after(run, mistake)
    return all(_gives(run.answer.on(case), mistake, elsewhere(run, case)) for case in later)


def _after(run: Run, mistake: Mistake) -> Iterator[Case]:
    """Yield the cases after the case of `run`, then a random case, until the mistake fails one."""
    case, puzzle = run.case, run.case.puzzle
    fresh = fresh_case(puzzle, case.seed)
    for later in (*cases(puzzle, case.seed)[case.number + 1 :], *([fresh] if fresh else [])):
        yield later
        if not _right(run, later, mistake):
            return


def _right_before(run: Run, mistake: Mistake) -> bool:
    before = cases(run.case.puzzle, run.case.seed)[: run.case.number]
    return all(_right(run, earlier, mistake) for earlier in before)


def _right(run: Run, case: Case, mistake: Mistake) -> bool:
    return _gives(run.answer.on(case), mistake, jax.tree.leaves(case.expected))


def _gives(run: Run, mistake: Mistake, numbers: Sequence[np.ndarray] | None) -> bool:
    """True if a mistake gives these numbers on the case of `run`."""
    theirs = mistaken(run.case, mistake, _needs_jax(run))
    if theirs is None or numbers is None:
        return theirs is numbers
    return alike(run.case.puzzle, theirs, numbers)


def _needs_jax(run: Run) -> bool:
    """True if NumPy cannot run the answer on this case."""
    try:
        return run.puzzle.kernel and run.in_numpy is None
    except Exception:  # it raises, and has no numbers
        return False


def alike(puzzle: Puzzle, left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> bool:
    """True if two flat results are equal within the puzzle's tolerance."""
    return len(left) == len(right) and all(
        a.shape == b.shape and a.dtype == b.dtype and compare(a, b, puzzle.tolerance) is None
        for a, b in zip(left, right, strict=True)
    )


def elsewhere(run: Run, case: Case) -> list[np.ndarray] | None:
    """The flat results of the same answer on another case; None if it raises."""
    there = run.answer.on(case)
    try:
        finding = first_wrong(there) if case.puzzle.kernel else None
        return there.flat if finding is None else None
    except Exception:  # the verdict is about `run`, not about this case
        return None


def first_wrong(run: Run) -> Breach | None:
    return next(filter(None, (ask(run) for ask in MAY_RUN)), None)


@lru_cache(maxsize=512)
def _program_of(case: Case, mistake: Mistake) -> Hashable | None:
    """The fingerprint of a wrong solution's program; None if it cannot be traced."""
    try:
        return fingerprint(_traced(case, mistake).jaxpr)
    except Exception:
        return None


@lru_cache(maxsize=512)
def _faults_of(case: Case, mistake: Mistake) -> frozenset[str]:
    """The kinds of faults of a wrong solution's launches on this case."""
    try:
        launches = _traced(case, mistake).launches
        copied = explains(launches)
        kinds = {fault.kind for launch in launches for fault in faults(launch)}
        return frozenset(kinds | ({copied[0]} if copied else set()))
    except Exception:
        return frozenset()


@lru_cache(maxsize=512)
def _garbage_kinds_of(case: Case, mistake: Mistake) -> frozenset[str]:
    try:
        return garbage_kinds(_traced(case, mistake).launches if case.puzzle.kernel else ())
    except Exception:
        return frozenset()


@lru_cache(maxsize=512)
def mistaken(case: Case, mistake: Mistake, by_jax: bool = False) -> tuple[np.ndarray, ...] | None:
    """The flat results of a wrong solution, computed once; None if it raises.

    by_jax: JAX runs it if NumPy cannot, which takes seconds.
    """
    try:
        if not case.puzzle.kernel:
            plain = case.plainly(_wrong(case.puzzle, mistake))
            return tuple(np.asarray(x) for x in jax.tree.leaves(plain))
        traced = _traced(case, mistake)
        flat = None if on_tpu() else step_by_step(traced)
        if flat is None and (by_jax or on_tpu()):
            flat = in_jax(traced)
        return None if flat is None else tuple(flat)
    except Exception:
        return None


@lru_cache(maxsize=128)
def _traced(case: Case, mistake: Mistake) -> Traced:
    return trace_call(case.judged(_wrong(case.puzzle, mistake)), *case.args)


_wrong = lru_cache(maxsize=512)(mutate)  # the function of a known mistake
