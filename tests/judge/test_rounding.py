"""Narrow floats are rounded when a program says so, and as often as a puzzle allows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from puzzles._judge.case import execute
from puzzles._launch import trace_call
from puzzles._simulator import simulate


def chain(a, b):
    return (a + b) * b + a


def in_a_kernel(fn, *args):
    def kernel(*refs):
        *inputs, o_ref = refs
        o_ref[...] = fn(*(ref[...] for ref in inputs))

    form = jax.eval_shape(fn, *args)
    return pl.pallas_call(kernel, out_shape=form, interpret=True)(*args)


def truly(fn, *args):
    """`fn` one operation at a time, each rounded: NumPy knows no other way."""
    return np.asarray(fn(*args))


def summed(x, y):
    return x.astype(jnp.bfloat16).astype(jnp.float32).sum(1, keepdims=True) + y[:, :1]


@pytest.mark.parametrize("where", ["outside", "kernel", "simulator"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_each_operation_rounds(where: str, dtype: type) -> None:
    r = np.random.default_rng(0)
    args = tuple(jnp.asarray(r.normal(size=(16, 128)), jnp.float32).astype(dtype) for _ in "ab")
    fn = chain if where == "outside" else functools.partial(in_a_kernel, chain)
    traced = trace_call(fn, *args)
    run = simulate if where == "simulator" else execute
    expected = truly(chain, *map(np.asarray, args))
    np.testing.assert_array_equal(run(traced)[0].astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("kernel", [False, True])
def test_a_cast_that_is_fused_into_a_sum_is_not_lost(kernel: bool) -> None:
    """JAX 0.10's compiler drops the pair of casts, and the sum is 0.1 off."""
    r = np.random.default_rng(0)
    x, y = (jnp.asarray(r.normal(size=(64, 512)), jnp.float32) for _ in range(2))
    traced = trace_call(functools.partial(in_a_kernel, summed) if kernel else summed, x, y)
    got = execute(traced)[0]
    rounded = np.asarray(x).astype(jnp.bfloat16).astype(np.float64).sum(1, keepdims=True)
    np.testing.assert_allclose(got, rounded + np.asarray(y)[:, :1], atol=1e-4)
