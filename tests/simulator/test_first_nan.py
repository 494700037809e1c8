"""The origin of NaN and infinity: the line that makes them of finite numbers."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from launched import call

from puzzles._launch import Traced, trace_call
from puzzles._simulator import first_not_finite

X = jnp.arange(16 * 128, dtype=jnp.float32).reshape(16, 128)  # up to 2047


def launched(kernel: Callable, x: jax.Array = X) -> Traced:
    row = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return trace_call(call(kernel, x, (2,), [row], row), x)


def test_a_line_of_a_function_is_named_with_what_it_is_given() -> None:
    def softmax(x):
        e = jnp.exp(x)
        return e / e.sum()

    assert first_not_finite(trace_call(softmax, jnp.array([1.0, 99.0]))) == (
        "`e = jnp.exp(x)` makes the first number that is not finite: its `exp` is given 99."
    )


def test_a_line_of_a_kernel_is_named_under_a_branch_too() -> None:
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 1)
        def _():
            o_ref[...] = x_ref[...] / (x_ref[...] - 1030)

        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = x_ref[...]

    found = first_not_finite(launched(kernel))
    assert found is not None
    assert found.startswith(
        "`o_ref[...] = x_ref[...] / (x_ref[...] - 1030)` makes the first number"
    )
    assert found.endswith("it divides by 0.")


def test_a_column_of_divisors_is_told_by_its_number() -> None:
    def kernel(x_ref, o_ref):
        o_ref[...] = jax.lax.div(x_ref[...] + 1, x_ref[:, :1] * 0)

    found = first_not_finite(launched(kernel))
    assert found is not None
    assert found.endswith("it divides by 0.")


def test_what_stays_finite_or_was_not_to_begin_with_has_no_such_line() -> None:
    def kernel(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    assert first_not_finite(launched(kernel)) is None
    assert first_not_finite(launched(kernel, X.at[0, 0].set(jnp.nan))) is None
