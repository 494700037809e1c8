"""Programs around their launches: their dots, and loops that do not end."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from puzzles._launch import Endless, by_jax, exactly, step_by_step, trace_call

TERMS = 4096


def _plain(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _scanned(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda none, row: (none, jax.jit(_plain)(row[None], b)[0]), None, a)[1]


@pytest.mark.parametrize("fn", [_plain, _scanned])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_sum_that_climbs_and_comes_back_is_rounded_once(fn: Callable, dtype: type) -> None:
    r = np.random.default_rng(0)
    up_and_down = np.where(np.arange(TERMS) < TERMS // 2, 100, -100)
    a = jnp.asarray(r.normal(size=(8, TERMS)) + up_and_down, dtype)
    b = jnp.asarray(r.normal(1, 1, (TERMS, 16)), dtype)
    true = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    steps = np.spacing(true.astype(np.float32)).astype(np.float64)

    def largest_error(run: Callable) -> float:
        (got,) = run(jax.make_jaxpr(fn)(a, b), (a, b))
        assert got.dtype == np.float32
        return float(np.max(np.abs(got - true) / steps))

    assert largest_error(by_jax) > 2
    assert largest_error(exactly) < 1


def test_a_dot_to_another_dtype_is_left_to_jax() -> None:
    a = np.random.default_rng(0).normal(size=(8, 512)).astype(jnp.bfloat16)
    program = jax.make_jaxpr(lambda a: jnp.dot(a, a.T))(a)
    np.testing.assert_array_equal(exactly(program, (a,))[0], by_jax(program, (a,))[0])


def test_a_loop_that_does_not_end_is_told_and_never_handed_to_jax() -> None:
    traced = trace_call(lambda n: jax.lax.while_loop(lambda m: m >= n, lambda m: m + 1, n), 0)
    with pytest.raises(Endless, match="stopped after 10,000 turns"):
        step_by_step(traced)
