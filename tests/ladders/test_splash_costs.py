"""The cost of a step of training, launch by launch, beside JAX's kernels, over masks of many kinds.

Nothing runs here: launches are traced, and counted by one rule on both sides, that of
`puzzles.splash_attention._production`: a column counts for 128, in HBM and in SMEM.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from masks import drawn, learners

from puzzles import find, trace
from puzzles._compile import Compiler
from puzzles._launch import trace_call
from puzzles.splash_attention import _gradients as graduation
from puzzles.splash_attention._costs import banded_tiles
from puzzles.splash_attention._costs import causal as causal_rule
from puzzles.splash_attention._gradients import Case, shipped
from puzzles.splash_attention._production import production

SOLUTION = find("splash_vjp").solution
needs_splash = pytest.mark.skipif(not graduation.has_splash(), reason="this JAX ships no splash")
F32, BF16 = jnp.float32, jnp.bfloat16


def tokens(T: int, name: str, *args: Any) -> Case:
    """A call of T tokens without data, of 8 query heads and 2 key heads."""
    q, k = (jax.ShapeDtypeStruct((n, T, 128), BF16) for n in (8, 2))
    theirs = name, ((T, T), *args)
    return Case(q, k, k, learners(*theirs), bq=512, bk=512, theirs=(theirs,))


def without_data(number: int) -> Case:
    case = drawn(number)
    q, k, v = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (case.q, case.k, case.v))
    return replace(case, q=q, k=k, v=v)


def documents(T: int) -> Case:
    i, j = np.indices((T, T)) * 5 // (2 * T)
    mask = (i == j) & np.tri(T, dtype=bool)
    return replace(tokens(T, "FullMask"), mask=mask, theirs=(("NumpyMask", (mask,)),))


LONG = {
    "causal": partial(tokens, 4096, "CausalMask"),
    "window of 1024": partial(tokens, 4096, "LocalMask", (1023, 0), 0),
    "both sides": partial(tokens, 4096, "LocalMask", (700, 300), 0),
    "chunks of 1000": partial(tokens, 4096, "ChunkedCausalMask", 1000),
    "chunks of 1024": partial(tokens, 4096, "ChunkedCausalMask", 1024),
    "full": partial(tokens, 4096, "FullMask"),
    "documents": partial(documents, 4096),
}
ALL = LONG | {f"drawn, {number}": partial(without_data, number) for number in range(30)}


@needs_splash
@pytest.mark.graduate
@pytest.mark.parametrize("name", sample.some(list(ALL), 2))
def test_no_launch_of_training_costs_more_than_productions(name: str) -> None:
    case = ALL[name]()
    table = graduation.step_costs(SOLUTION, case)
    for launch in graduation.LAUNCHES:
        mine, theirs = (table[who][launch] for who in ("reference", "JAX's"))
        for what in ("steps", "dots", "fetched", "bytes", "lists"):
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


@sample.in_turn
@needs_splash
def test_a_rule_takes_fewer_steps_and_bytes_than_production_and_stored_patterns_more() -> None:
    case = LONG["window of 1024"]()
    by_rule = graduation.step_costs(SOLUTION, case)
    stored = graduation.step_costs(SOLUTION, replace(case, mask=case.stored))
    for launch in graduation.LAUNCHES:
        assert stored["reference"][launch].bytes > stored["JAX's"][launch].bytes
        mine, theirs = (by_rule[who][launch] for who in ("reference", "JAX's"))
        assert stored["JAX's"][launch].bytes > mine.bytes
        assert (mine.dots, mine.steps < theirs.steps) == (theirs.dots, True)
    fused, mine = (by_rule[who][graduation.STEP] for who in ("JAX's fused", "reference"))
    assert fused.dots < mine.dots
    assert "JAX's fused: steps" in graduation.costs(SOLUTION, 1024, 256)


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


@sample.drill
@pytest.mark.parametrize(("N", "K", "T", "block"), [(64, 8, 16_384, 128), (8, 1, 131_072, 512)])
def test_each_launch_takes_long_texts_on_a_tpu(
    compiler: Compiler, N: int, K: int, T: int, block: int
) -> None:
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
    for fn, args in calls:
        refused = compiler.compile(trace_call(fn, *args), ["v5e", "v6e"])
        assert not any(refused.values()), refused


@sample.drill
def test_blocks_of_1024_compile_by_rule_and_by_patterns(compiler: Compiler) -> None:
    q, k = (jax.ShapeDtypeStruct((n, 4096, 128), BF16) for n in (8, 2))
    case = Case(q, k, k, causal_rule, bq=1024, bk=1024)

    def step(mask: Any) -> Callable:
        def pulled(q: Any, k: Any, v: Any, do: Any) -> Any:
            return jax.vjp(lambda *x: SOLUTION(*x, mask, bq=1024, bk=1024), q, k, v)[1](do)

        return pulled

    for mask in (causal_rule, case.stored):
        refused = compiler.compile(trace_call(step(mask), q, k, k, q), ["v5e", "v5p", "v6e"])
        assert not any(refused.values()), refused
