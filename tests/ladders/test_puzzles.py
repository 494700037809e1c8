"""The promises of every puzzle, on the JAX that runs the tests."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import re
from pathlib import Path

import pytest
import sample
import verdicts

import puzzles
from puzzles import Puzzle, _compile, _regions, judge
from puzzles._author import proof, review, soundness
from puzzles._judge import cases
from puzzles._judge.questions import tpu
from puzzles._ladders import ladder_module
from puzzles._launch import keeping_traces
from puzzles._puzzle import variant
from puzzles._rules import RULES

PUZZLES = [puzzle for name in puzzles.ladders() for puzzle in puzzles.ladder(name)]
MISTAKES = [(puzzle, mistake) for puzzle in PUZZLES for mistake in puzzle.mistakes]
ALTERNATIVES = [(puzzle, one) for puzzle in PUZZLES for one in puzzle.alternatives]

# On an older JAX, which is Colab's: one of the TPUs that Colab lends.
CHIPS = None if sample.PARTS == 1 else sample.some(("v5e", "v6e"))
# How far a mistake gets before it is caught, which decides the cost of judging it.
STAGES = ("unsolved", "error", "pallas", "values", "memory", "work", "tpu")
# One random key here; three in `make graduate`, as in `verify`.
KEYS = proof.SEEDS if sample.ALL else proof.SEEDS[:1]
_on_record = functools.cache(verdicts.on_record)

_each = functools.partial(pytest.mark.parametrize, "puzzle", ids=lambda puzzle: puzzle.name)
each_puzzle = _each(PUZZLES)
# A solved notebook checks its solutions; on an older JAX all notebooks run, and a sixth is judged.
IN_TURN = [] if sample.ALL or sample.PARTS > 1 else sample.share(puzzles.ladders(), 4)
JUDGED = [puzzle for puzzle in sample.share(PUZZLES) if puzzle.ladder not in IN_TURN]
some_puzzles = _each(JUDGED)
every_fifth_puzzle = _each(sample.share(PUZZLES, 5))


def _pairs(pairs: list) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("puzzle", "change"), pairs, ids=[f"{p.name}-{c.name}" for p, c in pairs]
    )


@pytest.mark.graduate
@some_puzzles
def test_solution_passes(puzzle: Puzzle) -> None:
    """On all its cases, simulated as `check` does; `make graduate` simulates more of them."""
    assert proof.solution_problem(puzzle, KEYS, thorough=sample.ALL) is None


@pytest.mark.graduate
@_each(sample.share(PUZZLES))
def test_solution_compiles_for_a_tpu(puzzle: Puzzle, compiler: _compile.Compiler) -> None:
    """Each answer's first case, the puzzles by turns; in `make graduate` all cases of all."""
    if puzzle.kernel:
        chips = _compile.supported_chips() if CHIPS is None else CHIPS
        others, some = puzzle.alternatives, puzzle
        if not sample.ALL:
            chips = [chips[(sample.SEED + PUZZLES.index(puzzle)) % len(chips)]]
            others, some = (), _first_case_of(puzzle)
        assert list(proof.compiler_problems(some, compiler, others, chips)) == []


def test_a_production_shape_that_does_not_compile_is_told(compiler: _compile.Compiler) -> None:
    """A table of 2 MiB, though SMEM has 1; and a puzzle of f32 with a case in bf16."""
    summit, tiled = puzzles.find("gapless_attention"), puzzles.find("tiled_matmul")

    def long_texts() -> tuple:
        return summit.solution.__globals__["scale"](B=64, P=8192, pages=8192)

    (told,) = proof.production_problems(dataclasses.replace(summit, scale=long_texts), compiler)
    assert "the production shape does not compile: an array in SMEM takes 2 MiB" in told
    assert list(proof.production_problems(tiled, compiler)) == []

    def narrowed(*given: object, **dims: int) -> tuple:
        return tuple(x.astype("bfloat16") for x in tiled.inputs(*given, **dims))

    (told,) = proof.production_problems(dataclasses.replace(tiled, inputs=narrowed), compiler)
    assert "in bf16 does not compile: Mosaic refuses `acc_ref[...] += jnp.dot(" in told


