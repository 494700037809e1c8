"""Linear attention, gated or not, next to a recurrence in float64 and to tpu-inference's chunks.

tpu-inference's v3 kernel runs `chunked_gdn_per_seq` in each chunk. This is the gated delta rule: it
subtracts from each value the value that the state already returns for its key. With a tiny beta the
state is tiny, and almost nothing is subtracted: the result is beta times gated linear attention.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import sample
import wheels

from puzzles import find

SHAPES = [(1, 128, 8, 8, 128), (3, 640, 32, 64, 128), (2, 1024, 128, 128, 256), (4, 96, 16, 8, 32)]
RATES = [0.0, 0.01, 3.0]  # mean decays; with 0.0, linear_attention
BETA = 2.0**-40
Draw = tuple[np.ndarray, ...]


def drawn(N: int, T: int, H: int, Hv: int, rate: float) -> Draw:
    r = np.random.default_rng(N * T)
    q, k, v = (r.normal(size=(N, T, size)).astype(np.float32) for size in (H, H, Hv))
    return q, k, v, -r.exponential(rate, size=(N, T)).astype(np.float32)


def ours(arrays: Draw, C: int) -> np.ndarray:
    if arrays[3].any():
        return find("gated_linear_attention").solution(*arrays, C=C)
    return find("linear_attention").solution(*arrays[:3], C=C)


def recurrence(*arrays: np.ndarray) -> np.ndarray:
    """One token after the other, in float64."""
    q, k, v, decay = (np.asarray(x, np.float64) for x in arrays)
    state, o = np.zeros((len(q), q.shape[2], v.shape[2])), np.zeros(v.shape)
    for t in range(q.shape[1]):
        state *= np.exp(decay[:, t, None, None])
        state += k[:, t, :, None] * v[:, t, None, :]
        o[:, t] = np.einsum("nh,nhv->nv", q[:, t], state)
    return o


def production(arrays: Draw, C: int) -> np.ndarray:
    """tpu-inference's chunks one after the other, with a beta of almost zero."""
    gdn = "tpu_inference.kernels.gdn.v3"
    config, kernel = (wheels.module(f"{gdn}.{name}") for name in ("config", "compute_gdn"))
    q, k, v, decay = arrays
    (N, T, H), Hv = q.shape, v.shape[2]
    cfg = config.GDNConfig(
        config.GDNMode.PER_SEQ, config.Dtypes(*5 * [jnp.float32]), batch_size=1,
        dim_size=N * (2 * H + Hv), kernel_size=4, tile_size=C, num_kq_heads=N, num_v_heads=N,
        kq_head_dim=H, v_head_dim=Hv,
    )  # fmt: skip
    state, o = jnp.zeros((N, H, Hv)), []
    for c in range(0, T, C):
        part = (x[:, c : c + C] for x in (q, k, v))
        gating = jnp.asarray(decay[:, c : c + C].T[None])
        beta = jnp.full_like(gating, BETA)
        out, state = kernel.chunked_gdn_per_seq(*part, gating, beta, state, cfg)
        o.append(out)
    return np.concatenate(o, axis=1) / BETA


def near(ours: np.ndarray, theirs: np.ndarray, largest: float) -> None:
    scale = np.sqrt(np.mean(np.square(theirs)))
    slack = 2e-5 + 1e-6 * largest  # float32 rounds a running sum, and then a power, by 6e-8 of it
    np.testing.assert_allclose(ours / scale, theirs / scale, rtol=slack, atol=slack)


@pytest.mark.graduate
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", sample.some(SHAPES))
def test_linear_attention_is_its_recurrence(shape: tuple[int, ...], rate: float) -> None:
    *sizes, C = shape
    arrays = drawn(*sizes, rate)
    near(ours(arrays, C), recurrence(*arrays), rate * C)


@pytest.mark.graduate
@pytest.mark.newest
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_attention_is_a_chunk_of_production(shape: tuple[int, ...], rate: float) -> None:
    *sizes, C = shape
    arrays = drawn(*sizes, rate)
    near(ours(arrays, C), production(arrays, C), rate * C)
