"""1-D masks as columns: refused without libtpu, exactly when libtpu refuses them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import launched
import pytest
import sample
from jax.experimental import pallas as pl
from launched import call

from puzzles._compile import lowered, supported_chips
from puzzles._launch import Traced

BM = 64
S = jax.ShapeDtypeStruct
iota = jax.lax.broadcasted_iota


def rows(i):
    return i * BM + jnp.arange(BM)


# Each gives a mask that is broadcast to a block of (BM, 128): i is the program id, s a number from
# SMEM, x the block.
REFUSED: dict[str, Callable] = {
    "a mask of row numbers": lambda i, s, x: ((rows(i) >= s) & (rows(i) < s + 9))[:, None],
    "one comparison": lambda i, s, x: (rows(i) == s)[:, None],
    "without a program id": lambda i, s, x: (jnp.arange(BM) < 20)[:, None] & (x > 0),
    "by reshape": lambda i, s, x: (rows(i) >= s).reshape(BM, 1),
    "by expand_dims": lambda i, s, x: jnp.expand_dims(rows(i) >= s, 1),
    "by broadcast_in_dim": lambda i, s, x: jax.lax.broadcast_in_dim(rows(i) >= s, x.shape, (0,)),
    "negated": lambda i, s, x: (~(rows(i) >= s))[:, None],
    "of lax.iota": lambda i, s, x: (i * BM + jax.lax.iota(jnp.int32, BM) >= s)[:, None],
    "in a where": lambda i, s, x: jnp.where((rows(i) >= s)[:, None], x, 0.0) > 0,
    "of floats": lambda i, s, x: (rows(i).astype(jnp.float32) >= 2.5)[:, None],
}
TAKEN: dict[str, Callable] = {
    "iota in two dimensions": lambda i, s, x: i * BM + iota(jnp.int32, x.shape, 0) >= s,
    "iota as a column": lambda i, s, x: i * BM + iota(jnp.int32, (BM, 1), 0) >= s,
    "a constant column": lambda i, s, x: i * BM + jnp.arange(BM)[:, None] >= s,
    "numbers as a column": lambda i, s, x: rows(i)[:, None] >= s,
    "floats as a column": lambda i, s, x: rows(i).astype(jnp.float32)[:, None] >= 2.5,
    "a mask as numbers": lambda i, s, x: jnp.where(rows(i) >= s, 1.0, 0.0)[:, None] > 0,
    "a mask cast": lambda i, s, x: (rows(i) >= s).astype(jnp.int32)[:, None] > 0,
    "a mask as a row": lambda i, s, x: (i + jnp.arange(128) >= s)[None, :],
    "of a sum over columns": lambda i, s, x: (x.sum(1) > 0)[:, None],
    "any over columns": lambda i, s, x: jnp.any(x > 0, axis=1)[:, None],
    "of a column of the block": lambda i, s, x: (x[:, 0] > 0)[:, None],
    "of a column of iota": lambda i, s, x: (iota(jnp.int32, x.shape, 0)[:, 0] >= s)[:, None],
    "all true": lambda i, s, x: jnp.ones((BM,), bool)[:, None],
    "a sum over columns first": lambda i, s, x: ((x.sum(1) > 0) & (rows(i) >= s))[:, None],
}


def traced(mask: Callable) -> Traced:
    def kernel(s_ref, x_ref, o_ref):
        x = x_ref[...]
        o_ref[...] = jnp.where(mask(pl.program_id(0), s_ref[0], x), x, o_ref[...])

    spec = pl.BlockSpec((BM, 128), lambda i, _: (i, 0))

    def launch(s, x):
        return call(kernel, x, (3,), [spec], spec, scalars=1)(s, x)

    return launched.traced(launch, S((4,), jnp.int32), S((3 * BM, 128), jnp.float32))


@pytest.mark.parametrize("form", REFUSED)
def test_a_mask_that_becomes_a_column_is_refused_without_libtpu(form):
    (refused,) = lowered(traced(REFUSED[form]))
    assert "a 1-D mask does not become a column" in refused.says
    assert "jax.lax.broadcasted_iota" in refused.remedy


@pytest.mark.parametrize("form", TAKEN)
def test_what_libtpu_takes_is_not_refused(form):
    assert not list(lowered(traced(TAKEN[form])))


@pytest.mark.slow
@sample.drill
def test_libtpu_says_the_same(compiler):
    newest = "7x" in supported_chips()  # the libtpu of JAX 0.7.2 takes the masks, too
    # The libtpu of JAX 0.12 crashes instead of refusing.
    why = "Check failed: rem == 0" if jax.__version_info__ >= (0, 12) else "broadcasted_iota"
    for form, mask in {**REFUSED, **TAKEN}.items():
        answers = compiler.compile_all([traced(mask)])
        refused = {chip for chip, answer in answers.items() if answer}
        if form in TAKEN:
            assert not refused, (form, answers)
        elif newest:
            assert refused == set(answers), (form, answers)
            assert all(why in answer[1] for answer in answers.values())
