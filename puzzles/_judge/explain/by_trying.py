"""Why are the numbers wrong? What tries something, while there is time.

Is it a mistake on record, known by its program or its numbers? Which line, exchanged for the
reference's, makes the numbers right?
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache

import jax
import numpy as np

from puzzles._judge.answer import Answer, Run
from puzzles._judge.case import Case, cases, execute, fresh_case
from puzzles._judge.explain.by_facts import explains, fault
from puzzles._judge.numbers import compare, on_tpu
from puzzles._judge.questions import MAY_RUN
from puzzles._judge.source import Code, lines_of
from puzzles._launch import Traced, faults, trace_call
from puzzles._program import fingerprint
from puzzles._puzzle import Mistake, Puzzle, mutate
from puzzles._regions import RegionError
from puzzles._rules import Finding, sentence

_LINES = 3  # of the learner's that are exchanged together: where many differ, it is another kernel


def mistake_on_record(run: Run) -> str | None:
    """The mistake on record that this is, in its own words: by its program or by its numbers.

    On the cases before this one, and on the next, it has to give what the judged function gives
    there; one that is the same program does. Where the launch has a fault that explains the numbers
    by itself, the mistake must have it, too.
    """
    case, puzzle = run.case, run.puzzle
    if case.fresh:  # every mistake on record is wrong on a listed case, and all of those passed
        return None
    known = fault(run)
    program = fingerprint(run.traced.jaxpr) if puzzle.kernel else None
    only_nan = _only_nan(run)

    def is_it(mistake: Mistake) -> bool:
        if known is not None and known[0] not in _faults_of(case, mistake):
            return False
        if program is not None and program == _program_of(case, mistake):
            return _right_before(case, mistake)
        return not (known is not None and only_nan) and _same_values(run, mistake)

    timely = (m for m in _likest_first(run) if run.answer.in_time())
    found = next((m for m in timely if m.stage == "values" and is_it(m)), None)
    if found is None:
        return None
    what = "kernel" if puzzle.kernel else "function"
    said = "all_wrong_is_nan" if only_nan else "known_numbers"
    return sentence(said, what=what, mistake=found.name, says=found.says)


def _likest_first(run: Run) -> list[Mistake]:
    """The mistakes on record, those first whose lines are most like the judged function's."""
    mine = {line.strip() for line in run.answer.code.text.splitlines()}

    def unlike(mistake: Mistake) -> int:
        try:
            text = mistake.apply(run.puzzle.text)  # all else in the module is the same in each
        except RegionError:  # of a new puzzle, whose author is told
            return len(mine)
        return len(mine ^ {line.strip() for line in text.splitlines()})

    return sorted(run.puzzle.mistakes, key=unlike)


def _only_nan(run: Run) -> bool:
    """Whether every wrong number is NaN, which tells little: many causes have the same."""
    found = [
        (got, compare(want, got, run.puzzle.tolerance))
        for want, got in zip(jax.tree.leaves(run.case.expected), run.flat, strict=True)
    ]
    wrong = [got[one.wrong] for got, one in found if one is not None]
    return bool(wrong) and all(np.isnan(x.astype(np.float32)).all() for x in wrong)


def _same_values(run: Run, mistake: Mistake) -> bool:
    """Whether a mistake gives these numbers here, the right ones before, and the same on the next
    on which it is wrong.

    One case alone may not tell: whatever reads a huge number that it should not, gives that.
    """
    case = run.case
    return (
        _right_before(case, mistake)
        and _gives(case, mistake, run.flat)
        and all(_gives(one, mistake, elsewhere(run, one)) for one in _after(case, mistake))
    )


def _after(case: Case, mistake: Mistake) -> Iterator[Case]:
    """The cases that follow, at last a fresh one, up to one on which the mistake is wrong."""
    puzzle = case.puzzle
    fresh = fresh_case(puzzle, case.seed)
    for one in (*cases(puzzle, case.seed)[case.number + 1 :], *([fresh] if fresh else [])):
        yield one
        if not _gives(one, mistake, jax.tree.leaves(one.expected)):
            return


def _right_before(case: Case, mistake: Mistake) -> bool:
    before = cases(case.puzzle, case.seed)[: case.number]
    return all(_gives(one, mistake, jax.tree.leaves(one.expected)) for one in before)


