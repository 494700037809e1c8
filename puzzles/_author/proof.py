"""Does a rung's code hold what its module promises: starter, solution, mistakes, alternatives?"""

from __future__ import annotations

import math
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
from puzzles._judge import Case, Verdict, at_scale, cases, fresh_cases, judge, judge_fresh
from puzzles._launch import keeping_traces, kernels, trace_call
from puzzles._program import over_mesh
from puzzles._puzzle import Puzzle, load, starter_function, variant
from puzzles._record import Alternative, Mistake
from puzzles._rules import to_author

SEEDS = (0, 1, 2)
_MARK = re.compile(r"`[^`]+`|\d")
_DRAWS, _SHAPES = 100, 8


@keeping_traces()
def mistake_problem(puzzle: Puzzle, mistake: Mistake, seeds: Sequence[int] = SEEDS) -> str | None:
    """Why `mistake` is not rejected at its stage in its own words, or None if it is."""
    who = _who(puzzle, mistake)
    if len(mistake.says.split()) < 3 and not _MARK.search(mistake.says):
        return to_author("mistake_is_vague", who=who, says=mistake.says)
    try:
        fn = variant(puzzle, mistake)
    except (_regions.RegionError, SyntaxError) as error:
        return to_author("cannot_be_made", who=who, error=error)
    for seed in seeds:
        verdict = judge(puzzle, fn, seed=seed, patience=math.inf)
        if why := verdict_problem(puzzle, mistake, verdict, seed):
            return why
    return None


def verdict_problem(puzzle: Puzzle, mistake: Mistake, verdict: Verdict, seed: int) -> str | None:
    """Why a verdict on `mistake` is not that of its stage in its own words, or None if it is."""
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
    """Why a correct solution is not accepted, or None if it is; nothing is compiled for a TPU."""
    try:
        fn = variant(puzzle, alternative)
    except (_regions.RegionError, SyntaxError) as error:
        return to_author("cannot_be_made", who=_who(puzzle, alternative), error=error)
    verdict = judge(puzzle, fn, thorough=thorough)
    for seed in SEEDS if thorough else ():  # a case drawn afresh for each
        verdict = verdict if not verdict.passed else judge_fresh(puzzle, fn, seed)
    return _rejected(puzzle, verdict, alternative)


def _who(puzzle: Puzzle, change: Alternative) -> str:
    """Where a mistake or an alternative stands, and what it is called."""
    kind = "mistake" if isinstance(change, Mistake) else "alternative"
    return f"{puzzle.place_of(change)}: {kind} '{change.name}'"


def _rejected(
    puzzle: Puzzle, verdict: Verdict, other: Alternative | None = None, seed: int = 0
) -> str | None:
    """That a right answer does not pass: an alternative, or else the solution."""
    if verdict.passed:
        return None
    if other is not None:
        return to_author("alternative_rejected", who=_who(puzzle, other), verdict=verdict)
    place = puzzle.place(f"def {puzzle.name}(", author=False)
    plain = replace(verdict, diagnosis=None)  # the reference's rounding may look like a mistake's
    return problem(place, "solution_rejected", seed=seed, verdict=plain)


@keeping_traces()
def solution_problem(
    puzzle: Puzzle, seeds: Sequence[int] = SEEDS, thorough: bool = True
) -> str | None:
    """Why the reference solution does not pass, or None; nothing is compiled for a TPU.

    thorough: JAX's own interpreter runs all listed cases.
    """
    for seed in seeds:
        verdict = judge(puzzle, puzzle.solution, seed=seed, thorough=thorough and seed == seeds[0])
        if why := _rejected(puzzle, verdict, seed=seed):
            return why
    return None


@keeping_traces()
def fresh_problems(
    puzzle: Puzzle, some: Callable[[list[Case]], list[Case]] = list
) -> Iterator[str]:
    """What is wrong with the cases that `fresh` draws: too many, or not passed.

    some: chooses those, one of each shape and of each change, that the solution is judged on.
    """
    if puzzle.fresh is None:
        return
    place = puzzle.place("fresh=")
    drawn = fresh_cases(puzzle, _DRAWS)
    if (shapes := len({case.label for case in drawn})) > _SHAPES:
        yield problem(place, "fresh_shapes", shapes=shapes, draws=_DRAWS, most=_SHAPES)
        return
    for case in some(drawn):
        verdict = judge_fresh(puzzle, puzzle.solution, case.seed)
        if not verdict.passed:
            yield problem(place, "fresh_case_rejected", verdict=verdict)


def scale_problems(puzzle: Puzzle) -> Iterator[str]:
    """Is there a production shape at which the solution is read?"""
    if not puzzle.kernel:
        return
    if puzzle.scale is None:
        yield problem(puzzle.place("PUZZLE = "), "no_scale")
    elif (scale := at_scale(puzzle, puzzle.solution)) is None:
        yield problem(puzzle.place("scale="), "scale_lacks_data")
    elif puzzle.par is not None:
        puzzle.par(*scale.par.launches)  # what it raises, a pass would keep to itself


def compiler_problems(
    puzzle: Puzzle,
    compiler: Compiler,
    alternatives: Sequence[Alternative],
    chips: Sequence[str] | None = None,
) -> Iterator[str]:
    """What a TPU's compiler refuses: the solution, and each kernel of it and of `alternatives`.

    All of them pass. Many at once take a fifth of the time; who is refused, verdicts then tell.
    chips: those compiled for, None for all that libtpu knows.
    """
    answers: dict[Callable, Alternative | None] = {puzzle.solution: None}
    answers |= {variant(puzzle, one): one for one in alternatives}
    programs = {}
    for fn, case in product(answers, cases(puzzle)):
        traced = trace_call(case.judged(fn), *case.args)
        # A kernel that speaks to other devices compiles only in its `shard_map`.
        programs.update({(fn, case): traced} if puzzle.axes else kernels(traced))
    whole = cases(puzzle)[0].reference
    for within in kernels(whole):
        programs.pop(within, None)
    if not any(compiler.compile_all([whole, *programs.values()], chips).values()):
        return
    for fn, other in answers.items():
        if why := _rejected(puzzle, judge(puzzle, fn, compiler=compiler), other):
            yield why


def production_problems(puzzle: Puzzle, compiler: Compiler) -> Iterator[str]:
    """What v5e's compiler refuses of the solution at its production shape, and in bf16 if that has
    no bf16 and some case has; a smaller shape may fit where this one does not.
    """
    if puzzle.scale is None:
        return
    given, drawn = puzzle.scale(), [case.args for case in cases(puzzle)]
    shapes = {"": given}
    if _has_bf16(drawn) and not _has_bf16(given):  # statistics beside bf16 stay f32
        shapes[" in bf16"] = jax.tree.map(_in_bf16, given)
    judged = puzzle.judged(puzzle.solution, puzzle.axes, over_mesh)
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
    """Why the starter is not a starter: it must run as a cell, and be unsolved."""
    place = puzzle.place(_regions.BEGIN, author=False)
    verdict = judge(puzzle, starter_function(puzzle))
    if verdict.stage != "unsolved":
        return problem(place, "starter_not_unsolved", stage=verdict.stage, verdict=verdict)
    # A starter is known by its text. Would it pass as anybody's answer?
    text = re.sub(rf"(?m)^( *)\.\.\.(  {_regions.HERE} \(about)", r"\1pass\2", puzzle.starter_text)
    submitted = load(puzzle, text, "submitted")[puzzle.name]
    if text != puzzle.starter_text and judge(puzzle, submitted, patience=0).passed:
        return problem(place, "starter_passes")
    return None
