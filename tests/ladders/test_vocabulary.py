"""The loss of a large vocabulary next to `jax.nn.log_softmax`, float64 and tokamax's kernels."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
import wheels

from puzzles import find
from puzzles._launch import trace_call
from puzzles._simulator import simulate

SHAPES = [(128, 64, 512), (384, 96, 1280), (256, 256, 256), (128, 8, 5120)]
BLOCKS = dict(b_block_size=1024, h_block_size=128, v_block_size=256)  # tokamax's
Draw = tuple[jax.Array, jax.Array, jax.Array]


def production() -> ModuleType:
    package = "tokamax._src.ops.linear_softmax_cross_entropy_loss"
    return wheels.module(f"{package}.pallas_mosaic_tpu_kernel")


def drawn(T: int, D: int, V: int, far: float = 9) -> Draw:
    r = np.random.default_rng(T * V)
    x, w = (
        r.normal(size=(T, D)) + r.uniform(-far, far, (T, 1)),
        r.normal(0.5, 1, (D, V)) * 2 / D**0.5,
    )
    labels = jnp.asarray(r.integers(0, V, (T, 1)), jnp.int32)
    return jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32), labels


def exact(x: jax.Array, w: jax.Array, labels: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """(loss, lse) in float64."""
    logits = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    top = logits.max(axis=1, keepdims=True)
    lse = top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return lse - np.take_along_axis(logits, np.asarray(labels), axis=1), lse


def near(ours: object, theirs: object, tolerance: float = 2e-6) -> None:
    scale = np.sqrt(np.mean(np.square(theirs)))
    np.testing.assert_allclose(ours / scale, theirs / scale, rtol=tolerance, atol=tolerance)


@pytest.mark.graduate
@pytest.mark.parametrize("shape", sample.some(SHAPES))
def test_the_loss_is_that_of_log_softmax_and_of_float64(shape: tuple[int, ...]) -> None:
    x, w, labels = drawn(*shape)
    loss, lse = find("vocabulary_loss").solution(x, w, labels)
    for ours, theirs in zip((loss, lse), exact(x, w, labels), strict=True):
        near(ours, theirs)
    log_p = jax.nn.log_softmax(jnp.dot(x, w, precision="highest"), axis=1)
    near(loss, -np.take_along_axis(np.asarray(log_p), np.asarray(labels), axis=1))


@pytest.mark.graduate
@pytest.mark.newest
@pytest.mark.parametrize(("T", "D", "V"), [(1024, 256, 1024), (2048, 128, 768)])
def test_the_loss_is_that_of_tokamax(T: int, D: int, V: int) -> None:
    """tokamax returns the sum over all tokens; its labels and lse are flat."""
    x, w, labels = drawn(T, D, V)
    loss, lse = find("vocabulary_loss").solution(x, w, labels)
    theirs = production().linear_softmax_cross_entropy_loss_fwd_pallas_mosaic_tpu
    total, their_lse = simulate(trace_call(partial(theirs, **BLOCKS), x, labels[:, 0], w))
    near(np.sum(loss), total)
    near(lse[:, 0], their_lse)


def exact_gradients(x: jax.Array, w: jax.Array, labels: jax.Array, g: np.ndarray) -> Any:
    """(dx, dw) in float64."""
    (_, lse), (x, w) = exact(x, w, labels), (np.asarray(a, np.float64) for a in (x, w))
    ds = np.exp(x @ w - lse)
    ds[np.arange(len(x)), np.asarray(labels)[:, 0]] -= 1
    return g * ds @ w.T, x.T @ (g * ds)


@pytest.mark.graduate
@pytest.mark.parametrize("shape", sample.some(SHAPES))
def test_the_gradients_are_those_of_float64(shape: tuple[int, ...]) -> None:
    x, w, labels = drawn(*shape, far=1)
    g = np.random.default_rng(0).normal(size=(len(x), 1))
    lse, one = (jnp.asarray(a, jnp.float32) for a in (exact(x, w, labels)[1], g))
    ours = find("vocabulary_gradients").solution(x, w, labels, lse, one)
    for mine, theirs in zip(ours, exact_gradients(x, w, labels, g), strict=True):
        near(mine, theirs, 5e-5)


@pytest.mark.graduate
@pytest.mark.newest
@pytest.mark.parametrize(("T", "D", "V"), [(1024, 256, 1024), (2048, 128, 768)])
def test_the_gradients_are_those_of_tokamax(T: int, D: int, V: int) -> None:
    """tokamax's gradient is that of the sum, so g is the same for all tokens."""
    x, w, labels = drawn(T, D, V, far=1)
    lse, g = jnp.asarray(exact(x, w, labels)[1], jnp.float32), jnp.full((T, 1), 0.5)
    ours = find("vocabulary_gradients").solution(x, w, labels, lse, g)
    theirs = production().linear_softmax_cross_entropy_loss_bwd_pallas_mosaic_tpu
    arguments = jnp.float32(0.5), lse[:, 0], x, labels[:, 0], w
    others = simulate(trace_call(partial(theirs, **BLOCKS), *arguments))
    for mine, other in zip(ours, others, strict=True):
        near(mine, other, 5e-5)
