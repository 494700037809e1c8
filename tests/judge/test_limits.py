"""Nothing that a learner's function does hangs the checker, or is left behind in it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from learner import edited

import puzzles
from puzzles import Verdict
from puzzles._judge import judge
from puzzles._launch import Traced

ROW_SUM = puzzles.find("row_sum")


def judged(puzzle: str, *edits: tuple[str, str]) -> Verdict:
    return judge(puzzles.find(puzzle), edited(puzzle, *edits))


GRID = "grid=(M // bm, N // bn)"


@pytest.fixture
def nothing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that is read step by step, which may take hours, fails the test."""
    listed = property(lambda self: pytest.fail("its steps are listed"))
    monkeypatch.setattr(Traced, "launches", listed)


@pytest.mark.parametrize(
    ("puzzle", "old", "new", "says"),
    [
        ("tiled_matmul", "grid=(M // bm, N // bn, K // bk)", "grid=(M, N, K)", "25,165,824 steps"),
        ("row_sum", GRID, "grid=(10**9, 1)", "has 1,000,000,000 steps. It counts blocks"),
        ("row_sum", GRID, "grid=(M // bm, -1)", "has -1 steps on axis 1"),
    ],
)
def test_a_grid_is_counted_before_it_is_listed(
    nothing_is_listed: None, puzzle: str, old: str, new: str, says: str
) -> None:
    verdict = judged(puzzle, (old, new))
    assert says in verdict.says
    assert verdict.headline.startswith(f"✗ {puzzle}: it was not run (case ")


SUM = "    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)"


def test_an_endless_loop_around_plain_jax_is_a_verdict() -> None:
    puzzle = puzzles.find("group_offsets")

    def group_offsets(sizes):
        n = jax.lax.while_loop(lambda n: n < 2, lambda n: (n ^ 1) + 0 * sizes[0], sizes[0] * 0)
        return puzzle.solution(sizes) + n

    verdict = judge(puzzle, group_offsets)
    assert "A `while` loop does not end" in verdict.says


@pytest.mark.parametrize(
    "loop",
    [
        "jax.lax.fori_loop(0, 10**9, lambda i, s: s + i, 0)",
        "jax.lax.fori_loop(0, 10**5, lambda i, s: jax.lax.fori_loop(0, 10**5, "
        "lambda j, s: s + j, s), 0)",
    ],
)
def test_a_loop_of_known_length_is_counted_before_it_runs(
    nothing_is_listed: None, loop: str
) -> None:
    verdict = judged("row_sum", (SUM, f"    o_ref[...] += {loop} * 1.0"))
    assert "0,000 turns would take hours" in verdict.says


def test_settings_do_not_survive_a_check() -> None:
    before = dict(jax.config.values)
    judged(
        "row_sum",
        (
            "    M, N = x.shape\n",
            "    jax.config.update('jax_enable_x64', True)\n"
            "    jax.config.update('jax_default_matmul_precision', 'bfloat16')\n"
            "    jax.config.update('jax_debug_nans', True)\n    M, N = x.shape\n",
        ),
    )
    assert dict(jax.config.values) == before
    assert judge(ROW_SUM, ROW_SUM.solution).passed


def test_what_an_interrupt_leaves_half_ended_in_jax_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info, core = jax._src.source_info_util, jax._src.core
    ends = info.UserContextManager.__exit__

    def interrupted(*args: Any) -> Any:
        if core.trace_ctx.is_top_level():  # who traces puts back what was before
            raise KeyboardInterrupt
        return ends(*args)

    with monkeypatch.context() as patched:
        patched.setattr(info.UserContextManager, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            judged("row_sum", (SUM, SUM + " + 0"))
    assert "half_ended" in str(info.current().traceback), "each equation would name one old line"
    assert core.trace_ctx.is_top_level()


@pytest.mark.parametrize("observed", [False, True])
def test_nobody_writes_into_the_tables_of_kernels(observed: bool) -> None:
    """Nor does the spec, which gets the same ones."""

    def row_sum(x, table):
        table[0] += 1
        return ROW_SUM.solution(x)

    puzzle = dataclasses.replace(
        ROW_SUM,
        spec=lambda x, table: ROW_SUM.spec(x),
        inputs=lambda key, **dims: (*ROW_SUM.inputs(key, **dims), np.arange(3)),
        observe=(lambda fn: lambda *args: fn(*args)) if observed else None,
    )
    verdict = judge(puzzle, row_sum)
    assert verdict.stage == "error"
    assert "read-only" in verdict.says
    with pytest.raises(ValueError, match="read-only"):
        judge(dataclasses.replace(puzzle, spec=row_sum), row_sum)