@pytest.mark.usefixtures("compiler")
def test_the_compiler_knows_the_generations_that_are_promised() -> None:
    assert set(_compile.supported_chips()) >= {"v4", "v5e", "v5p", "v6e"}


@pytest.mark.newest
@each_puzzle
def test_starter_parses_and_is_unsolved(puzzle: Puzzle) -> None:
    assert proof.starter_problem(puzzle) is None


def _decided_by(puzzle: Puzzle, change: puzzles.Mistake) -> str:
    """The rule that decides a mistake by the verdicts on record; "" if it is not there."""
    block = _on_record(puzzle.ladder).get((puzzle.name, change.name))
    return verdicts.rule_of(block) if block else ""


def _kinds(pair: tuple[Puzzle, puzzles.Mistake]) -> dict[str, int]:
    """Two mistakes of each puzzle and of each rule; one of a puzzle is known by its numbers."""
    puzzle, mistake = pair
    wanted = {f"puzzle {puzzle.name}": 2, f"rule {_decided_by(puzzle, mistake)}": 2}
    return wanted | ({f"numbers of {puzzle.name}": 1} if mistake.stage == "values" else {})


def _weight(pair: tuple[Puzzle, puzzles.Mistake]) -> tuple[int, str]:
    """By the work of judging it: stages, and the length of the kernel; then by its text."""
    puzzle, mistake = pair
    kernel = puzzle.text.partition(_regions.BEGIN)[2].partition(_regions.END)[0]
    digest = hashlib.sha256(repr(mistake).encode()).hexdigest()
    return (1 + STAGES.index(mistake.stage)) * len(kernel), digest


COVERING = sample.covering(MISTAKES, _kinds, _weight)


def test_the_sample_of_mistakes_covers_every_puzzle_and_every_rule() -> None:
    for kind, wanted in {kind: n for pair in MISTAKES for kind, n in _kinds(pair).items()}.items():
        there, taken = (sum(kind in _kinds(one) for one in some) for some in (MISTAKES, COVERING))
        assert taken >= min(wanted, there), kind
    assert len(COVERING) < 250 or sample.ALL


@pytest.mark.graduate
@_pairs(sample.share(COVERING))
def test_mistake_is_rejected_in_its_own_words(puzzle: Puzzle, change: puzzles.Mistake) -> None:
    """And in those on record, on the JAX that they are recorded on."""
    first = judge(puzzle, variant(puzzle, change), seed=KEYS[0])
    assert proof.verdict_problem(puzzle, change, first, KEYS[0]) is None
    assert proof.mistake_problem(puzzle, change, KEYS[1:]) is None
    if sample.PARTS == 1:
        recorded = _on_record(puzzle.ladder).get((puzzle.name, change.name))
        assert verdicts.block(change, first) == recorded, "wanted? then make verdicts"


