"""The verdict on a function: the questions in their order, and then who explains. Nothing is
printed here."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from puzzles._judge import explain, halfway, memory, running, source, values, work
from puzzles._judge.answer import Answer, Run
from puzzles._judge.beside import beside, line
from puzzles._judge.case import Case
from puzzles._judge.cost import Cost
from puzzles._judge.costs import Scale
from puzzles._judge.numbers import on_tpu
from puzzles._judge.raised import jax_at_rest
from puzzles._judge.verdict import Rejected, Verdict
from puzzles._puzzle import Puzzle
from puzzles._receipt import receipt_text
from puzzles._rules import Finding, sentence
from puzzles._tpu import Compiler

_OFTEN = 1.5  # times the reference's stores, from which on they are worth a remark


@dataclass(frozen=True)
class Asked:
    """Questions, each of which gives a `Finding` or None, and of what: they are asked of the first
    one all, then of the next."""

    of: Callable[[Answer], Sequence | Iterator]
    questions: Sequence[Callable]


def itself(answer: Answer) -> list[Answer]:
    return [answer]


def each_case(answer: Answer) -> tuple[Run, ...]:
    return answer.runs


def drawn_case(answer: Answer) -> list[Run]:
    return [] if answer.fresh is None else [answer.fresh]


def drawn_case_with_kernels(answer: Answer) -> list[Run]:
    """In other sizes other rungs' kernels are lowered there."""
    return [run for run in drawn_case(answer) if run.own]


def at_a_glance(answer: Answer) -> list[Run]:
    """The first case, of which the rung wants a part seen before all else."""
    if answer.puzzle.glance is None:
        return []
    first = answer.runs[0].case
    return [answer.on(_part(answer.puzzle, first.number, first.seed))]


@cache
def _part(puzzle: Puzzle, number: int, seed: int) -> Case:
    return Case(dataclasses.replace(puzzle, observe=puzzle.glance, results=()), number, seed)


READ = (*running.MAY_RUN, running.in_a_kernel, running.asks_outside, running.works_outside)
NUMBERS = (running.runs, values.same_form, values.same_numbers)
DRAWN = Asked(
    drawn_case,
    (
        *READ, *NUMBERS, values.rounded_once,
        memory.blocks, memory.copies, memory.where_the_interpreter_hides_it,
    ),
)  # fmt: skip
PLAINLY = (values.accepted, values.same_form, values.same_numbers, work.audit)

# Of an answer with kernels, in this order; the first finding is the verdict.
QUESTIONS = (
    Asked(itself, (running.differentiates_itself,)),
    Asked(at_a_glance, (*READ, *NUMBERS)),  # a wrong result before its gradients
    Asked(each_case, (*READ, *NUMBERS, values.rounded_once)),
    Asked(each_case, (memory.blocks,)),
    Asked(memory.smallest_first, (memory.copies,)),
    Asked(memory.simulated, (memory.same_in_simulator,)),
    Asked(each_case, (work.audit,)),
    DRAWN,  # before costs: what is wrong at other sizes is no matter of cost
    Asked(work.at_production_scale, (work.blocks, work.rounds, work.dearer)),
    Asked(each_case, (memory.lowers,)),
    Asked(itself, (memory.compiles,)),
    Asked(drawn_case_with_kernels, (memory.lowers,)),
)
# Of one without.
PLAIN_QUESTIONS = (
    Asked(itself, (running.asks_the_spec, running.differentiates_itself)),
    Asked(each_case, PLAINLY),
    Asked(itself, (running.unrolled,)),
    Asked(drawn_case, PLAINLY),
)


@dataclass(frozen=True)
class Explainer:
    """Who may know why numbers are wrong, and which part of the verdict that would be.

    Of each part the first answer stays. dear: tries something; asked while there is time.
    """

    part: str
    ask: Callable
    dear: bool = False


