"""What a step of training costs, launch by launch, beside JAX's kernels, over masks of many kinds.

Nothing runs here: launches are traced, and counted by one rule on both sides, that of
`puzzles.splash_attention._production`: a column counts for 128, in HBM and in SMEM.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample

from puzzles import _tpu, find, trace
from puzzles._launch import trace_call
from puzzles._tpu import Compiler
from puzzles.splash_attention import _gradients as graduation
from puzzles.splash_attention._costs import banded_tiles
from puzzles.splash_attention._costs import causal as causal_rule
from puzzles.splash_attention._gradients import COUNTED, Case, rule_of, shipped
from puzzles.splash_attention._production import production

SOLUTION = find("splash_vjp").solution
needs_splash = pytest.mark.skipif(not graduation.has_splash(), reason="this JAX ships no splash")
F32, BF16 = jnp.float32, jnp.bfloat16

lines: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if not lines:
        return
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join([graduation.COST_HEAD, *lines]))


Masks = Callable[[int, int], list]  # of (T, S): class and arguments of JAX's mask, or of one a head


def call(masks: Masks, N: int, K: int, T: int, S: int, H: int = 128, **options: Any) -> Case:
    """A call without data; a rule where all heads share a mask for which JAX has a formula."""
    Hv, dtype = options.pop("Hv", H), options.pop("dtype", F32)
    q, k, v = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((N, T, H), (K, S, H), (K, S, Hv)))
    theirs = tuple(masks(T, S))
    if len(theirs) == 1 and (rule := rule_of(*theirs[0])):
        mask = rule
    else:
        stored = [np.array(shipped(name, *args)[:, :]) for name, args in theirs]
        mask = stored[0] if len(stored) == 1 else np.stack(stored)
    ids = options.pop("ids", False)
    ids = tuple(jax.ShapeDtypeStruct((n,), jnp.int32) for n in (T, S)) if ids else None
    return Case(q, k, v, mask, ids, theirs=theirs, **options)


def causal(T: int, S: int, offset: int = 0) -> list:
    return [("CausalMask", ((T, S), offset))]


def local(left: int, right: int, T: int, S: int) -> list:
    return [("LocalMask", ((T, S), (left, right), 0))]


def chunked(size: int, T: int, S: int) -> list:
    return [("ChunkedCausalMask", ((T, S), size))]


def full(T: int, S: int) -> list:
    return [("FullMask", ((T, S),))]


def numpy(seed: int, heads: int, T: int, S: int) -> list:
    """Squares by chance, for each head."""
    r = np.random.default_rng(seed)
    some = r.random((heads, T // 64, S // 64)) < 0.4
    return [("NumpyMask", (np.kron(one, np.ones((64, 64))) > 0,)) for one in some]


def empty_row(T: int, S: int) -> list:
    mask = numpy(3, 1, T, S)[0][1][0].copy()
    mask[T // 2] = False
    return [("NumpyMask", (mask,))]


def prefix(T: int, S: int) -> list:
    mask = np.tri(T, S, dtype=bool)
    mask[:, : S // 4] = True
    return [("NumpyMask", (mask,))]


def wide_rows(T: int, S: int) -> list:
    i, j = np.indices((T, S))
    return [("NumpyMask", ((j <= i) & ((i - j < 100) | (i // 16 == 50)),))]


def documents(T: int, S: int) -> list:
    i, j = np.indices((T, S))
    return [("NumpyMask", ((i * 5 // (2 * T) == j * 5 // (2 * S)) & (j <= i),))]


def mixed(*parts: Masks) -> Masks:
    return lambda T, S: [one for part in parts for one in part(T, S)]


SMALL = {
    "causal": partial(call, causal, 4, 2, 512, 512),
    "window, one key head": partial(call, partial(local, 100, 0), 4, 1, 512, 768, 64),
    "window on both sides": partial(call, partial(local, 77, 33), 2, 2, 768, 512, bq=256, bk=256),
    "chunks of 200": partial(call, partial(chunked, 200), 4, 2, 768, 768, 64),
    "squares, each head": partial(call, partial(numpy, 1, 4), 4, 2, 512, 768, 64),
    "causal and windows": partial(
        call, mixed(*2 * (causal, partial(local, 64, 0))), 4, 2, 512, 512
    ),
    "full, squares, causal": partial(
        call, mixed(full, partial(numpy, 2, 1), causal), 3, 3, 512, 512, 256, bq=256, bk=256
    ),
    "causal, ids and cap": partial(call, causal, 4, 2, 512, 512, 64, ids=True, soft_cap=5.0),
    "squares, an empty row": partial(call, empty_row, 4, 4, 1024, 512, 64, dtype=BF16),
    "causal, T < S": partial(call, causal, 8, 1, 256, 1024, bq=256, bk=256),
    "causal, T > S": partial(call, causal, 4, 2, 1024, 256, 64),
    "window and ids": partial(
        call, partial(local, 200, 0), 2, 1, 1024, 1024, ids=True, bq=512, bk=512
    ),
    "full": partial(call, full, 4, 2, 512, 512, 64),
    "causal, an offset": partial(call, partial(causal, offset=256), 4, 2, 256, 512, Hv=64),
    "causal and a prefix": partial(call, prefix, 4, 2, 512, 512, 64),
    "squares, two sizes": partial(call, partial(numpy, 4, 1), 4, 2, 512, 512, 64, bq=256),
    "chunks, wide values": partial(call, partial(chunked, 200), 4, 2, 512, 512, Hv=256, dtype=BF16),
    "a window, 16 wide rows": partial(call, wide_rows, 2, 1, 1024, 1024, 64),
}
LONG = {
    f"{name}, 4096": partial(call, mask, 8, 2, 4096, 4096, dtype=BF16, bq=512, bk=512)
    for name, mask in {
        "causal": causal,
        "window of 1024": partial(local, 1023, 0),
        "both sides": partial(local, 700, 300),
        "chunks of 1000": partial(chunked, 1000),
        "chunks of 1024": partial(chunked, 1024),
        "full": full,
        "documents": documents,
    }.items()
}


def drawn(number: int) -> Case:
    """Any heads, lengths, blocks and mask."""
    r = np.random.default_rng([41, number])
    N, K = [(1, 1), (4, 1), (3, 3), (4, 2), (6, 2)][r.integers(5)]
    bq, bk = (int(n) for n in r.choice([128, 256], 2))
    T, S = (b * int(r.integers(1, 6)) for b in (bq, bk))
    left, right = (int(n) for n in r.integers(0, (T, S // 2)))
    masks = [
        partial(causal, offset=int(r.integers(0, S // 4))),
        partial(local, left, right),
        partial(chunked, int(r.integers(50, T))),
        partial(numpy, number, 1),
        partial(numpy, number, N),
    ]
    ids, cap = bool(r.integers(2)), float(r.uniform(1, 50)) if r.integers(2) else None
    dtype = F32 if r.integers(2) else BF16
    mask = masks[number % len(masks)]
    return call(mask, N, K, T, S, 64, ids=ids, soft_cap=cap, dtype=dtype, bq=bq, bk=bk)


DRAWN = {f"drawn, {number}": partial(drawn, number) for number in range(12)}
ALL = SMALL | LONG | DRAWN


@needs_splash
@pytest.mark.graduate
@pytest.mark.parametrize("name", sample.some(list(ALL), 4))
def test_no_launch_of_training_costs_more_than_productions(name: str) -> None:
    case = ALL[name]()
    table = graduation.step_costs(SOLUTION, case)
    lines.extend(graduation.cost_lines(table, name))
    for launch in graduation.LAUNCHES:
        mine, theirs = (table[who][launch] for who in ("reference", "JAX's"))
        for what in COUNTED:
            most = getattr(theirs, what)
            if what == "fetched" and launch in (graduation.PASSES[2], graduation.STEP):
                most += ids_again(case)
            assert getattr(mine, what) <= most, f"{launch}: {what}\n{case}"


def ids_again(case: Case) -> int:
    """How often dk and dv may fetch ids of keys again: for each key head but one.

    JAX's grid has columns outermost, so the ids of a column serve all heads.
    """
    K, S, _ = case.k.shape
    return 0 if case.segment_ids is None else (K - 1) * S // case.bk


@needs_splash
def test_patterns_that_are_stored_where_a_rule_would_do_cost_more_bytes() -> None:
    case = LONG["window of 1024, 4096"]()
    by_rule = graduation.step_costs(SOLUTION, case)
    stored = graduation.step_costs(SOLUTION, replace(case, mask=case.stored))
    for launch in graduation.LAUNCHES:
        assert stored["reference"][launch].bytes > stored["JAX's"][launch].bytes
        assert stored["JAX's"][launch].bytes > by_rule["reference"][launch].bytes


@needs_splash
@sample.drill
def test_the_longest_lists_beside_productions_tables() -> None:
    """Of a causal mask, in blocks of 512: JAX's tables are smaller, and both fit."""
    T = 131_072
    q = jax.ShapeDtypeStruct((1, T, 128), BF16)
    (theirs,) = trace(production([shipped("CausalMask", (T, T))], None, 512, 512), q, q, q)
    tiles, _ = banded_tiles(T, 512)
    mine = sum(x.nbytes for x in tiles)
    assert sum(x.smem_bytes for x in theirs.scalars) < mine < 2**20