@_pairs(sample.share(ALTERNATIVES))
def test_alternative_is_accepted_on_its_first_case(
    puzzle: Puzzle, change: puzzles.Alternative, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers, its blocks, its cost; `make graduate` lowers it, too."""
    monkeypatch.setattr(tpu, "lowered", lambda traced: ())
    assert proof.alternative_problem(_first_case_of(puzzle), change, thorough=False) is None


@functools.cache
def _first_case_of(puzzle: Puzzle) -> Puzzle:
    """Drawn, calculated and traced once: it has the arrays of the whole puzzle's case."""
    some = dataclasses.replace(puzzle, cases=puzzle.cases[:1], fresh=None, scale=None)
    vars(cases(some)[0]).update(vars(cases(puzzle)[0]) | {"puzzle": some})
    return some


@pytest.mark.graduate
@_pairs(ALTERNATIVES if sample.ALL else [])
def test_alternative_is_accepted(puzzle: Puzzle, change: puzzles.Alternative) -> None:
    """On every case, on those drawn afresh, and at the production shape."""
    assert proof.alternative_problem(puzzle, change) is None


@pytest.mark.newest
@pytest.mark.parametrize("ladder", puzzles.ladders())
def test_every_answer_has_a_verdict_on_record_and_none_is_left_over(ladder: str) -> None:
    answers = [
        (p.name, one.name if isinstance(one, puzzles.Mistake) else f"= {one.name}")
        for p in puzzles.ladder(ladder)
        for one in (*p.mistakes, *p.alternatives)
    ]
    assert sorted(_on_record(ladder)) == sorted(answers), "make verdicts writes them"


@pytest.mark.newest
def test_every_rule_decides_a_mistake_on_record_or_says_why_it_stays() -> None:
    decides = {_decided_by(*pair) for pair in MISTAKES}
    assert decides <= set(RULES)
    assert [name for name, rule in RULES.items() if name not in decides and not rule.why] == []


@pytest.mark.graduate
@every_fifth_puzzle
def test_whatever_is_drawn_afresh_is_small_and_passes(puzzle: Puzzle) -> None:
    assert list(proof.fresh_problems(puzzle, sample.some)) == []


@pytest.mark.newest
@each_puzzle
def test_texts_and_cases_are_complete(puzzle: Puzzle) -> None:
    assert list(review.text_problems(puzzle)) == []


@pytest.mark.newest
@pytest.mark.graduate
@every_fifth_puzzle
def test_what_proves_a_puzzle_is_worth_something(puzzle: Puzzle) -> None:
    with keeping_traces():
        assert list(soundness.soundness_problems(puzzle)) == []


@pytest.mark.newest
@pytest.mark.graduate
@every_fifth_puzzle
def test_the_production_shape_compares_costs(puzzle: Puzzle) -> None:
    with keeping_traces():
        assert list(proof.scale_problems(puzzle)) == []


@pytest.mark.graduate
@every_fifth_puzzle
def test_the_reference_is_far_from_being_refused(puzzle: Puzzle) -> None:
    """On its first case, which has run already; in `make graduate` on all."""
    some = puzzle if sample.ALL else _first_case_of(puzzle)
    assert list(soundness.margin_problems(some, proof.SEEDS[:1])) == []


@pytest.mark.newest
@each_puzzle
def test_nothing_that_a_scaffold_asks_for_is_left_undone(puzzle: Puzzle) -> None:
    assert review.undone(puzzle.path, puzzle.file) == []


def test_no_ladder_asks_for_anything_more() -> None:
    fronts = [Path(str(ladder_module(name).__file__)) for name in puzzles.ladders()]
    assert [line for path in fronts for line in review.undone(path, path.parent.name)] == []


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("attention_one_block", "flash_attention"),
        ("tiled_matmul", "matmul_bf16"),
        ("tiled_matmul", "permuted_matmul"),
        ("tiled_matmul", "grouped_matmul_aligned"),
    ],
)
def test_a_kernel_body_that_is_said_not_to_change_does_not(earlier: str, later: str) -> None:
    """Up to casts, types of dots, operands' names, lanes and the numbers of the grid's axes."""
    assert _body(earlier) == _body(later)


def _body(name: str) -> str:
    kernel = _regions.functions(puzzles.find(name).text)[f"{name}_kernel"]
    text = "\n".join(map(ast.unparse, kernel.body)).replace(".astype(o_ref.dtype)", "")
    text = text.replace("lhs_ref", "a_ref").replace("rhs_ref", "b_ref").replace("[:, :1]", "[...]")
    text = text.replace(", preferred_element_type=jnp.float32", "")  # an f32 dot's anyway
    return re.sub(r"(program_id|num_programs)\(\d\)|spread\((\w+), \w+\)", r"\1\2", text)
