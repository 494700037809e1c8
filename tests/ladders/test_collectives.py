"""The collectives ladder in JAX's own simulator, and its last puzzles on data nobody tuned for."""

from __future__ import annotations

import re
from functools import partial

import jax
import numpy as np
import pytest
import sample
from cpu_devices import in_jax

import puzzles
from puzzles import Puzzle, on_devices

LADDER = puzzles.ladder("collectives")
EPSILON = 1e-5  # of the largest value, in float32


@pytest.mark.graduate
@pytest.mark.parametrize("puzzle", sample.share(LADDER, 8), ids=lambda puzzle: puzzle.name)
def test_a_reference_gives_in_jax_what_its_spec_gives(puzzle: Puzzle) -> None:
    (differences,) = in_jax(puzzle.name).values()
    assert len(differences) == len(puzzle.cases)
    assert max(differences) < EPSILON


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention in float64, without blocks."""
    q, k, v = (np.concatenate(a).astype(np.float64) for a in (q, k, v))
    scores = q @ k.T / np.sqrt(q.shape[1])
    scores[np.triu_indices(len(q), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
def test_ring_attention_is_dense_attention(devices: int) -> None:
    r = np.random.default_rng(devices)
    q, k, v = (r.normal(size=(devices, 24, 128)).astype(np.float32) for _ in range(3))
    ours = on_devices(puzzles.find("ring_attention").solution, q, k, v, axes={"x": devices})
    np.testing.assert_allclose(np.concatenate(np.asarray(ours)), attention(q, k, v), atol=2e-6)


@pytest.mark.parametrize("full", [False, True])
def test_dispatch_moves_each_row_once_whatever_the_router_says(full: bool) -> None:
    r, n, T = np.random.default_rng(0), 4, 32
    sizes = np.full((n, n), T // n) if full else r.multinomial(T, [0.7, 0.0, 0.3, 0.0], n)
    sizes = sizes if full else np.minimum(sizes, T // n)
    starts, places = np.cumsum(sizes, 1) - sizes, np.cumsum(sizes, 0) - sizes
    x = r.normal(size=(n, T, 1, 128)).astype(np.float32)
    wanted = np.zeros_like(x)
    for i, j in np.ndindex(n, n):
        rows = x[i, starts[i, j] : starts[i, j] + sizes[i, j]]
        wanted[j, places[i, j] : places[i, j] + sizes[i, j]] = rows
    lists = [a.astype(np.int32) for a in (starts, sizes, places, sizes.T)]
    ours = on_devices(puzzles.find("dispatch_tokens").solution, x, *lists, axes={"x": n})
    np.testing.assert_array_equal(np.asarray(ours), wanted)


def test_dispatch_gives_what_jax_documents_of_ragged_all_to_all() -> None:
    # XLA has no ragged all-to-all for CPUs, but its documentation has an example on two devices.
    example = jax.lax.ragged_all_to_all.__doc__.partition("along an axis of size 2")[2]
    found = re.findall(r"(\w+) = \[(.*?)\]", example)
    of = {name: np.array([eval(row) for other, row in found if other == name]) for name, _ in found}
    x = np.pad(of["operand"], ((0, 0), (0, 1))).reshape(2, 4, 1, 1)
    lists = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    args = np.tile(x, 128).astype(np.float32), *(of[name].astype(np.int32) for name in lists)
    ours = on_devices(puzzles.find("dispatch_tokens").solution, *args, axes={"x": 2})
    np.testing.assert_array_equal(np.asarray(ours)[..., 0, 5], of["result"])


def test_the_summit_multiplies_in_any_blocks() -> None:
    r, n, solution = np.random.default_rng(1), 4, puzzles.find("collective_matmul").solution
    x = r.normal(size=(n, 64, 256)).astype(np.float32)
    w = r.normal(size=(n, 256, 384)).astype(np.float32)
    ours = np.asarray(on_devices(partial(solution, bm=16, bk=128, bn=128), x, w, axes={"x": n}))
    rows = np.concatenate(x).astype(np.float64)
    for device in range(n):
        np.testing.assert_allclose(ours[device], rows @ w[device], rtol=1e-4, atol=1e-3)
