"""Checks of a puzzle's code: the starter, the solution, the mistakes and the alternatives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from puzzles import _regions
from puzzles._author.report import problem
from puzzles._compile import Compiler
from puzzles._judge import (
    Case,
    Verdict,
    at_scale,
    cases,
    fresh_cases,
    in_blocks,
    judge,
    judge_fresh,
    usual_dims,
)
from puzzles._launch import keeping_traces, kernels, trace_call
from puzzles._puzzle import Puzzle, load, starter_function, variant
from puzzles._record import Alternative, Mistake
from puzzles._rules import to_author

SEEDS = (0, 1, 2)
_MARK = re.compile(r"`[^`]+`|\d")
_DRAWS, _SHAPES = 100, 8


@keeping_traces()
def mistake_problem(puzzle: Puzzle, mistake: Mistake, seeds: Sequence[int] = SEEDS) -> str | None:
    """The problem if `mistake` is not rejected at its stage with its `says`; None if it is."""
    who = _who(puzzle, mistake)
    if len(mistake.says.split()) < 3 and not _MARK.search(mistake.says):
        return to_author("mistake_is_vague", who=who, says=mistake.says)
    try:
        fn = variant(puzzle, mistake)
    except (_regions.RegionError, SyntaxError) as error:
        return to_author("cannot_be_made", who=who, error=error)
    for seed in seeds:
        verdict = judge(puzzle, fn, seed=seed)
        if why := verdict_problem(puzzle, mistake, verdict, seed):
            return why
    return None


def verdict_problem(puzzle: Puzzle, mistake: Mistake, verdict: Verdict, seed: int) -> str | None:
    """The problem if a verdict on `mistake` has another stage or lacks `says`; None if not."""
    who = _who(puzzle, mistake)
    facts = dict(who=who, seed=seed, case=verdict.case, stage=mistake.stage, says=mistake.says)
    if verdict.passed:
        return to_author("mistake_survives", **facts)
    if verdict.seed is not None:
        return to_author("caught_afresh", **facts)
    if verdict.stage != mistake.stage:
        return to_author("caught_elsewhere", caught=verdict.stage, told=verdict.says, **facts)
    if mistake.says in str(verdict):
        return None
    return to_author("other_words", verdict=verdict, **facts)


def alternative_problem(
    puzzle: Puzzle, alternative: Alternative, thorough: bool = True
) -> str | None:
    """The problem if a correct solution is not accepted; None if it is. Compiles nothing."""
    try:
        fn = variant(puzzle, alternative)
    except (_regions.RegionError, SyntaxError) as error:
        return to_author("cannot_be_made", who=_who(puzzle, alternative), error=error)
    verdict = judge(puzzle, fn, thorough=thorough)
    for seed in SEEDS if thorough else ():  # a random case for each seed
        verdict = verdict if not verdict.passed else judge_fresh(puzzle, fn, seed)
    return _rejected(puzzle, verdict, alternative)


def _who(puzzle: Puzzle, change: Alternative) -> str:
    """The place, the kind and the name of a mistake or an alternative."""
    kind = "mistake" if isinstance(change, Mistake) else "alternative"
    return f"{puzzle.place_of(change)}: {kind} '{change.name}'"


def _rejected(
    puzzle: Puzzle, verdict: Verdict, change: Alternative | None = None, seed: int = 0
) -> str | None:
    """The problem if a right answer does not pass; None if it does.

    change: the alternative; None for the solution.
    """
    if verdict.passed:
        return None
    if change is not None:
        return to_author("alternative_rejected", who=_who(puzzle, change), verdict=verdict)
    place = puzzle.place(f"def {puzzle.name}(", author=False)
    plain = replace(verdict, diagnosis=None)  # the reference's rounding may resemble a mistake
    return problem(place, "solution_rejected", seed=seed, verdict=plain)


@keeping_traces()
def solution_problem(
    puzzle: Puzzle, seeds: Sequence[int] = SEEDS, thorough: bool = True
) -> str | None:
    """The problem if the reference solution does not pass; None if it does. Compiles nothing.

    thorough: also run all listed cases in JAX's own interpreter.
    """
    for seed in seeds:
        verdict = judge(puzzle, puzzle.solution, seed=seed, thorough=thorough and seed == seeds[0])
        if why := _rejected(puzzle, verdict, seed=seed):
            return why
    return None


@keeping_traces()
def fresh_problems(
    puzzle: Puzzle, choose: Callable[[list[Case]], list[Case]] = list
) -> Iterator[str]:
    """Yield problems of the cases that `fresh` draws: too many shapes, or the solution fails.

    choose: selects the cases on which the solution is judged.
    """
    if puzzle.fresh is None:
        return
    place = puzzle.place("fresh=")
    drawn = fresh_cases(puzzle, _DRAWS)
    if (shapes := len({case.label for case in drawn})) > _SHAPES:
        yield problem(place, "fresh_shapes", shapes=shapes, draws=_DRAWS, most=_SHAPES)
        return
    for case in choose(drawn):
        verdict = judge_fresh(puzzle, puzzle.solution, case.seed)
        if not verdict.passed:
            yield problem(place, "fresh_case_rejected", verdict=verdict)


def scale_problems(puzzle: Puzzle) -> Iterator[str]:
    """Yield a problem if there is no production shape, or if the solution cannot be read there."""
    if not puzzle.kernel:
        return
    if puzzle.scale is None:
        yield problem(puzzle.place("PUZZLE = "), "no_scale")
    elif (scale := at_scale(puzzle, puzzle.solution)) is None:
        yield problem(puzzle.place("scale="), "scale_lacks_data")
    elif puzzle.par is not None:
        puzzle.par(*scale.par.launches)  # raises here: a pass would hide the exception


def compiler_problems(
    puzzle: Puzzle,
    compiler: Compiler,
    alternatives: Sequence[Alternative],
    chips: Sequence[str] | None = None,
) -> Iterator[str]:
    """Yield a problem for each right answer that a TPU's compiler rejects.

    All of them have passed `check`. Compiling them as one batch takes a fifth of the time; only if
    the batch fails is each answer judged alone, to find the culprit.
    chips: the chips to compile for; None for all that libtpu supports.
    """
    answers: dict[Callable, Alternative | None] = {puzzle.solution: None}
    answers |= {variant(puzzle, change): change for change in alternatives}
    programs: dict[Any, Any] = {}
    for fn, case in product(answers, cases(puzzle)):
        traced = trace_call(case.judged(fn), *case.args)
        # A kernel that communicates with other devices compiles only in its `shard_map`.
        programs.update({(fn, case): traced} if puzzle.axes else kernels(traced))
    whole = cases(puzzle)[0].reference
    for kernel in kernels(whole):
        programs.pop(kernel, None)
    if not any(compiler.compile_all([whole, *programs.values()], chips).values()):
        return
    for fn, change in answers.items():
        if why := _rejected(puzzle, judge(puzzle, fn, compiler=compiler), change):
            yield why


def production_problems(puzzle: Puzzle, compiler: Compiler) -> Iterator[str]:
    """Yield a problem if v5e's compiler rejects the solution at its production shape.

    It is compiled in bf16 as well if a case has bf16 and that shape has not: a small shape may fit
    into VMEM although this one does not.
    """
    if puzzle.scale is None:
        return
    arguments, drawn = puzzle.scale(), [case.args for case in cases(puzzle)]
    shapes = {"": arguments}
    if _has_bf16(drawn) and not _has_bf16(arguments):  # f32 next to bf16 is for statistics
        shapes[" in bf16"] = jax.tree.map(_in_bf16, arguments)
    judged = in_blocks(puzzle, puzzle.solution, usual_dims(puzzle))
    for how, args in shapes.items():
        if why := compiler.compile(trace_call(judged, *args), ["v5e"])["v5e"]:
            yield problem(puzzle.place("scale="), "scale_not_compiled", how=how, why=why)


def _has_bf16(args: Any) -> bool:
    return any(getattr(x, "dtype", None) == jnp.bfloat16 for x in jax.tree.leaves(args))


def _in_bf16(x: Any) -> Any:
    if getattr(x, "dtype", None) != jnp.float32:
        return x
    return jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)


def starter_problem(puzzle: Puzzle) -> str | None:
    """The problem if the starter does not run as a cell, or is not unsolved; else None."""
    place = puzzle.place(_regions.BEGIN, author=False)
    verdict = judge(puzzle, starter_function(puzzle))
    if verdict.stage != "unsolved":
        return problem(place, "starter_not_unsolved", stage=verdict.stage, verdict=verdict)
    # `judge` recognizes a starter by its text; change the text to see if the code would pass.
    text = re.sub(rf"(?m)^( *)\.\.\.(  {_regions.HERE} \(about)", r"\1pass\2", puzzle.starter_text)
    submitted = load(puzzle, text, "submitted")[puzzle.name]
    if text != puzzle.starter_text and judge(puzzle, submitted, patience=0).passed:
        return problem(place, "starter_passes")
    return None