def _gives(case: Case, mistake: Mistake, numbers: Sequence[np.ndarray] | None) -> bool:
    theirs = mistaken(case, mistake)
    if theirs is None or numbers is None:
        return theirs is numbers
    return alike(case.puzzle, theirs, numbers)


def alike(puzzle: Puzzle, one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Whether two flat results are equal to a puzzle."""
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and compare(a, b, puzzle.tolerance) is None
        for a, b in zip(one, other, strict=True)
    )


def elsewhere(run: Run, case: Case) -> list[np.ndarray] | None:
    """The flat results of the same answer on a case that is not judged now; None if it raises."""
    other = run.answer.on(case)
    try:
        found = _first_wrong(other) if case.puzzle.kernel else None
        return other.flat if found is None else None
    except Exception:  # it is another case that is told
        return None


def _first_wrong(run: Run) -> Finding | None:
    return next(filter(None, (ask(run) for ask in MAY_RUN)), None)


@lru_cache(maxsize=512)
def _program_of(case: Case, mistake: Mistake) -> Hashable | None:
    """What tells the program of a wrong solution from others; None if it cannot be traced."""
    try:
        return fingerprint(_traced(case, mistake).jaxpr)
    except Exception:
        return None


@lru_cache(maxsize=512)
def _faults_of(case: Case, mistake: Mistake) -> frozenset[str]:
    """The kinds of faults that a wrong solution's launches have here."""
    try:
        launches = _traced(case, mistake).launches
        copied = explains(launches)
        kinds = {fault.kind for one in launches for fault in faults(one)}
        return frozenset(kinds | ({copied[0]} if copied else set()))
    except Exception:
        return frozenset()


@lru_cache(maxsize=512)
def mistaken(case: Case, mistake: Mistake) -> tuple[np.ndarray, ...] | None:
    """The flat results of a wrong solution, computed once; None if it raises."""
    try:
        if not case.puzzle.kernel:
            plain = case.plainly(_wrong(case.puzzle, mistake))
            return tuple(np.asarray(x) for x in jax.tree.leaves(plain))
        return tuple(execute(_traced(case, mistake)))
    except Exception:
        return None


@lru_cache(maxsize=128)
def _traced(case: Case, mistake: Mistake) -> Traced:
    return trace_call(case.judged(_wrong(case.puzzle, mistake)), *case.args)


_wrong = lru_cache(maxsize=512)(mutate)  # a wrong solution, runnable


_EXCHANGED = {
    "replace": "line_exchanged_replace",
    "delete": "line_exchanged_delete",
    "insert": "line_exchanged_insert",
    "append": "line_exchanged_append",
}


def line_exchanged(run: Run) -> str | None:
    """A line or few of the learner's, with others in place of which the numbers are right.

    Those others are the reference's, where the functions differ there. A bug that the rung wants
    found is not given away.
    """
    puzzle, code = run.puzzle, run.answer.code
    if on_tpu() or not puzzle.kernel or puzzle.starter is not None or not code.function:
        return None
    others = Code(puzzle, puzzle.solution).written
    for name, written in code.written.items():
        mine, theirs = lines_of(written), lines_of(others[name])
        matched = difflib.SequenceMatcher(None, mine, theirs, autojunk=False)
        for how, i, j, k, end in matched.get_opcodes():
            if how == "equal" or not j or j - i > _LINES or not run.answer.in_time():
                continue
            if len(mine) < 2 + j - i:  # all that the learner has written is no place
                continue
            text = "\n".join([*mine[:i], *theirs[k:end], *mine[j:]])
            if _right_as(run, name, text):
                key = _EXCHANGED["append" if i == len(mine) else how]
                key = "line_exchanged_several" if j - i > 1 else key
                line = mine[min(i, len(mine) - 1)].strip()
                more = "line" if j - i == 2 else f"{j - i - 1} lines"
                return sentence(key, line=line, more=more)
    return None


def _right_as(run: Run, name: str, text: str) -> bool:
    """Whether the answer's numbers are right where one of its functions has another text."""
    code = run.answer.code
    names = dict(code.names)
    try:
        exec(compile(text, "<exchanged>", "exec", dont_inherit=True), names)
        answer = names[name] if name == run.puzzle.name else code.with_names(names)
        changed = Run(Answer(run.puzzle, answer), run.case)
        return _first_wrong(changed) is None and changed.differs is None
    except Exception:  # what stands beside it may need the line that was there
        return False
