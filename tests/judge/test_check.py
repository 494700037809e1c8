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
from learner import Notebook, solved

import puzzles
from puzzles import _check
from puzzles._judge import judge, memory


@pytest.fixture
def notebook() -> Notebook:
    """A notebook in which vector_add is solved."""
    one = Notebook()
    one.run(solved("vector_add"))
    return one


def _kernel(notebook: Notebook, body: str) -> Callable:
    notebook.run(f"def vector_add_kernel(x_ref, y_ref, o_ref):\n    {body}\n")
    return notebook["vector_add"]


def _redefined(puzzle: str, code: str) -> Callable:
    """The function of a notebook where the puzzle is solved, and `code` is run after it."""
    notebook = Notebook()
    notebook.run(solved(puzzle))
    notebook.run(code)
    return notebook[puzzle]


def _says(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    assert "Traceback" not in text
    assert "checker itself failed" not in text
    return text


def _next_check_is_clean() -> None:
    fresh = Notebook()
    fresh.run(solved("vector_add"))
    assert puzzles.check(fresh["vector_add"]).passed


def _over_the_edge(x: Any, y: Any) -> Any:
    """x + y in x's memory, in blocks that the arrays' last rows do not fill."""

    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    spec = pl.BlockSpec((8, y.shape[0]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(x.shape[0], 8),),
        in_specs=[spec, pl.BlockSpec((1, y.shape[0]), lambda i: (0, 0))],
        out_specs=spec,
        out_shape=x,
        input_output_aliases={0: 0},
        interpret=True,
    )(x, y[None, :])


def _padded(x: Any, y: Any) -> Any:
    """x + y, with the blocks of x numbered from one before its first row."""

    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    (rows, cols), size = x.shape, 8
    return pl.pallas_call(
        kernel,
        grid=(rows // size,),
        in_specs=[
            pl.BlockSpec(
                (pl.Element(size, padding=(size, 0)), pl.Element(cols)),
                lambda i: (size * (i + 1), 0),
            ),
            pl.BlockSpec((1, cols), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((size, cols), lambda i: (i, 0)),
        out_shape=x,
        interpret=True,
    )(x, y[None, :])


@pytest.mark.parametrize(
    ("fn", "M", "what"),
    [
        (_over_the_edge, 20, "an aliased output whose last block is cut off"),
        (_padded, 24, "the padding of a `pl.Element`"),
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
    verdict = judge(one, fn)
    assert verdict.passed, str(verdict)
    assert f"TPU simulator (0 of 1 cases; it cannot take {what})" in str(verdict.details)


def test_what_a_puzzle_without_a_kernel_observes_is_judged() -> None:
    def observe(fn: Callable) -> Callable:
        return lambda sizes: fn(sizes)[-1]

    plain = dataclasses.replace(puzzles.find("group_offsets"), observe=observe, jit=True)
    assert judge(plain, lambda sizes: jnp.cumsum(sizes)).passed  # only the last entry is looked at
    assert not judge(plain, lambda sizes: jnp.cumsum(sizes) + 1).passed


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        ("jax.lax.map(one, jnp.arange(2))[0]", "makes 2 launches where this rung asks for 1"),
        (
            "jax.lax.fori_loop(0, jnp.argmax(x) * 0 + 1, lambda n, _: one(n), one(0))",
            "in a loop whose length only running it tells",
        ),
    ],
)
def test_a_launch_in_a_loop_counts_as_often_as_it_runs(
    loop: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    looped = _redefined(
        "tiled_matmul",
        "def tiled_matmul(x, y, launch=tiled_matmul):\n"
        "    one = lambda n: launch(x, y)\n"
        f"    return {loop}\n",
    )
    assert puzzles.check(looped).stage == "work"
    assert words in _says(capsys)


def test_a_part_that_is_not_filled_in_yet_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    puzzle = puzzles.find("moe_layer")
    starter, whole = puzzle.starter_text, solved("moe_layer")
    first = starter.index("def grouped_backward("), starter.index("grouped.defvjp(")
    there = whole.index("def grouped_backward("), whole.index("grouped.defvjp(")
    notebook = Notebook()
    notebook.run(whole[: there[0]] + starter[slice(*first)] + whole[there[1] :])
    verdict = puzzles.check(notebook["moe_layer"])
    assert verdict.stage == "unsolved"
    assert "Fill in `grouped_backward` where it says YOUR CODE HERE" in _says(capsys)


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
    with pytest.raises(puzzles.UnknownPuzzle, match="did you mean 'add_ten'"):
        puzzles.find("add_tem")
    with pytest.raises(puzzles.UnknownPuzzle, match="did you mean 'basics'"):
        puzzles.ladder("basic")


@pytest.mark.parametrize(
    "wrap", [jax.jit, functools.partial, lambda f: jax.jit(functools.partial(f))]
)
def test_jitted_functions_and_partials_are_judged(wrap: Callable, notebook: Notebook) -> None:
    assert puzzles.check(wrap(notebook["vector_add"])).passed


def test_a_kernel_defined_again_is_judged_as_it_is_now(notebook: Notebook) -> None:
    notebook.run("vector_add = jax.jit(vector_add)")
    assert puzzles.check(notebook["vector_add"]).passed
    assert not puzzles.check(_kernel(notebook, "o_ref[...] = x_ref[...]")).passed
    assert puzzles.check(_kernel(notebook, "o_ref[...] = x_ref[...] + y_ref[...]")).passed


def test_after_a_kernel_that_raises_the_next_check_is_clean(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not puzzles.check(_kernel(notebook, "o_ref[...] = x_ref[...] / (1 // 0)")).passed
    assert "ZeroDivisionError" in _says(capsys)
    _next_check_is_clean()


def test_a_stray_ellipsis_does_not_demote_a_pass(notebook: Notebook) -> None:
    body = "...\n    o_ref[...] = x_ref[...] + y_ref[...]\n    where = (...,)"
    assert puzzles.check(_kernel(notebook, body)).passed


def test_an_interrupt_is_reported_and_leaves_nothing_behind(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook.run("def stop(*_):\n    raise KeyboardInterrupt\n")
    fn = _kernel(notebook, "stop()")
    assert puzzles.check(fn) is None
    assert "interrupted" in _says(capsys)
    _next_check_is_clean()


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
    with pytest.raises(_check.NotPassed, match="not solved yet"):
        puzzles.check(_kernel(notebook, "..."))
    with pytest.raises(_check.NotPassed, match="needs a function"):
        puzzles.check(3)  # type: ignore[arg-type]


def test_a_pass_shows_receipt_lesson_and_progress(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = puzzles.check(notebook["vector_add"])
    text = _says(capsys)
    assert text.strip() == str(verdict)
    for word in (
        "✓ vector_add: solved",
        "16,384 steps",
        "bound by its steps",
        "Next: add_reversed",
    ):
        assert word in text.partition("\n\n")[0], text
    assert "Mosaic" in text.partition("\n\n")[2]


@pytest.mark.parametrize("rung", puzzles.ladder("basics")[:4], ids=lambda rung: rung.name)
def test_a_pass_of_the_first_rungs_is_short_before_its_details(
    rung: puzzles.Puzzle, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = puzzles.check(rung.solution)
    assert verdict is not None
    assert verdict.passed
    short, _, details = _says(capsys).partition("\n\n")
    assert len(short.splitlines()) <= 5
    assert "\n\n" not in details
    assert "HBM" in details
    before, _, folded = verdict.html().partition("<details")
    assert "VMEM" in folded
    assert "VMEM" not in before


def test_a_pass_says_nothing_of_what_the_first_rung_has_not_met() -> None:
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
    page = verdict.html()
    assert "&lt;" in page
    assert "x_ref[...] < y_ref" not in page
    for word in ("vector_add", "raises"):
        assert word in page
