"""Whatever `check` is given, it answers with a sentence and a remedy, and the next is clean."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from launched import call
from learner import Notebook, solved

import puzzles
from puzzles import _check, _ladders, _progress
from puzzles._check import verdict_page
from puzzles._judge import judge
from puzzles._judge.questions import memory


@pytest.fixture
def notebook() -> Notebook:
    """A notebook in which vector_add is solved."""
    one = Notebook()
    one.run(solved("vector_add"))
    return one


def _kernel(notebook: Notebook, body: str) -> Callable:
    notebook.run(f"def vector_add_kernel(x_ref, y_ref, o_ref):\n    {body}\n")
    return notebook["vector_add"]


def _says(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    assert "Traceback" not in text
    assert "checker itself failed" not in text
    return text


def _next_check_is_clean() -> None:
    fresh = Notebook()
    fresh.run(solved("vector_add"))
    assert puzzles.check(fresh["vector_add"]).passed


def _sum(x: Any, y: Any, spec: Any = None, **more: Any) -> Any:
    """x + y in blocks of 8 rows of x."""

    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    rows, cols = x.shape
    block = pl.BlockSpec((8, cols), lambda i: (i, 0))
    specs = [spec or block, pl.BlockSpec((1, cols), lambda i: (0, 0))]
    return call(kernel, x, (pl.cdiv(rows, 8),), specs, block, **more)(x, y[None, :])


# The blocks of x, numbered from one before its first row.
PADDED = pl.BlockSpec((pl.Element(8, padding=(8, 0)), pl.Element(128)), lambda i: (8 * (i + 1), 0))


@pytest.mark.parametrize(
    ("fn", "M", "what"),  # the first is too much for JAX's simulator, the second for both
    [
        (functools.partial(_sum, input_output_aliases={0: 0}), 20, "1 of 1 cases"),
        (
            functools.partial(_sum, spec=PADDED),
            24,
            "0 of 1 cases; it was not simulated: the padding of a `pl.Element`",
        ),
    ],
)
def test_what_the_simulator_cannot_take_is_not_held_against_a_kernel(
    fn: Callable, M: int, what: str
) -> None:
    puzzle = puzzles.find("vector_add")
    one = dataclasses.replace(
        puzzle,
        spec=lambda x, y: x + y,
        cases=[dict(M=M, N=128)],
        inputs=lambda key, M, N: (jnp.ones((M, N)), jnp.arange(N, dtype=jnp.float32)),
        audit=None,
        scale=None,
        fresh=None,
    )
    verdict = judge(one, fn, thorough=True)
    assert verdict.passed, str(verdict)
    assert f"TPU simulator ({what})" in str(verdict.details)


def test_a_part_that_is_not_filled_in_yet_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    puzzle = puzzles.find("moe_layer")
    starter, whole = puzzle.starter_text, solved("moe_layer")
    first = starter.index("def grouped_backward("), starter.index("grouped.defvjp(")
    there = whole.index("def grouped_backward("), whole.index("grouped.defvjp(")
    notebook = Notebook()
    notebook.run(whole[: there[0]] + starter[slice(*first)] + whole[there[1] :])
    verdict = puzzles.check(notebook["moe_layer"])
    assert verdict.stage == "unsolved"
    assert "Fill in `grouped_backward` at YOUR CODE HERE" in _says(capsys)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda n: 3, ["got an int", "pass the function itself"]),
        (lambda n: None, ["got None"]),
        (lambda n: "vector_add", ["got a str", "not its name"]),
        (lambda n: jnp.ones(8), ["an array of shape (8,)"]),
        (lambda n: n["vector_add_kernel"], ["is a kernel", "launches it, vector_add"]),
        (lambda n: len, ["needs a function"]),
    ],
)
def test_what_is_not_a_puzzle_function_gets_a_sentence(
    make: Callable, words: list[str], notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    assert puzzles.check(make(notebook)) is None
    text = _says(capsys)
    for word in words:
        assert word in text
    _next_check_is_clean()


def test_an_unknown_name_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    def matmull(a: Any, b: Any) -> Any:
        return a @ b

    assert puzzles.check(matmull) is None
    assert "no puzzle is called 'matmull'; did you mean 'tiled_matmul'?" in _says(capsys)
    puzzles.hint("zzz")
    text = _says(capsys)
    assert "no puzzle is called 'zzz'; a puzzle is called as the function that you write" in text
    assert "add_ten" in text
    assert "row_sum" not in text
    with pytest.raises(puzzles.UnknownPuzzleError, match="did you mean 'add_ten'"):
        puzzles.find("add_tem")
    with pytest.raises(puzzles.UnknownPuzzleError, match="did you mean 'basics'"):
        puzzles.ladder("basic")


@pytest.mark.parametrize(
    "wrap", [jax.jit, functools.partial, lambda f: jax.jit(functools.partial(f))]
)
def test_jitted_functions_and_partials_are_judged(wrap: Callable, notebook: Notebook) -> None:
    assert puzzles.check(wrap(notebook["vector_add"])).passed


def test_a_bug_of_the_checker_is_owned(
    notebook: Notebook, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "faults", lambda launch: 1 / 0)
    assert puzzles.check(notebook["vector_add"]) is None
    assert "our bug, not yours" in capsys.readouterr().out


def test_strict_raises_on_anything_but_a_pass(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUZZLES_STRICT", "1")
    assert puzzles.check(notebook["vector_add"]).passed
    with pytest.raises(_check.NotPassedError, match="not solved yet"):
        puzzles.check(_kernel(notebook, "..."))
    with pytest.raises(_check.NotPassedError, match="needs a function"):
        puzzles.check(3)  # type: ignore[arg-type]


def test_a_pass_shows_receipt_lesson_and_progress(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = puzzles.check(notebook["vector_add"])
    text = _says(capsys)
    assert text.strip() == str(verdict)
    words = "✓ vector_add: solved", "16,384 steps", "bound by its steps", "Next: add_reversed"
    for word in words:
        assert word in text.partition("\n\n")[0], text
    assert "Mosaic" in text.partition("\n\n")[2]


@pytest.mark.parametrize("puzzle", puzzles.ladder("basics")[:4], ids=lambda puzzle: puzzle.name)
def test_a_pass_of_the_first_puzzles_is_short_before_its_details(
    puzzle: puzzles.Puzzle, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = puzzles.check(puzzle.solution)
    assert verdict is not None
    assert verdict.passed
    short, _, details = _says(capsys).partition("\n\n")
    assert len(short.splitlines()) <= 5
    assert "\n\n" not in details
    assert "HBM" in details
    before, _, folded = verdict_page(verdict).partition("<details")
    assert "VMEM" in folded
    assert "VMEM" not in before


def test_a_pass_says_nothing_of_what_the_first_puzzle_has_not_met() -> None:
    said = str(puzzles.judge(puzzles.find("add_ten"), puzzles.find("add_ten").solution))
    for word in ("FLOP", "grid", "steps", "Mosaic", "simulator", "made outside"):
        assert word not in said, said


def test_judging_prints_nothing(notebook: Notebook, capsys: pytest.CaptureFixture[str]) -> None:
    puzzles.judge(puzzles.find("vector_add"), notebook["vector_add"])
    puzzles.judge(puzzles.find("vector_add"), _kernel(notebook, "1 / 0"))
    assert capsys.readouterr().out == ""


def test_hints_come_one_by_one_and_it_is_said_when_they_start_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_check, "_hinted", {})
    for number, again in ((1, False), (2, False), (3, False), (1, True), (2, False)):
        puzzles.hint("row_sum")
        said = _says(capsys)
        assert f"hint {number} of 3" in said
        assert (", again from the first:" in said) is again


def test_solution_shows_code_without_marks_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    puzzles.solution("tiled_matmul")
    text = _says(capsys)
    assert "acc_ref[...] += jnp.dot" in text
    assert "Why it works" in text
    assert "SOLUTION" not in text
    assert "PUZZLE" not in text


def test_the_plain_text_of_a_verdict_is_what_print_gives(notebook: Notebook) -> None:
    verdict = puzzles.judge(puzzles.find("vector_add"), _kernel(notebook, "..."))
    assert repr(verdict) == str(verdict)


def test_html_says_what_the_text_says(notebook: Notebook) -> None:
    verdict = puzzles.judge(
        puzzles.find("vector_add"), _kernel(notebook, "o_ref[...] = x_ref[...] < y_ref[...]")
    )
    page = verdict_page(verdict)
    assert "&lt;" in page
    assert "x_ref[...] < y_ref" not in page
    for word in ("vector_add", "raises"):
        assert word in page


def test_a_pass_shows_the_learners_launch_the_ladder_and_other_answers(monkeypatch) -> None:
    monkeypatch.setattr(_progress, "_solved", set())
    verdict = puzzles.check(puzzles.find("vector_add").solution)
    page = _check.verdict_page(verdict)
    assert "pz-mini pz-reveal" in page
    assert "pz-walk" in page
    assert page.count("A solution that ") == 3
    assert "Your first kernel passes." in verdict.notes
    assert '<a href="#1.-add_ten' not in page  # the next puzzle follows this puzzle
    assert ">add_reversed_blocks</a>" in page


def test_a_refusal_shows_the_learners_launch(monkeypatch) -> None:
    puzzle = puzzles.find("vector_add")
    verdict = puzzles.check(puzzles.mutate(puzzle, puzzle.mistake("adds x to itself")))
    page = _check.verdict_page(verdict)
    assert "your launch, vector_add_kernel: 4 steps" in page
    assert "pz-mini pz-reveal" not in page
    assert "A solution that" not in page


def test_the_end_of_a_part_and_of_a_ladder_are_celebrated(monkeypatch) -> None:
    module = _ladders.ladder_module("basics")
    names = list(module.PUZZLES)
    last_of_part = names[names.index("tiled_matmul") - 1]
    monkeypatch.setattr(_progress, "_solved", {*names[: names.index("tiled_matmul")]})
    assert _check._milestone(last_of_part, first=False).startswith("Part I: ")
    assert _check._milestone("tiled_matmul", first=False) == ""
    monkeypatch.setattr(_progress, "_solved", {*names})
    assert _check._milestone("row_sum", first=False).startswith(f"All {len(names)} puzzles")
