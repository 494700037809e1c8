"""Programs rewritten before they run: what XLA's CPU would round less often, or die of."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from launched import call, copy_kernel

from puzzles._launch import exactly, quickly

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

    assert largest_error(quickly) > 2
    assert largest_error(exactly) < 1


def test_a_dot_to_another_dtype_is_left_to_jax() -> None:
    a = np.random.default_rng(0).normal(size=(8, 512)).astype(jnp.bfloat16)
    program = jax.make_jaxpr(lambda a: jnp.dot(a, a.T))(a)
    np.testing.assert_array_equal(exactly(program, (a,))[0], quickly(program, (a,))[0])


def test_narrow_products_are_rounded_before_they_are_added_up() -> None:
    """Else sums of 128 bf16 products are off by some hundredths."""
    r = np.random.default_rng(0)
    a, b = (r.normal(size=(64, 128)).astype(jnp.bfloat16) for _ in range(2))
    program = jax.make_jaxpr(lambda a, b: jnp.sum((a * b).astype(jnp.float32), axis=1))(a, b)
    (got,) = quickly(program, (a, b))
    want = (a * b).astype(np.float64).sum(axis=1)  # NumPy rounds each product
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_product_is_rounded_before_it_is_added_to() -> None:
    """A CPU would multiply and subtract in one step: of two branches, only one may be so."""
    x = np.full((64, 128), 2**21 * 5.625, np.float32)
    factor = np.float32(32**-0.5)
    program = jax.make_jaxpr(lambda x, m: jnp.exp(x * factor - m))(x, x * factor)
    (got,) = quickly(program, (x, x * factor))
    assert (got == 1).all()
    (nan,) = quickly(program, (np.full_like(x, np.nan), x * factor))
    assert np.isnan(nan).all()


@pytest.mark.parametrize(("divide", "by_zero"), [(jax.lax.div, -1), (jax.lax.rem, 128)])
def test_a_division_by_what_is_known_to_be_0_ends_no_process(
    divide: Callable, by_zero: int
) -> None:
    """JAX 0.10's own compiler dies of it, in an index map, too."""

    def turns(n: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 2, lambda i, c: c + divide(jnp.int32(128), i * n), n)

    (got,) = quickly(jax.make_jaxpr(turns)(jnp.int32(0)), [jnp.int32(0)])
    assert got == 2 * by_zero
    (got,) = quickly(jax.make_jaxpr(lambda n: divide(n, jnp.int32(3)))(7), [jnp.int32(-7)])
    assert got == divide(-7, 3)

    x = jnp.ones((8, 256))
    read = pl.BlockSpec((8, 128), lambda i, j: (divide(128, i * 64), j))
    written = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    launch = call(copy_kernel, x, (1, 2), [read], written)
    (got,) = quickly(jax.make_jaxpr(launch)(x), [x])
    assert got.shape == (8, 256)
