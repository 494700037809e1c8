"""Whatever happens around a check, the next one is clean and nothing of the learner's is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import socket
from collections.abc import Callable

import pytest
import sample
from learner import Notebook, solved

import puzzles
from puzzles._judge import judging
from puzzles._judge.questions import memory
from puzzles._ladders import find


@pytest.fixture
def notebook() -> Notebook:
    one = Notebook()
    one.run(solved("row_sum"))
    return one


def passes(notebook: Notebook, name: str = "row_sum") -> None:
    verdict = puzzles.check(notebook[name])
    assert verdict is not None
    assert verdict.passed, str(verdict)


QUESTIONS = [(n, k) for n, one in enumerate(judging.QUESTIONS) for k in range(len(one.questions))]


@pytest.mark.graduate
@pytest.mark.parametrize("place", sample.share(QUESTIONS, 4))
def test_an_interrupt_in_any_question_is_one_sentence(
    place: tuple[int, int],
    notebook: Notebook,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    number, which = place
    asked = judging.QUESTIONS[number]

    def interrupted(of: object) -> None:
        asked.questions[which](of)
        raise KeyboardInterrupt

    questions = (*asked.questions[:which], interrupted, *asked.questions[which + 1 :])
    row = dataclasses.replace(asked, questions=questions)
    with monkeypatch.context() as patched:
        rows = (*judging.QUESTIONS[:number], row, *judging.QUESTIONS[number + 1 :])
        patched.setattr(judging, "QUESTIONS", rows)
        patched.setattr(memory, "as_on_tpu", lambda _: False)  # else nothing is simulated
        assert puzzles.check(notebook["row_sum"]) is None
    assert capsys.readouterr().out == (
        "interrupted: nothing was judged, nothing is lost; run the cell again.\n"
    )
    passes(notebook)


# The signal may arrive inside a destructor, and there Python can only report it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [5, 60, 200])
def test_the_stop_button_works_at_any_moment(milliseconds: int, notebook: Notebook) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000)
        # the check may be over, so that the signal comes on the way out
        with contextlib.suppress(KeyboardInterrupt):
            puzzles.check(notebook["row_sum"])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    passes(notebook)


def test_an_unknown_failure_of_the_simulator_is_a_sentence(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("the moon is full")

    with monkeypatch.context() as patched:
        patched.setattr(memory, "simulate", fails)
        patched.setattr(memory, "as_on_tpu", lambda _: False)
        puzzles.check(notebook["row_sum"])
    assert "the moon is full" in capsys.readouterr().out
    passes(notebook)


@pytest.mark.parametrize(
    "name", ["jax", "jnp", "pl", "pltpu", "INTERPRET", "row_sum_spec", "check"]
)
def test_a_shadowed_name_is_the_learners_error_and_heals(
    name: str, notebook: Notebook, capsys: pytest.CaptureFixture
) -> None:
    notebook.run(f"{name} = None")
    verdict = puzzles.check(notebook["row_sum"])
    said = capsys.readouterr().out
    assert "checker itself failed" not in said
    assert verdict is not None
    if not verdict.passed:
        assert name in ("jax", "jnp", "pl")
        assert verdict.stage == "error"
    notebook.run(solved("row_sum"))
    passes(notebook)


@pytest.mark.slow
def test_cells_run_in_any_order_and_two_notebooks_share_a_kernel() -> None:
    """All cells of two ladders in a shared namespace, shuffled: every check passes, twice."""
    puzzles = [*find_puzzles("basics")[:4], *find_puzzles("splash_attention")[:2]]
    order = random.Random(20).sample(puzzles, len(puzzles))
    notebook = Notebook()
    for name in order:
        notebook.run(solved(name))
    for name in reversed(order):
        passes(notebook, name)
    notebook.run(solved(order[0]))
    passes(notebook, order[0])


def find_puzzles(ladder: str) -> list[str]:
    return [puzzle.name for puzzle in puzzles.ladder(ladder)]


def test_no_network_is_needed(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    passes(notebook)


def test_windows_line_endings_change_nothing(capsys: pytest.CaptureFixture) -> None:
    def windows(text: str) -> Callable:
        notebook = Notebook()
        notebook.run(text.replace("\n", "\r\n"))
        return notebook["row_sum"]

    puzzle = find("row_sum")
    assert puzzles.judge(puzzle, windows(solved("row_sum"))).passed
    assert puzzles.judge(puzzle, windows(puzzle.starter_text)).stage == "unsolved"
    broken = solved("row_sum").replace("pl.program_id(1)", "pl.program_idd(1)")
    verdict = puzzles.judge(puzzle, windows(broken))
    assert verdict.stage == "error"
    assert "program_idd" in str(verdict)
    assert "\r" not in str(verdict)
