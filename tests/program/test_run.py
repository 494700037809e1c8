"""Programs around their launches: loops that do not end."""

from __future__ import annotations

import jax
import pytest

from puzzles._launch import trace_call
from puzzles._program import LoopLimitError
from puzzles._simulator import step_by_step


def test_a_loop_that_does_not_end_is_told_and_never_handed_to_jax() -> None:
    traced = trace_call(lambda n: jax.lax.while_loop(lambda m: m >= n, lambda m: m + 1, n), 0)
    with pytest.raises(LoopLimitError, match="stopped after 10,000 turns"):
        step_by_step(traced)
