"""Programs rewritten before they run: here, dots that are summed in f64."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from puzzles._jax import ClosedJaxpr, x64
from puzzles._launch import quickly, with_exact_dots

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

    def largest_error(program: ClosedJaxpr) -> float:
        (got,) = quickly(program, (a, b))
        assert got.dtype == np.float32
        return float(np.max(np.abs(got - true) / steps))

    program = jax.make_jaxpr(fn)(a, b)
    assert largest_error(program) > 2
    with x64():
        assert largest_error(with_exact_dots(program)) < 1


def test_a_dot_to_another_dtype_stays_as_it_is() -> None:
    a = jnp.ones((8, 8), jnp.bfloat16)
    program = jax.make_jaxpr(lambda a: jnp.dot(a, a))(a)
    assert str(with_exact_dots(program)) == str(program)


def test_a_product_is_rounded_before_it_is_added_to() -> None:
    """A CPU would multiply and subtract in one step: of two branches, only one may be so."""
    x = np.full((64, 128), 2**21 * 5.625, np.float32)
    factor = np.float32(32**-0.5)
    program = jax.make_jaxpr(lambda x, m: jnp.exp(x * factor - m))(x, x * factor)
    (got,) = quickly(program, (x, x * factor))
    assert (got == 1).all()
    (nan,) = quickly(program, (np.full_like(x, np.nan), x * factor))
    assert np.isnan(nan).all()
