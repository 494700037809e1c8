"""Programs compiled for the CPU read what they are given."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample

from puzzles._launch import on_cpu


def _through_on_cpu(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    program = jax.make_jaxpr(jnp.dot)(a, b)
    return np.asarray(on_cpu(program, [a, b])[0])


@sample.in_turn
@pytest.mark.parametrize("dot", [_through_on_cpu, jax.jit(jnp.dot)])
def test_a_dot_reads_the_factor_that_it_is_given_now(dot: Callable) -> None:
    r = np.random.default_rng(0)
    a = r.normal(size=(128, 384)).astype(np.float32)
    b = r.normal(size=(384, 512)).astype(np.float32)
    want = a @ b
    stale = 0
    for n in range(300):  # arrays come and go, and a new one lies where another lay
        sign = np.float32(-1 if n % 2 else 1)
        got = np.asarray(dot(a, b * sign))
        stale += not np.allclose(got, want * sign, atol=1e-3)
    assert stale == 0
