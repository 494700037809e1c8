"""splash_vjp beside dense attention and JAX's own splash gradients, over calls nobody tuned for.

Head counts, dtypes, caps, segments and tolerances are those of JAX's own test of its backward pass,
https://github.com/jax-ml/jax/blob/main/tests/pallas/tpu_splash_attention_kernel_test.py. Masks are
rougher, and rows and columns may be empty, which JAX's test avoids.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from launched import mistaken
from masks import drawn, with_a_cap_of_half

from puzzles import _puzzle, find
from puzzles.splash_attention import _gradients as graduation
from puzzles.splash_attention._gradients import Case
from puzzles.splash_attention.attention_dkv import by_columns

SOLUTION = find("splash_vjp").solution
CALLS = range(104)


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("number", sample.some(CALLS))
def test_gradients_are_those_of_dense_attention_and_of_production(number: int) -> None:
    graduation.examine(SOLUTION, drawn(number, most=512), number)


def some_call(segments: bool = False, cap: float | None = None) -> Case:
    """Two query heads to a key head; an empty row and an empty column of blocks."""
    i, j = np.indices((256, 384))
    mask = (j <= i + 100) & (i < 128) & (j < 256) & (i != 7)
    ids = tuple(jnp.asarray(np.arange(n) // 100, jnp.int32) for n in (256, 384))
    arrays = graduation.draw(5, 4, 2, 256, 384, 64, 64, jnp.float32)
    return Case(*arrays, mask, ids if segments else None, cap)


_mistaken = partial(mistaken, "splash_vjp")


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize(
    ("fn", "says"),
    sample.some([
        (_mistaken("forgets delta"), "dq of dense attention in float64"),
        (_mistaken("gives no gradient to keys and values"), "dk of dense attention in float64"),
        (
            _mistaken("forgets the segments in the backward pass"),
            "dq of dense attention in float64",
        ),
        (_mistaken("computes the forward pass again"), "dots a tile: 2, 2, 3, 4, where 2, 3, 4"),
        (with_a_cap_of_half(SOLUTION), "o of dense attention in float64"),
    ]),
)  # fmt: skip
def test_what_is_wrong_or_wasteful_does_not_graduate(fn: Callable, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        graduation.examine(fn, some_call(segments=True, cap=4.0))


@sample.drill
def test_a_learner_reads_the_table_or_what_is_wrong() -> None:
    head, row, source = graduation.graduate(SOLUTION).splitlines()
    assert head == graduation.HEAD
    assert source.endswith(f"splash_attention_kernel.py, JAX {jax.__version__}")
    assert row.endswith("2, 3, 4")
    queries = graduation.graduate(lambda q, *args, **blocks: q)
    assert queries.startswith("not yet: the result is float32 (4, 256, 64), and should be")
    zeros = graduation.graduate(lambda q, k, v, *args, **blocks: q[..., :1] * 0 * v[0, 0])
    assert zeros.startswith("not yet: ")
    assert "of dense attention in float64" in zeros
    starter = _puzzle.starter_function(find("splash_vjp"))
    assert graduation.graduate(starter) == "not yet: `trainable_forward` is as you found it"


def test_rows_and_columns_that_nobody_sees_have_gradients_of_zero() -> None:
    case = some_call()
    attention = attending(case)
    do = jnp.ones_like(case.q)
    o, dq, dk, dv = graduation.gradients(attention, case, do)
    for x in (o, dq):
        assert not x[:, 128:].any()
        assert not x[:, 7].any()
        assert x[:, :7].any()
    for x in (dk, dv):
        assert not x[:, 256:].any()
        assert x[:, :228].any(axis=-1).all()


def test_the_dense_gradients_are_those_that_jax_finds() -> None:
    case = some_call(segments=True, cap=4.0)
    spec = find("splash_vjp").spec
    do = jnp.cos(jnp.arange(4 * 256 * 64.0)).reshape(4, 256, 64)
    found = graduation.gradients(
        lambda q, k, v, ids: spec(q, k, v, case.mask, ids, case.soft_cap), case, do
    )
    for got, want in zip(graduation.dense(case, do), found, strict=True):
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def attending(case: Case) -> Callable:
    def attention(q, k, v, ids):
        return SOLUTION(q, k, v, case.mask, ids, case.soft_cap, bq=case.bq, bk=case.bk)

    return attention


@sample.drill
def test_a_batch_is_one_vmap_and_jit_changes_nothing() -> None:
    case = some_call(segments=True, cap=9.0)
    attention = attending(case)

    def loss(q, k, v):
        return jnp.sum(jnp.sin(attention(q, k, v, case.segment_ids)))

    one = case.q, case.k, case.v
    two = tuple(jnp.stack([x, x[:, ::-1]]) for x in one)
    gradient = jax.grad(loss, argnums=(0, 1, 2))
    batched = jax.jit(jax.vmap(gradient))(*two)
    for n in range(2):
        for got, want in zip(batched, gradient(*(x[n] for x in two)), strict=True):
            np.testing.assert_allclose(got[n], want, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not graduation.has_splash(), reason="this JAX has no splash attention")
def test_productions_fused_backward_pass_takes_five_dots_and_a_dq_for_each_column() -> None:
    case, written = some_call(), []
    for fused, wanted in ((False, (2, 4, 3)), (True, (2, 5))):
        attention = graduation.productions_attention(case, fused)
        launches = graduation.backward_launches(attention, case)
        assert graduation.dots(launches) == wanted
        written.append(sum(one.hbm_bytes_written for one in launches[1:]))
    assert written[0] < written[1]
    shapes = [one.shape for one in launches[1].outputs]
    assert (384 // case.bk, *case.q.shape) in shapes


def test_what_does_not_fit_is_refused_in_a_sentence() -> None:
    def shapes(N: int, K: int) -> list[jax.ShapeDtypeStruct]:
        arrays = [(N, 256, 64), (K, 256, 64), (K, 256, 64), (N, 256, 64), (N, 1, 256), (N, 1, 256)]
        return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in arrays]

    def listed(*shape: int) -> tuple:
        stacked = np.ones(shape, bool).reshape(-1, shape[-1])
        kinds, index, patterns = find("classify_blocks").solution(stacked, 128, 128)
        return find("active_tiles").solution(kinds, index), patterns

    causal = np.tri(256, dtype=bool)
    with pytest.raises(AssertionError, match="groups and blocks must divide evenly"):
        jax.eval_shape(lambda *x: SOLUTION(*x, causal), *shapes(3, 2)[:3])
    for name in ("attention_dq", "attention_dkv"):
        solution = find(name).solution
        for (N, K), shape, says in (
            ((3, 2), (256, 256), "groups and blocks must divide evenly"),
            ((4, 2), (2, 256, 256), "the list belongs to another mask"),
            ((4, 2), (256, 512), "the list belongs to another mask"),
        ):
            tiles = listed(*shape)
            with pytest.raises(AssertionError, match=says):
                jax.eval_shape(lambda *x, f=solution, t=tiles: f(*x, *t), *shapes(N, K))
        each = listed(4, 256, 256)
        with pytest.raises(AssertionError, match="all heads share a rule"):
            jax.eval_shape(
                lambda *x, f=solution, t=each: f(*x, *t, rule=np.less_equal), *shapes(4, 2)
            )


# The statements of the prose


def test_a_group_walks_one_list_and_lse_is_no_wider_than_the_sequence() -> None:
    case = graduation.computed_masks(1024, 256)["causal"]
    forward, dq, dkv = graduation.backward_launches(attending(case), case)
    assert len({one.scalars[0].shape for one in (forward, dq, dkv)}) == 1
    assert dkv.grid == (2, 10, 4)
    for launch in (dq, dkv):
        rows = [one for one in launch.inputs if one.name in ("lse_ref", "delta_ref")]
        assert [one.shape for one in rows] == 2 * [(8, 1, 1024)]
        assert len(launch.inputs) == 6  # a rule has no patterns


def test_the_picture_of_one_list_in_two_orders() -> None:
    kinds = np.array([[2, 0, 0], [2, 1, 0], [0, 1, 0]], np.int32)
    tiles = find("active_tiles").solution(kinds, np.zeros_like(kinds))
    rows, cols, _, flags = tiles
    assert [rows.tolist(), cols.tolist(), flags.tolist()] == [
        [0, 1, 1, 2],
        [0, 0, 1, 1],
        [14, 6, 9, 13],
    ]
    rows, cols, _, flags = by_columns(tiles, 1, 1, 3, 3)
    assert [cols.tolist(), rows[:4].tolist(), flags.tolist()] == [
        [0, 0, 1, 1, 2],
        [0, 1, 1, 2],
        [6, 10, 5, 9, 12],
    ]
