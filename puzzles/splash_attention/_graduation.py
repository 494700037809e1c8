"""A learner's splash_multi_head beside the attention that JAX ships: numbers, steps, fetches, dots,
bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles import array, find, trace
from puzzles._judge import Code, execute
from puzzles._launch import trace_call
from puzzles.splash_attention._costs import (
    banded_tiles,
    compared,
    costs,
    shipped_masks,
    yours_or_reference,
)
from puzzles.splash_attention._production import Cost, has_splash, production, shipped, source

__all__ = [
    "Case",
    "Cost",
    "banded_tiles",
    "compared",
    "costs",
    "dense",
    "draw",
    "examine",
    "graduate",
    "has_splash",
    "production",
    "shipped_masks",
    "yours_or_reference",
]

# Absolute and relative: those of jax-ml/jax, tests/pallas/tpu_splash_attention_kernel_test.py,
# test_splash_attention, for f32 and bf16 alike. The CPU computes f32 in f32, so there it must do better.
TOLERANCE = 3e-3
F32_ON_CPU = 1e-4


@dataclass(frozen=True)
class Case:
    """One call: the arrays, the mask, and what goes with them.

    mask: what the learner's function gets: booleans (T, S) or (N, T, S), or a rule. theirs: the mask
    as JAX gets it, the name of its class and the arguments, for all heads or for each; without it,
    the booleans as a NumpyMask.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    mask: np.ndarray | Callable
    segment_ids: tuple[jax.Array, jax.Array] | None = None
    soft_cap: float | None = None
    bq: int = 128
    bk: int = 128
    theirs: tuple[tuple[str, tuple], ...] = ()

    @property
    def arguments(self) -> tuple:
        return self.q, self.k, self.v, self.mask, self.segment_ids, self.soft_cap

    @cached_property
    def stored(self) -> np.ndarray:
        """The mask as booleans, (T, S) or (N, T, S)."""
        if not callable(self.mask):
            return self.mask
        return self.mask(*np.ogrid[: self.q.shape[1], : self.k.shape[1]])

    @property
    def seen(self) -> np.ndarray:
        """Mask and segments together, (N, T, S)."""
        (N, T, _), S = self.q.shape, self.k.shape[1]
        seen = np.broadcast_to(self.stored, (N, T, S))
        if self.segment_ids is not None:
            rows, columns = map(np.asarray, self.segment_ids)
            seen = seen & (rows[:, None] == columns[None, :])
        return seen

    @cached_property
    def shipped(self) -> list:
        """JAX's masks, one a head; AssertionError where one is not the learner's."""
        T, S = self.stored.shape[-2:]
        stored = self.stored.reshape(-1, T, S)
        named = self.theirs or [("NumpyMask", (one,)) for one in stored]
        masks = [shipped(name, *args) for name, args in named]
        for one, mask in zip(stored, masks, strict=True):
            assert np.array_equal(mask[:, :], one), "JAX's mask is another one"
        return masks * (len(self.q) // len(masks))

    def __str__(self) -> str:
        (N, T, H), (K, S, Hv) = self.q.shape, self.v.shape
        ids = 1 if self.segment_ids is None else len(np.unique(self.segment_ids[0]))
        cap = "-" if self.soft_cap is None else f"{self.soft_cap:.1f}"
        dtype = "bf16" if self.q.dtype == jnp.bfloat16 else "f32"
        names = {name.removesuffix("Mask") for name, _ in self.theirs} or {"Numpy"}
        kinds = {name.removesuffix("Causal") or name for name in names}  # Chunked fits its column
        kind = kinds.pop() if len(kinds) == 1 else "mixed"
        heads = "each" if self.stored.ndim == 3 else "all"
        shape = f"{f'{N}/{K}':>4}{T:6}{S:6}{H:5}{Hv:5}{f'{self.bq}×{self.bk}':>9}"
        return f"{shape}{dtype:>6}{kind:>8}{heads:>6}{self.stored.mean():6.0%}{ids:5}{cap:>6}"


COUNTS = {"steps": 11, "fetched": 11, "dots": 11, "KiB moved": 15, "bytes of lists": 17}
HEAD = (
    "of each count: yours / what JAX's splash takes\n"
    " N/K     T     S    H   Hv   blocks dtype    mask heads  seen docs   cap"
    + "".join(f"{what:>{width}}" for what, width in COUNTS.items())
    + "   numbers compared with"
)


def draw(seed: int, N: int, K: int, T: int, S: int, H: int, Hv: int, dtype: Any) -> tuple:
    """q, k, v: signed, with scores of some units."""
    r = np.random.default_rng(seed)
    shapes = (N, T, H), (K, S, H), (K, S, Hv)
    q, k, v = (r.uniform(-1, 1, shape) for shape in shapes)
    return tuple(array(x, dtype) for x in (2 * q, 2 * k, v))


def dense(case: Case) -> np.ndarray:
    """Attention with all scores in memory, in float32, from the definition; zeros where nothing is
    seen.
    """
    q, k, v = (np.asarray(x, np.float32) for x in (case.q, case.k, case.v))
    out = np.zeros((*q.shape[:2], v.shape[-1]), np.float32)
    for n, (row, seen) in enumerate(zip(q, case.seen, strict=True)):
        kv = n * len(k) // len(q)
        scores = row @ k[kv].T * np.float32(row.shape[-1] ** -0.5)
        if case.soft_cap is not None:
            scores = case.soft_cap * np.tanh(scores / case.soft_cap)
        scores = np.where(seen, scores, -np.inf)
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = weights.sum(axis=1, keepdims=True)
        out[n] = weights @ v[kv] / np.where(total == 0, 1, total)
    return out


def run(fn: Callable, *args: Any) -> np.ndarray:
    """`fn(*args)` in float32."""
    (out,) = execute(trace_call(fn, *args))
    return np.asarray(out, np.float32)


def plain(case: Case) -> np.ndarray | None:
    """`jax.nn.dot_product_attention` in f32, where it can: equal head dims, no cap."""
    if case.soft_cap is not None or case.q.shape[-1] != case.v.shape[-1]:
        return None
    q, k, v = (np.asarray(x, np.float32).swapaxes(0, 1)[None] for x in (case.q, case.k, case.v))
    out = run(jax.nn.dot_product_attention, q, k, v, None, case.seen[None])  # no bias, but a mask
    return out[0].swapaxes(0, 1)


def splash(case: Case) -> tuple[np.ndarray, Cost] | None:
    """What JAX's splash gives and costs; None where it is not installed or the mask is empty."""
    if not has_splash() or not case.stored.any():
        return None
    attention = production(case.shipped, case.soft_cap, case.bq, case.bk)
    # It has no 1/√H inside. Scaled in f32, and rounded to bf16 again only where nothing is lost by it.
    H = case.q.shape[-1]
    q = array(
        np.asarray(case.q, np.float32) * np.float32(H**-0.5),
        case.q.dtype if H**0.5 % 1 == 0 else jnp.float32,
    )
    rest = case.k, case.v, case.segment_ids
    cost = Cost.of(trace(attention, case.q, *rest))
    return run(attention, q, *rest), cost


def examine(fn: Callable, case: Case) -> str:
    """A line of the table; AssertionError where `fn` gives other numbers or costs more than JAX's
    kernel.
    """
    fn = functools.partial(fn, bq=case.bq, bk=case.bk)
    mine = Cost.of(trace(fn, *case.arguments))

    def call(q: Any, k: Any, v: Any, ids: Any) -> Any:
        result = fn(q, k, v, case.mask, ids, case.soft_cap)
        assert result.dtype == q.dtype, f"the result is {result.dtype}, the queries are {q.dtype}"
        return result

    out = run(call, case.q, case.k, case.v, case.segment_ids)
    exact = case.q.dtype == jnp.float32 and jax.default_backend() == "cpu"
    _same(out, dense(case), F32_ON_CPU if exact else TOLERANCE, "dense attention in f32", case)
    compared, some = ["dense"], case.seen.any(axis=-1)
    theirs = plain(case)
    if theirs is not None:
        _same(out[some], theirs[some], TOLERANCE, "jax.nn.dot_product_attention", case)
        compared.append("jax.nn")
    theirs = splash(case)
    cost = None
    if theirs is not None:
        numbers, cost = theirs
        _same(out[some], numbers[some], TOLERANCE, "JAX's splash attention", case)
        for what, had, needed in (
            ("grid steps", mine.steps, cost.steps),
            ("blocks fetched", mine.fetched, cost.fetched),
            ("dots", mine.dots, cost.dots),
            ("FLOPs in dots", mine.flops, cost.flops),
            ("bytes moved", mine.bytes, cost.bytes),
        ):
            assert had <= needed, (
                f"{had:,} {what}, and JAX's splash attention takes {needed:,}\n{case}"
            )
        compared.append("splash")
    return f"{case}{_counts(mine, cost)}   {', '.join(compared)}"


def _counts(mine: Cost, theirs: Cost | None) -> str:
    cells = []
    for cost in (mine, theirs):
        if cost is None:
            cells.append(["-"] * len(COUNTS))
            continue
        counts = cost.steps, cost.fetched, cost.dots, round(cost.bytes / 1024), cost.lists
        cells.append([f"{n:,}" for n in counts])
    rows = zip(*cells, COUNTS.values(), strict=True)
    return "".join(f"{f'{a}/{b}':>{width}}" for a, b, width in rows)


def _same(got: np.ndarray, wanted: np.ndarray, tolerance: float, whose: str, case: Case) -> None:
    off = np.abs(got - wanted) - tolerance * (1 + np.abs(wanted))
    wrong = ~(off <= 0)  # NaN is wrong
    assert not wrong.any(), (
        f"{wrong.sum():,} of {wrong.size:,} numbers are not those of {whose}, for example "
        f"{got[wrong][0]:.5g} instead of {wanted[wrong][0]:.5g}\n{case}"
    )


def ahead(row: Any, column: Any) -> Any:
    return column <= row + 128


def near(row: Any, column: Any) -> Any:
    return (column >= row - 89) & (column <= row + 89)


def examples() -> tuple[Case, ...]:
    """Three small calls that have a bit of everything."""
    shape = 384, 512
    r = np.random.default_rng(0)
    ids = tuple(array(np.arange(n) // 200, jnp.int32) for n in (384, 512))
    rough = np.kron(r.random((4, 6, 8)) < 0.4, np.ones((1, 64, 64))) > 0
    return (
        Case(
            *draw(1, 2, 1, 384, 512, 64, 64, jnp.float32),
            ahead,
            theirs=(("CausalMask", (shape, 128)),),
        ),
        Case(*draw(2, 4, 2, 384, 512, 64, 64, jnp.bfloat16), rough),
        Case(
            *draw(3, 2, 2, 384, 512, 128, 64, jnp.float32),
            near,
            ids,
            5.0,
            theirs=(("LocalMask", (shape, (89, 89), 0)),),
        ),
    )


def graduate(fn: Callable) -> str:
    """The table of `fn` beside JAX's attention on three small calls, or what is wrong with it."""
    puzzle = find("splash_multi_head")
    missing = Code(puzzle, fn).starter
    if missing:
        return f"not yet: `{missing}` is as you found it"
    try:
        with np.errstate(invalid="ignore"):
            rows = [*(examine(fn, case) for case in examples()), "", *blind(fn)]
    except Exception as error:
        why = (
            str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        )
        return f"not yet: {why.splitlines()[0] if why else 'no kernel'}"
    return "\n".join([HEAD, *rows, "", source()])


def blind(fn: Callable) -> list[str]:
    """What rows that see nothing get: one in a block that has work, and a whole row of blocks."""
    i, j = np.indices((384, 512))
    mask = (j <= i) & (i != 200) & (i < 256)
    case = Case(*draw(4, 1, 1, 384, 512, 64, 64, jnp.float32), mask=mask)
    theirs = splash(case)
    outs = {
        "yours": run(lambda q, k, v: fn(q, k, v, mask, bq=128, bk=128), case.q, case.k, case.v),
        "JAX's splash": None if theirs is None else theirs[0],
        "jax.nn": plain(case),
    }
    lines = ["rows that see nothing:      one in a block with work      a whole row of blocks"]
    for who, out in outs.items():
        if out is not None:
            one, block = (_what(out[0, t], np.asarray(case.v[0])) for t in (200, 300))
            lines.append(f"  {who:26}{one:30}{block}")
    return lines


def _what(row: np.ndarray, v: np.ndarray) -> str:
    if not row.any():
        return "zeros"
    if np.isnan(row).all():
        return "NaN"
    for n in range(128, len(v) + 1, 128):
        if np.allclose(row, v[:n].mean(axis=0), atol=1e-4):
            return f"the mean of v[:{n}]" if n < len(v) else "the mean of all v"
    return "something else"