# Asked by rule, once an answer is wrong, the cheap ones first and two seconds in all. When a
# mistake on record is found that gives these numbers, nothing more is looked for.
_ON_RECORD = Explainer("diagnosis", explain.mistake_on_record, dear=True)
EXPLAINERS = {
    "numbers": (
        Explainer("picture", explain.map_of_blocks),
        Explainer("listing", explain.numbers_listed),
        Explainer("first", explain.fault_of_a_launch),
        Explainer("first", explain.garbage),
        _ON_RECORD,
        Explainer("like", explain.nearness),
        Explainer("like", explain.like_others),
        Explainer("first", explain.not_finite, dear=True),
        Explainer("first", explain.undone),
        Explainer("first", explain.rounds_on_the_way),
        Explainer("first", explain.part_exchanged, dear=True),
    ),
    "rounded-twice": (_ON_RECORD,),
}


def judge(
    puzzle: Puzzle,
    fn: Callable,
    *,
    seed: int | None = None,
    thorough: bool = False,
    compiler: Compiler | None = None,
    patience: float | None = None,
) -> Verdict:
    """The verdict on `fn` as an answer to `puzzle`; raises nothing for a learner's fault.

    seed: draws the data of all cases and the fresh case; without one, the cases have the data of
    seed 0, and the source of `fn` draws the fresh case. thorough: simulates also the cases that
    `check` leaves to the analysis, for time. compiler: compiles with the real TPU compiler, too.
    patience: seconds for which the cause of wrong numbers is looked for; two unless given.
    """
    answer = Answer(puzzle, fn, seed, thorough, compiler, patience)
    with jax_at_rest():
        return _refused(answer, QUESTIONS if puzzle.kernel else PLAIN_QUESTIONS) or _passed(answer)


def judge_fresh(puzzle: Puzzle, fn: Callable, seed: int) -> Verdict:
    """The verdict on `fn` by the case that `seed` draws, and by no other."""
    answer = Answer(puzzle, fn, seed)
    refused = _refused(answer, (DRAWN,) if puzzle.kernel else (Asked(drawn_case, PLAINLY),))
    return refused or Verdict(True, "passed", _lesson(puzzle), None, puzzle.name)


def _refused(answer: Answer, questions: Sequence[Asked]) -> Verdict | None:
    """What the questions find, "unsolved" where a gap is left open; None if they find nothing."""
    puzzle = answer.puzzle
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = source.untouched(puzzle, answer.fn)
        if found is not None:
            return _told(answer, None, found)
        run, found = first_finding(answer, questions)
        if found is None:
            return None
        left = source.left_open(puzzle, answer.fn)
        return _told(answer, run, found) if left is None else _unfinished(answer, left)


def _unfinished(answer: Answer, left: Finding) -> Verdict:
    """That a gap is left; but what has its launch already is judged before."""
    there = halfway.results_there(answer) if left.rule == "ellipsis-left" else {}
    for run in there.values():
        if (found := values.same_numbers(run)) is not None:
            return _told(answer, run, found)
    verdict = _told(answer, None, left)
    if not there:
        return verdict
    done, to_do = (
        " and ".join(f"`{name}`" for name in answer.puzzle.results if (name in there) is made)
        for made in (True, False)
    )
    case = next(iter(there.values())).label
    said = sentence("right so far", done=done, left=to_do, case=case)
    return replace(verdict, says=f"{verdict.says}\n{said}")


def first_finding(answer: Answer, questions: Sequence[Asked]) -> tuple[Run | None, Finding | None]:
    """The first finding of some questions, and what it is about."""
    for asked in questions:
        of = None
        try:
            for of in asked.of(answer):
                for question in asked.questions:
                    if (found := question(of)) is not None:
                        return of, found
        except Rejected as rejected:
            return of, rejected.finding
    return None, None


