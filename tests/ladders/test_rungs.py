"""What every rung promises, on whatever JAX runs the tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import sample

import puzzles
from puzzles import Puzzle, _regions, _tpu
from puzzles._author import margin, proof, repository, review, soundness, tree

PUZZLES = [puzzle for name in puzzles.ladders() for puzzle in puzzles.ladder(name)]
MISTAKES = [(puzzle, mistake) for puzzle in PUZZLES for mistake in puzzle.mistakes]
ALTERNATIVES = [(puzzle, one) for puzzle in PUZZLES for one in puzzle.alternatives]

# Of the other right answers each eighth here; all in `make graduate`, as in `verify`.
OTHERS = 8
# On an older JAX, which is Colab's: one of the TPUs that Colab lends.
CHIPS = None if sample.PARTS == 1 else sample.some(("v5e", "v6e"))
# One random key here; three in `make graduate`, as in `verify`.
KEYS = proof.SEEDS if sample.ALL else proof.SEEDS[:1]


each_puzzle = pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: puzzle.name)
# On an older JAX a sixth: there the solved notebooks check every solution as a learner does.
some_puzzles = pytest.mark.parametrize(
    "puzzle", sample.share(PUZZLES), ids=lambda puzzle: puzzle.name
)


def _pairs(pairs: list) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("puzzle", "change"), pairs, ids=[f"{p.name}-{c.name}" for p, c in pairs]
    )


@pytest.fixture(scope="module")
def compiler() -> Iterator[_tpu.Compiler]:
    """The real TPU compiler, one worker for all tests here."""
    if not _tpu.has_libtpu():
        pytest.skip(_tpu.INSTALL_LIBTPU)
    with _tpu.Compiler() as one:
        yield one


@some_puzzles
def test_solution_passes(puzzle: Puzzle) -> None:
    assert proof.solution_problem(puzzle, KEYS) is None


@pytest.mark.graduate
@each_puzzle
def test_solution_and_alternatives_compile_for_every_tpu(
    puzzle: Puzzle, compiler: _tpu.Compiler
) -> None:
    if puzzle.kernel:
        chips = _tpu.supported_chips() if CHIPS is None else CHIPS
        others = sample.share(puzzle.alternatives, OTHERS)
        one = sample.some(chips)  # each generation takes its turn
        assert list(proof.compiler_problems(puzzle, compiler, others, chips, one)) == []


def test_the_compiler_knows_the_generations_that_are_promised() -> None:
    if not _tpu.has_libtpu():
        pytest.skip(_tpu.INSTALL_LIBTPU)
    assert set(_tpu.supported_chips()) >= {"v4", "v5e", "v5p", "v6e"}


@each_puzzle
def test_starter_parses_and_is_unsolved(puzzle: Puzzle) -> None:
    assert proof.starter_problem(puzzle) is None


@pytest.mark.graduate
@_pairs(sample.share(MISTAKES))
def test_mistake_is_rejected_in_its_own_words(puzzle: Puzzle, change: puzzles.Mistake) -> None:
    assert proof.mistake_problem(puzzle, change, KEYS) is None


@pytest.mark.graduate
@_pairs(sample.share(ALTERNATIVES, OTHERS))
def test_alternative_is_accepted(puzzle: Puzzle, change: puzzles.Alternative) -> None:
    assert proof.alternative_problem(puzzle, change, thorough=sample.ALL) is None


@pytest.mark.graduate
@each_puzzle
def test_whatever_is_drawn_afresh_is_small_and_passes(puzzle: Puzzle) -> None:
    assert list(proof.fresh_problems(puzzle, sample.some)) == []


@pytest.mark.newest
@each_puzzle
def test_texts_and_cases_are_complete(puzzle: Puzzle) -> None:
    assert list(review.text_problems(puzzle)) == []


# Rungs that a check written later found: take a rung out of here when it is mended.
OPEN: set[str] = set()


@pytest.mark.newest
@pytest.mark.parametrize(
    "puzzle",
    [
        pytest.param(p, id=p.name, marks=[pytest.mark.xfail(strict=True)] * (p.name in OPEN))
        for p in PUZZLES
    ],
)
def test_what_proves_a_rung_is_worth_something(puzzle: Puzzle) -> None:
    assert list(soundness.soundness_problems(puzzle)) == []


@pytest.mark.newest
@each_puzzle
def test_the_production_shape_compares_costs_and_every_slack_is_needed(puzzle: Puzzle) -> None:
    assert list(proof.scale_problems(puzzle)) == []


@some_puzzles
def test_the_reference_is_far_from_being_refused(puzzle: Puzzle) -> None:
    assert margin.margin_problem(puzzle, margin.margin(puzzle, proof.SEEDS[:1])) is None


@pytest.mark.newest
@each_puzzle
def test_nothing_that_a_scaffold_asks_for_is_left_undone(puzzle: Puzzle) -> None:
    assert review.undone(puzzle) == []


def test_the_project_as_a_whole_has_no_problem() -> None:
    names = puzzles.ladders()
    assert list(tree.tree_problems(repository.ROOT, names)) == []
    assert [line for name in names for line in review.undone_of_ladder(name)] == []


def test_basics_has_its_seventeen_rungs_and_sixty_mistakes() -> None:
    basics = puzzles.ladder("basics")
    assert [p.name for p in basics][::7] == ["add_ten", "ragged_row_sum", "choose_blocks"]
    assert len(basics) == 17
    assert sum(len(p.mistakes) for p in basics) >= 60
    stages = {m.stage for p in basics for m in p.mistakes}
    assert stages >= {"error", "pallas", "values", "memory", "work", "tpu"}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("attention_one_block", "flash_attention"),
        ("tiled_matmul", "matmul_bf16"),
        ("tiled_matmul", "batched_matmul"),
        ("batched_matmul", "permuted_matmul"),
    ],
)
def test_a_kernel_body_that_is_said_not_to_change_does_not(earlier: str, later: str) -> None:
    """Up to casts, types of dots, operands' names and the numbers of the grid's axes."""
    assert _body(earlier) == _body(later)


def _body(name: str) -> str:
    kernel = _regions.functions(puzzles.find(name).text)[f"{name}_kernel"]
    text = "\n".join(ast.unparse(statement) for statement in kernel.body)
    text = text.replace(".astype(o_ref.dtype)", "").replace("lhs_ref", "a_ref")
    text = text.replace(", preferred_element_type=jnp.float32", "")  # an f32 dot's anyway
    return re.sub(r"(program_id|num_programs)\(\d\)", r"\1", text.replace("rhs_ref", "b_ref"))


def test_splash_attention_has_its_twenty_two_rungs_and_seventy_mistakes() -> None:
    rungs = puzzles.ladder("splash_attention")
    assert [p.name for p in rungs][::5] == [
        "attention",
        "multi_head_attention",
        "soft_cap_attention",
        "computed_masks",
        "attention_dkv",
    ]
    assert len(rungs) == 22
    assert sum(len(p.mistakes) for p in rungs) >= 70
