"""The verdict on a function: the questions in their order, and then who explains. Nothing is
printed here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from puzzles._judge.answer import Answer, Run
from puzzles._judge.case import Case
from puzzles._judge.costs import dearer
from puzzles._judge.exceptions import RejectedError
from puzzles._judge.explain import by_facts, by_trying
from puzzles._judge.questions import MAY_RUN, error, memory, pallas, tpu, unsolved, values, work
from puzzles._judge.verdict import Verdict, lesson, passed
from puzzles._launch import keeping_traces
from puzzles._puzzle import Puzzle
from puzzles._rules import RULES, Finding, sentence


@dataclass(frozen=True)
class Question:
    """Questions, each of which gives a `Finding` or None, and of what: they are asked of the first
    one all, then of the next."""

    of: Callable[[Answer], Sequence | Iterator]
    questions: Sequence[Callable]


def each_case(answer: Answer) -> tuple[Run, ...]:
    return answer.runs


def drawn_case(answer: Answer) -> list[Run]:
    return [] if answer.fresh is None else [answer.fresh]


def at_a_glance(answer: Answer) -> list[Run]:
    """The first case, of which the rung wants a part seen before all else."""
    return [] if answer.puzzle.glance is None else [answer.on(_part(answer.runs[0].case))]


@cache
def _part(case: Case) -> Case:
    return replace(case, puzzle=replace(case.puzzle, observe=case.puzzle.glance, results=()))


READ = (*MAY_RUN, pallas.in_a_kernel, error.asks_outside, pallas.works_outside)
NUMBERS = (memory.races, error.runs, values.same_form, values.same_numbers)
DRAWN = Question(drawn_case, (*READ, *NUMBERS, memory.blocks, memory.copies, memory.drawn_on_tpu))
PLAINLY = (values.accepted, values.same_form, values.same_numbers, work.audit)

ITS_CODE = Question(lambda answer: [answer.code], (error.rule_of_itself,))

# Of an answer with kernels, in this order; the first finding is the verdict.
QUESTIONS = (
    ITS_CODE,
    Question(at_a_glance, (*READ, *NUMBERS)),  # a wrong result before its gradients
    Question(each_case, (*READ, *NUMBERS)),
    Question(each_case, (memory.blocks,)),
    Question(memory.smallest_first, (memory.copies,)),
    Question(memory.simulated, (memory.same_in_simulator,)),
    Question(each_case, (work.audit,)),
    DRAWN,  # before costs: what is wrong at other sizes is no matter of cost
    Question(work.at_production_scale, (memory.blocks_at_scale, work.rounds, dearer)),
    Question(each_case, (tpu.lowers,)),
    Question(lambda answer: [answer], (tpu.compiles,)),
    Question(drawn_case, (tpu.lowers,)),
)
# Of one without.
PLAIN_QUESTIONS = (
    ITS_CODE,
    Question(each_case, PLAINLY),
    Question(lambda answer: [answer], (work.unrolled,)),
    Question(drawn_case, PLAINLY),
)


# Who may know why numbers are wrong, and which part of the verdict that would be: of each part the
# first answer stays. The cheap ones are asked first, and who tries something does so while there is
# time. When a mistake on record gives these numbers, nothing more is looked for.
EXPLAINERS: tuple[tuple[str, Callable[[Run], str | None]], ...] = (
    ("picture", by_facts.map_of_blocks),
    ("listing", by_facts.numbers_listed),
    ("first", by_facts.fault_of_a_launch),
    ("first", by_facts.garbage),
    ("diagnosis", by_trying.mistake_on_record),
    ("like", by_facts.nearness),
    ("like", by_facts.like_others),
    ("first", by_facts.not_finite),
    ("first", by_facts.undone),
    ("first", by_facts.rounds_on_the_way),
    ("first", by_trying.line_exchanged),
)


def judge(puzzle: Puzzle, fn: Callable, **how: Any) -> Verdict:
    """The verdict on `fn` as an answer to `puzzle`; raises nothing for a learner's fault.

    how: `seed`, `thorough`, `compiler` and `patience`, as an `Answer` takes them.
    """
    answer = Answer(puzzle, fn, **how)
    with keeping_traces():
        return _refused(answer, QUESTIONS, PLAIN_QUESTIONS) or passed(answer)


def judge_fresh(puzzle: Puzzle, fn: Callable, seed: int) -> Verdict:
    """The verdict on `fn` by the case that `seed` draws, and by no other."""
    answer = Answer(puzzle, fn, seed)
    refused = _refused(answer, (DRAWN,), (Question(drawn_case, PLAINLY),))
    return refused or Verdict(True, "passed", lesson(puzzle), None, puzzle.name)


def _refused(
    answer: Answer, with_kernels: Sequence[Question], plain: Sequence[Question]
) -> Verdict | None:
    """What the questions find, "unsolved" where a gap is left open; None if they find nothing."""
    questions = with_kernels if answer.puzzle.kernel else plain
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = unsolved.untouched(answer.code)
        if found is not None:
            return _verdict_of(answer, None, found)
        run, found = first_finding(answer, questions)
        if found is None:
            return None
        left = unsolved.left_open(answer.code)
        return _verdict_of(answer, None, left) if left else _verdict_of(answer, run, found)


def first_finding(
    answer: Answer, questions: Sequence[Question]
) -> tuple[Run | None, Finding | None]:
    """The first finding of some questions, and what it is about."""
    for asked in questions:
        of = None
        try:
            for of in asked.of(answer):
                for question in asked.questions:
                    if (found := question(of)) is not None:
                        return of, found
        except RejectedError as rejected:
            return of, rejected.finding
    return None, None


def _verdict_of(answer: Answer, run: Run | None, found: Finding) -> Verdict:
    """A finding as a verdict, with what explains it, and how to meet its case again."""
    puzzle, rule = answer.puzzle, RULES[found.rule]
    parts, seed, notes = {}, None, []
    if isinstance(run, Run):
        parts = _explained(run) if found.rule == "numbers" else {}
        if run.case.fresh:
            seed = run.case.seed
            notes.append(sentence("drawn_for_your_code", puzzle=puzzle.name, seed=seed))
    if not answer.code.same_spec:
        notes.append(sentence("another_spec", spec=puzzle.spec.__name__))
    like = f" {parts['like']}" if "like" in parts else ""
    return Verdict(
        False,
        rule.stage,
        f"{found.says}{like}{parts.get('listing', '')}",
        diagnosis=parts.get("diagnosis"),
        puzzle=puzzle.name,
        case=found.case,
        picture=parts.get("picture"),
        notes=tuple(notes),
        seed=seed,
        title=found.title or rule.title,
        first=sentence("look_first", says=parts["first"]) if "first" in parts else None,
        rule=found.rule,
        launches=vars(run).get("launches", ()) if isinstance(run, Run) else (),
    )


def _explained(run: Run) -> dict[str, str]:
    """The parts of a verdict that say why."""
    parts: dict[str, str] = {}
    for part, ask in EXPLAINERS:
        if part not in parts and "diagnosis" not in parts:
            if (said := ask(run)) is not None:
                parts[part] = said
    return parts