needs_libtpu = pytest.mark.skipif(
    not _tpu.has_libtpu() or importlib.util.find_spec("flatbuffers") is None,
    reason="no libtpu here",
)


@needs_libtpu
@sample.drill
@pytest.mark.parametrize(("N", "K", "T", "block"), [(64, 8, 16_384, 128), (8, 1, 131_072, 512)])
def test_each_launch_takes_long_texts_on_a_tpu(N: int, K: int, T: int, block: int) -> None:
    tiles, patterns = banded_tiles(T, block)
    q, k = (jax.ShapeDtypeStruct((n, T, 128), BF16) for n in (N, K))
    row = jax.ShapeDtypeStruct((N, 1, T), F32)
    forward = importlib.import_module(find("splash_vjp").module).forward_over_tiles
    backward = [find(name).solution for name in ("attention_dq", "attention_dkv")]
    calls = []
    for rule, masks in ((causal_rule, patterns[:0]), (None, patterns)):
        rest = dict(tiles=tiles, partial_masks=masks, segment_ids=None, soft_cap=None, rule=rule)
        calls.append((partial(forward, **rest), (q, k, k)))
        calls += [(partial(fn, **rest), (q, k, k, q, row, row)) for fn in backward]
    with Compiler() as compiler:
        for fn, args in calls:
            refused = compiler.compile(trace_call(fn, *args), ["v5e", "v6e"])
            assert not any(refused.values()), refused


@needs_libtpu
@sample.drill
def test_blocks_of_1024_fit_a_v5e_by_rule_and_not_by_patterns() -> None:
    q, k = (jax.ShapeDtypeStruct((n, 4096, 128), BF16) for n in (8, 2))
    case = Case(q, k, k, causal_rule, bq=1024, bk=1024)

    def step(mask: Any) -> Callable:
        def pulled(q: Any, k: Any, v: Any, do: Any) -> Any:
            return jax.vjp(lambda *x: SOLUTION(*x, mask, bq=1024, bk=1024), q, k, v)[1](do)

        return pulled

    with Compiler() as compiler:
        for mask, fits in ((causal_rule, True), (case.stored, False)):
            refused = compiler.compile(trace_call(step(mask), q, k, k, q), ["v5e"])["v5e"]
            assert (refused is None) == fits, refused
