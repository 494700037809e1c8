"""attention_lse beside JAX's own kernel, and merged parts beside the whole."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample

from puzzles import find
from puzzles.splash_attention import _graduation as graduation
from puzzles.splash_attention.attention_lse import listed

attend = find("attention_lse").solution
merge = find("merge_attention").solution
needs_splash = pytest.mark.skipif(not graduation.has_splash(), reason="this JAX ships no splash")


def drawn(seed: int, T: int, S: int, H: int, Hv: int) -> tuple[jax.Array, ...]:
    r = np.random.default_rng(seed)
    shapes = (T, H), (S, H), (S, Hv)
    return tuple(jnp.asarray(r.normal(size=shape), jnp.float32) for shape in shapes)


def window(T: int, S: int, width: int) -> np.ndarray:
    t, s = np.indices((T, S))
    return (s <= t) & (t - s < width) & (t % 7 != 3)


def same(one: tuple, other: tuple) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@needs_splash
@pytest.mark.slow
def test_lse_is_that_of_production() -> None:
    """On rows that see something; production leaves the scale to its caller."""
    package = "jax.experimental.pallas.ops.tpu.splash_attention"
    kernels = importlib.import_module(f"{package}.splash_attention_kernel")
    masks = importlib.import_module(f"{package}.splash_attention_mask")
    q, k, v = drawn(0, 256, 384, 128, 128)
    t, s = np.indices((256, 384))
    mask = (s <= t + 40) & (t - s < 150)
    kernel = kernels.make_splash_mha_single_device(
        mask=masks.MultiHeadMask([masks.NumpyMask(mask)]),
        block_sizes=kernels.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128),
        save_residuals=True,
        interpret=True,
    )
    theirs, (theirs_lse,) = kernel((q * 128**-0.5)[None], k[None], v[None])
    o, lse = attend(q, k, v, *listed(mask, 128, 128))
    np.testing.assert_allclose(o, theirs[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(lse[:, 0], theirs_lse[0], rtol=1e-4, atol=1e-4)


@pytest.mark.graduate
@pytest.mark.parametrize("cut", sample.some([128, 256, 384]))
def test_two_parts_merge_into_the_whole(cut: int) -> None:
    q, k, v = drawn(1, 256, 512, 64, 32)
    mask = window(256, 512, 100)  # no row sees the second half, and some see nothing
    whole = attend(q, k, v, *listed(mask, 64, 128))
    first, second = (
        attend(q, k[part], v[part], *listed(mask[:, part], 64, 128))
        for part in (np.s_[:cut], np.s_[cut:])
    )
    same(merge(*first, *second), whole)
    assert np.isneginf(whole[1]).any()


def test_the_order_of_merging_does_not_matter() -> None:
    r = np.random.default_rng(2)
    parts = []
    for _ in range(3):
        lse = r.normal(0, 30, (40, 1))
        lse[r.random(40) < 0.4] = -np.inf
        o = np.where(np.isinf(lse), 0, r.normal(size=(40, 8)))
        parts.append((jnp.asarray(o, jnp.float32), jnp.asarray(lse, jnp.float32)))
    a, b, c = parts
    same(merge(*merge(*a, *b), *c), merge(*a, *merge(*b, *c)))
    same(merge(*a, *b), merge(*b, *a))


def test_merging_has_gradients_that_are_numbers_even_in_empty_rows() -> None:
    lse = jnp.full((8, 1), -jnp.inf)
    o = jnp.ones((8, 4))

    def total(o1: jax.Array, o2: jax.Array) -> jax.Array:
        return merge(o1, lse, o2, jnp.zeros((8, 1)))[0].sum()

    first, second = jax.grad(total, (0, 1))(o, o)
    assert (np.asarray(first) == 0).all()
    assert (np.asarray(second) == 1).all()


def sinking(arrays: tuple[jax.Array, ...], mask: np.ndarray, sink: float) -> np.ndarray:
    """Dense attention in float64 with one more score in each row's sum, and no value for it."""
    q, k, v = (np.asarray(x, np.float64) for x in arrays)
    weights = np.where(mask, np.exp(q @ k.T / q.shape[1] ** 0.5), 0)
    return weights @ v / (weights.sum(axis=1, keepdims=True) + np.exp(sink))


@pytest.mark.graduate
@pytest.mark.parametrize("sink", sample.some([-3.0, 2.5, 20.0]))
def test_a_sink_is_a_part_without_values(sink: float) -> None:
    q, k, v = drawn(3, 256, 256, 64, 32)
    mask = window(256, 256, 90)
    o, lse = attend(q, k, v, *listed(mask, 128, 128))
    o, lse = merge(o, lse, jnp.zeros_like(o), jnp.full_like(lse, sink))
    np.testing.assert_allclose(o, sinking((q, k, v), mask, sink), rtol=1e-4, atol=1e-5)
    blind = ~mask.any(axis=1)
    assert (np.asarray(o)[blind] == 0).all()
    assert (np.asarray(lse)[blind] == sink).all()
