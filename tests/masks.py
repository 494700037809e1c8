"""Random calls of attention: any heads, lengths, blocks, documents, cap and mask.

A mask is one of JAX's own classes, or squares, rectangles and bands; rows may see nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from puzzles.splash_attention._gradients import rule_of
from puzzles.splash_attention._graduation import Case, draw, shipped

# The mask for JAX: an object of a class of JAX for all heads, or an object for each head.
KINDS = ("CausalMask", "LocalMask", "ChunkedCausalMask", "FullMask", "NumpyMask", "one each")
HEADS = [(1, 1), (2, 1), (4, 1), (3, 3), (4, 4), (4, 2), (6, 2), (8, 4)]


def scattered(r: np.random.Generator, T: int, S: int) -> np.ndarray:
    """Squares of 1 to 128 elements, each seen or not by chance."""
    size, share = int(r.choice([1, 32, 64, 128])), r.uniform(0.02, 0.98)
    return np.kron(r.random((T // size, S // size)) < share, np.ones((size, size))) > 0


def rectangles(r: np.random.Generator, T: int, S: int) -> np.ndarray:
    """A few rectangles with edges anywhere; often rows of blocks are empty."""
    mask = np.zeros((T, S), bool)
    for _ in range(r.integers(1, 5)):
        (a, b), (c, d) = (sorted(r.integers(0, n, 2)) for n in (T, S))
        mask[a : b + 1, c : d + 1] = True
    return mask


def band(r: np.random.Generator, T: int, S: int) -> np.ndarray:
    """A window around a row's own number, plus an offset."""
    i, j = np.indices((T, S))
    ahead = j - i - r.integers(-T // 4, S // 4 + 1)
    return (ahead <= r.integers(0, S // 2)) & (-ahead <= r.integers(0, T))


def rough(r: np.random.Generator, T: int, S: int) -> np.ndarray:
    """A mask without a formula, or two of them joined."""
    one, other = (r.choice([scattered, rectangles, band])(r, T, S) for _ in range(2))
    return [one, other, one & other, one | other][r.integers(4)]


def one_mask(r: np.random.Generator, kind: str, T: int, S: int) -> tuple[str, tuple]:
    """A class of JAX's and its arguments."""
    offset = int(r.integers(-T // 4, S // 4 + 1)) * int(r.integers(2))
    if kind == "CausalMask":
        return kind, ((T, S), offset)
    if kind == "LocalMask":
        window = tuple(None if r.random() < 0.2 else int(r.integers(n)) for n in (T, S // 2))
        return kind, ((T, S), window, offset)
    if kind == "ChunkedCausalMask":
        return kind, ((T, S), int(r.integers(1, max(T, S))))
    if kind == "FullMask":
        return kind, ((T, S),)
    return kind, (rough(r, T, S),)


def learners(name: str, args: tuple) -> Callable | np.ndarray:
    """The same mask for a learner's function: a rule if there is a formula, else an array."""
    if name == "LocalMask":
        shape, window, offset = args
        args = shape, tuple(2 * sum(shape) if n is None else n for n in window), offset
    return rule_of(name, args) or np.array(shipped(name, *args)[:, :])


def drawn(number: int, most: int = 1024) -> Case:
    """Up to `most` queries and keys, of 1 to 4 documents."""
    r, kind = np.random.default_rng([7, number]), KINDS[number % len(KINDS)]
    N, K = HEADS[r.integers(len(HEADS))]
    bq, bk = (int(n) for n in r.choice([128, 256], 2))
    blocks = most // (256 if N < 6 else 512)
    T, S = (256 * int(n) for n in r.integers(1, blocks + 1, 2))
    H = int(r.choice([64, 128]))
    Hv, dtype = [H, H, 192 - H][r.integers(3)], [jnp.float32, jnp.bfloat16][r.integers(2)]
    arrays = draw(number, N, K, T, S, H, Hv, dtype)
    if kind == "one each":
        theirs = tuple(one_mask(r, one, T, S) for one in r.choice(KINDS[:-1], N))
        mask = np.stack([np.array(shipped(name, *args)[:, :]) for name, args in theirs])
    else:
        theirs = (one_mask(r, kind, T, S),)
        mask = learners(*theirs[0])
    ids, documents = None, r.integers(1, 5)
    if documents > 1:
        cuts = np.sort(r.integers(1, min(T, S), documents - 1))
        ids = tuple(
            jnp.asarray(np.searchsorted(cuts, np.arange(n), side="right"), jnp.int32)
            for n in (T, S)
        )
    cap = [None, float(r.uniform(1, 50))][r.integers(2)]
    return Case(*arrays, mask, ids, cap, bq, bk, theirs)


def with_a_cap_of_half(attention: Callable) -> Callable:
    """A wrong answer: attends under half of its cap."""

    def capped(q, k, v, mask, segment_ids=None, soft_cap=None, *, bq, bk):
        return attention(q, k, v, mask, segment_ids, soft_cap and soft_cap / 2, bq=bq, bk=bk)

    return capped
