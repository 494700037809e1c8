"""`tile_metadata` is the list of visits that JAX's own grouped matmul, Megablox, goes through."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from puzzles.grouped_matmul.tile_metadata import tile_metadata

EACH = 50  # group sizes for each of six shapes: 300


def megablox(group_sizes, M, bm):
    """(group_ids, tile_ids, num_steps) as `gmm` computes them."""
    # By its full name: the package calls its function `gmm`, too.
    gmm = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    (_, group_ids, tile_ids), num_steps = gmm.make_group_metadata(
        group_sizes=group_sizes,
        m=M,
        tm=bm,
        start_group=jnp.int32(0),
        num_nonzero_groups=len(group_sizes),
        visit_empty_groups=False,
    )
    return group_ids, tile_ids, num_steps


def parts(r, total, E):
    """Sizes of E groups that add up to `total`."""
    cuts = np.sort(r.integers(0, total + 1, E - 1))
    return np.diff(cuts, prepend=0, append=total)


def with_empty_groups(r, M, E, bm):
    sizes, some = np.zeros(E, int), r.random(E) < 0.4
    sizes[some] = parts(r, M, some.sum()) if some.any() else 0
    return sizes


def one_has_everything(r, M, E, bm):
    return M * (np.arange(E) == r.integers(E))


def below_the_sum(r, M, E, bm):
    return parts(r, r.integers(M), E)


def whole_tiles(r, M, E, bm):
    return bm * parts(r, M // bm, E)


def many_in_one_tile(r, M, E, bm):
    return parts(r, min(M, bm), E)


DRAWS = (
    lambda r, M, E, bm: parts(r, M, E),
    with_empty_groups,
    one_has_everything,
    below_the_sum,
    whole_tiles,
    many_in_one_tile,
)


@pytest.mark.parametrize(
    ("E", "M", "bm"),
    [(5, 512, 128), (8, 1024, 64), (1, 384, 128), (16, 512, 32), (64, 1024, 128), (3, 128, 128)],
)
def test_the_visits_are_those_of_megablox(E, M, bm):
    mine, theirs = (jax.jit(functools.partial(fn, M=M, bm=bm)) for fn in (tile_metadata, megablox))
    for n in range(EACH):
        r = np.random.default_rng((E, M, n))
        sizes = DRAWS[n % len(DRAWS)](r, M, E, bm)
        got, want = (
            [np.asarray(x) for x in fn(jnp.asarray(sizes, jnp.int32))] for fn in (mine, theirs)
        )
        steps = int(want[2])
        assert got[2] == steps, sizes
        for a, b in zip(got[:2], want[:2], strict=True):
            assert a.shape == b.shape == (M // bm + E - 1,)
            assert a.dtype == np.int32
            np.testing.assert_array_equal(a[:steps], b[:steps], err_msg=str(sizes))
        # What nobody visits is legal, and repeats the last visit.
        assert ((got[0] >= 0) & (got[0] < E) & (got[1] >= 0) & (got[1] < M // bm)).all(), sizes
        assert all(len(set(x[max(steps, 1) - 1 :].tolist())) == 1 for x in got[:2]), sizes


def test_nothing_to_do_is_no_step():
    group_ids, tile_ids, steps = tile_metadata(jnp.zeros(4, jnp.int32), 256, 64)
    assert steps == 0
    assert not group_ids.any()
    assert not tile_ids.any()