def _told(answer: Answer, run: Run | None, found: Finding) -> Verdict:
    """A finding as a verdict, with what explains it, and how to meet its case again."""
    puzzle = answer.puzzle
    verdict = Verdict.of(found, puzzle.name)
    if isinstance(run, Run):
        verdict = _explained(verdict, run)
        if run.case.fresh:
            seed, unusual = run.case.seed, run.case.unusual
            data = f", and in its data {unusual}" if unusual else ""
            note = sentence("drawn for your code", data=data, puzzle=puzzle.name, seed=seed)
            verdict = replace(verdict, seed=seed, notes=(*verdict.notes, note))
    if not source.same_spec(puzzle, answer.fn):
        note = sentence("another spec", spec=puzzle.spec.__name__)
        verdict = replace(verdict, notes=(*verdict.notes, note))
    return verdict


def _explained(verdict: Verdict, run: Run) -> Verdict:
    parts: dict[str, str] = {}
    for one in EXPLAINERS.get(verdict.rule, ()):
        if one.part not in parts and "diagnosis" not in parts:
            said = one.ask(run, run.answer.clock) if one.dear else one.ask(run)
            if said is not None:
                parts[one.part] = said
    first = parts.get("first")
    like = f" {parts['like']}" if "like" in parts else ""
    return replace(
        verdict,
        says=f"{verdict.says}{like}{parts.get('listing', '')}",
        diagnosis=parts.get("diagnosis"),
        picture=parts.get("picture"),
        first=None if first is None else sentence("look first", says=first),
    )


def _passed(answer: Answer) -> Verdict:
    puzzle = answer.puzzle
    cost, details = _receipt(answer)
    return Verdict(
        True,
        "passed",
        _lesson(puzzle),
        puzzle=puzzle.name,
        receipt=cost,
        details=details,
        notes=tuple(_remarks(answer, details)),
    )


def _lesson(puzzle: Puzzle) -> str:
    """The first sentence of what the rung explains."""
    flat = " ".join(puzzle.explain.split())
    end = flat.find(". ")
    return flat if end < 0 else flat[: end + 1]


def _receipt(answer: Answer) -> tuple[str | None, str | None]:
    """What the launches cost, and details: at production scale, or on the case that moves most."""
    puzzle = answer.puzzle
    if not puzzle.kernel:
        last = answer.runs[-1]
        if not last.launches:
            return None, None
        details = f"{receipt_text(last.launches, title=last.label)}\n{sentence('no kernel')}"
        return line(puzzle, last.label, Cost(last.launches, ())), details
    ran = (
        f"values on {len(answer.runs)} case{'s' * (len(answer.runs) > 1)}",
        "compiled on this TPU" if on_tpu() else "CPU interpreter",
        f"TPU simulator ({answer.ran['simulator']})",
        "Mosaic lowering",
        *filter(None, [answer.ran.get("libtpu")]),
    )
    if answer.scale is not None:
        scale = answer.scale
        return line(puzzle, scale.label, scale.mine, scale.par), beside(scale, ran)
    largest = max(answer.runs, key=lambda run: sum(one.hbm_bytes for one in run.launches))
    told = line(puzzle, largest.label, Cost(tuple(largest.launches), ()))
    return told, receipt_text(largest.launches, ran=ran, title=largest.label)


def _remarks(answer: Answer, details: str | None) -> Iterator[str]:
    """What is worth a sentence beside a pass; that nothing was launched stands in its details."""
    if not answer.puzzle.kernel:
        if details is None:
            yield sentence("no kernel")
        return
    launches = [one for run in answer.runs for one in run.launches]
    if not on_tpu() and not all(one.interpret for one in launches):
        yield sentence("interpret left out")
    if re.search(r"interpret\s*=\s*True\b", source.text_of(answer.fn) or ""):
        yield sentence("interpret always")
    if answer.scale is not None:
        yield from _stores(answer.scale)


def _stores(scale: Scale) -> Iterator[str]:
    """A remark where an output is stored much more often than in the reference, on its grid."""
    if [one.grid for one in scale.mine.launches] != [one.grid for one in scale.par.launches]:
        return
    for mine, par in zip(scale.mine.launches, scale.par.launches, strict=True):
        for (name, often), (_, enough) in zip(mine.stores, par.stores, strict=False):
            if often > _OFTEN * enough:
                yield sentence("stored often", name=name, often=often, enough=enough)
