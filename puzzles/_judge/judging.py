"""The verdict on a function: the questions in their order, then the explainers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from puzzles._jax import unused_copies_untold
from puzzles._judge.answer import Answer, Run
from puzzles._judge.costs import dearer
from puzzles._judge.exceptions import RejectedError
from puzzles._judge.explain import by_exchange, by_facts, by_trying
from puzzles._judge.questions import MAY_RUN, error, memory, pallas, tpu, unsolved, values, work
from puzzles._judge.verdict import Verdict, lesson, passed
from puzzles._launch import keeping_traces
from puzzles._puzzle import Puzzle
from puzzles._rules import RULES, Breach, sentence


@dataclass(frozen=True)
class Question:
    """Functions that return a `Breach` or None, applied to each item that `of` returns."""

    of: Callable[[Answer], Sequence | Iterator]
    questions: Sequence[Callable]


def each_case(answer: Answer) -> tuple[Run, ...]:
    return answer.runs


def drawn_case(answer: Answer) -> list[Run]:
    return [] if answer.fresh is None else [answer.fresh]


READ = (*MAY_RUN, pallas.in_a_kernel, error.asks_outside, pallas.works_outside)
NUMBERS = (memory.races, error.runs, values.same_form, values.same_numbers)
DRAWN = Question(drawn_case, (*READ, *NUMBERS, memory.blocks, memory.copies, memory.drawn_on_tpu))
PLAINLY = (values.accepted, values.same_form, values.same_numbers, work.audit)

ITS_CODE = Question(lambda answer: [answer.code], (error.rule_of_itself,))

# For answers with kernels, in this order; the first finding is the verdict.
QUESTIONS = (
    ITS_CODE,
    Question(each_case, (*READ, *NUMBERS)),
    Question(each_case, (memory.blocks,)),
    Question(memory.smallest_first, (memory.copies,)),
    Question(memory.simulated, (memory.same_in_simulator,)),
    Question(each_case, (work.audit,)),
    DRAWN,  # before costs: fix wrong results first
    Question(each_case, (tpu.lowers,)),
    Question(work.at_production_scale, (memory.blocks_at_scale, work.rounds, dearer)),
    Question(lambda answer: [answer], (tpu.compiles,)),
    Question(drawn_case, (tpu.lowers,)),
)
# For answers without kernels.
PLAIN_QUESTIONS = (
    ITS_CODE,
    Question(each_case, PLAINLY),
    Question(lambda answer: [answer], (work.unrolled,)),
    Question(drawn_case, PLAINLY),
)


# Functions that explain wrong numbers, each with its part of the verdict: the first explanation of
# a part counts. Cheap functions come first; functions that run variants have a budget of work.
# If one known mistake gives the same numbers, the rest is skipped.
EXPLAINERS: tuple[tuple[str, Callable[[Run], str | None]], ...] = (
    ("picture", by_facts.map_of_blocks),
    ("listing", by_facts.numbers_listed),
    ("first", by_facts.fault_of_a_launch),
    ("first", by_facts.outside_a_ref),
    ("first", by_facts.garbage),
    ("diagnosis", by_trying.mistake_on_record),
    ("like", by_facts.nearness),
    ("like", by_facts.like_others),
    ("first", by_facts.not_finite),
    ("unstored", by_facts.never_stored),
    ("first", by_facts.unused),
    ("first", by_facts.rounds_on_the_way),
    ("first", by_exchange.line_exchanged),
    ("first", by_facts.copied_in_part),
)


def judge(puzzle: Puzzle, fn: Callable, **how: Any) -> Verdict:
    """The verdict on `fn` as an answer to `puzzle`; raises nothing for a learner's fault.

    how: `seed`, `thorough`, `compiler` and `patience` of `Answer`.
    """
    answer = Answer(puzzle, fn, **how)
    with keeping_traces(), unused_copies_untold():  # JAX logs when it collects a copy, not at once
        return _refused(answer, QUESTIONS, PLAIN_QUESTIONS) or passed(answer)


def judge_fresh(puzzle: Puzzle, fn: Callable, seed: int) -> Verdict:
    """The verdict on `fn` on the random case of `seed` only."""
    answer = Answer(puzzle, fn, seed)
    refused = _refused(answer, (DRAWN,), (Question(drawn_case, PLAINLY),))
    return refused or Verdict(True, "passed", lesson(puzzle), None, puzzle.name)


def _refused(
    answer: Answer, with_kernels: Sequence[Question], plain: Sequence[Question]
) -> Verdict | None:
    """The verdict of the first finding, "unsolved" if a gap is left; None if all is right."""
    questions = with_kernels if answer.puzzle.kernel else plain
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finding = unsolved.untouched(answer.code)
        if finding is not None:
            return _verdict_of(answer, None, finding)
        run, finding = first_finding(answer, questions)
        if finding is None:
            return None
        left = unsolved.left_open(answer.code)
        return _verdict_of(answer, None, left) if left else _verdict_of(answer, run, finding)


def first_finding(
    answer: Answer, questions: Sequence[Question]
) -> tuple[Run | None, Breach | None]:
    """The item (a run, say) of the first finding, and the finding; or (None, None)."""
    for group in questions:
        of = None
        try:
            for of in group.of(answer):
                for question in group.questions:
                    if (finding := question(of)) is not None:
                        return of, finding
        except RejectedError as rejected:
            return of, rejected.finding
    return None, None


def _verdict_of(answer: Answer, run: Run | None, finding: Breach) -> Verdict:
    """The verdict of a finding, with explanations, and the seed of a random case."""
    puzzle, rule = answer.puzzle, RULES[finding.rule]
    parts: dict[str, Any] = {}
    seed, notes = None, []
    if isinstance(run, Run):
        if finding.rule == "numbers":
            parts = _explained(run)
        elif run.puzzle.axes and finding.rule in ("hazard", "out-of-bounds"):
            known = by_trying.copies_on_record(run)
            first = None if known else by_exchange.line_exchanged(run, "corrects_all")
            parts = {"diagnosis": known, "first": first}
        if run.case.fresh:
            seed = run.case.seed
            notes.append(sentence("drawn_for_your_code", puzzle=puzzle.name, seed=seed))
    if answer.gave_up:
        notes.append(sentence("gave_up"))
    if not answer.code.same_spec:
        notes.append(sentence("another_spec", spec=puzzle.spec.__name__))
    like = f" {parts['like']}" if "like" in parts else ""
    messages = [text for part in ("unstored", "first") if (text := parts.get(part))]
    first = " ".join(text[:1].upper() + text[1:] if n else text for n, text in enumerate(messages))
    return Verdict(
        False,
        rule.stage,
        f"{finding.says}{like}{parts.get('listing', '')}",
        diagnosis=parts.get("diagnosis"),
        puzzle=puzzle.name,
        case=finding.case,
        picture=parts.get("picture"),
        notes=tuple(notes),
        seed=seed,
        title=finding.title or rule.title,
        first=sentence("look_first", says=first) if first else None,
        rule=finding.rule,
        launches=vars(run).get("launches", ()) if isinstance(run, Run) else (),
        wire=run.wire if isinstance(run, Run) else None,
    )


def _explained(run: Run) -> dict[str, str]:
    """The parts of a verdict that explain wrong numbers."""
    parts: dict[str, str] = {}
    for part, ask in EXPLAINERS:
        if part not in parts and "diagnosis" not in parts:
            if (text := ask(run)) is not None:
                parts[part] = text
    return parts
