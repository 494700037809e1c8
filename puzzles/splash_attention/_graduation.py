"""A learner's splash_multi_head beside the attention that JAX ships: numbers, steps, fetches, dots."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles import Launch, find, trace
from puzzles._judge import is_starter
from puzzles._launch import quickly

# Absolute and relative: those of jax-ml/jax, tests/pallas/tpu_splash_attention_kernel_test.py,
# test_splash_attention, for f32 and bf16 alike. The CPU computes f32 in f32, so there it must do better.
TOLERANCE = 3e-3
F32_ON_CPU = 1e-4


@dataclass(frozen=True)
class Cost:
    """What launches do: grid steps, blocks of operands fetched, dots executed, FLOPs of those, bytes moved."""

    steps: int
    fetched: int
    dots: int
    flops: int
    bytes: int

    @classmethod
    def of(cls, launches: Sequence[Launch]) -> Cost:
        launches = [one for one in launches for _ in range(one.times or 1)]
        return cls(
            steps=sum(one.steps for one in launches),
            fetched=sum(o.transfers for one in launches for o in one.inputs),
            dots=sum(int(dot.executed.sum()) for one in launches for dot in one.dots),
            flops=sum(one.dot_flops for one in launches),
            bytes=sum(o.hbm_bytes for one in launches for o in (*one.scalars, *one.inputs))
            + sum(o.hbm_bytes for one in launches for o in one.outputs if len(o.shape) == 3),
        )


@dataclass(frozen=True)
class Case:
    """One call: the arrays, the mask, and what goes with them."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    mask: np.ndarray
    segment_ids: tuple[jax.Array, jax.Array] | None = None
    soft_cap: float | None = None
    bq: int = 128
    bk: int = 128

    @property
    def arguments(self) -> tuple:
        return self.q, self.k, self.v, self.mask, self.segment_ids, self.soft_cap

    @property
    def seen(self) -> np.ndarray:
        """Mask and segments together, (N, T, S)."""
        (N, T, _), S = self.q.shape, self.k.shape[1]
        seen = np.broadcast_to(self.mask, (N, T, S))
        if self.segment_ids is not None:
            rows, columns = map(np.asarray, self.segment_ids)
            seen = seen & (rows[:, None] == columns[None, :])
        return seen

    def __str__(self) -> str:
        (N, T, H), (K, S, Hv) = self.q.shape, self.v.shape
        ids = 1 if self.segment_ids is None else len(np.unique(self.segment_ids[0]))
        cap = "-" if self.soft_cap is None else f"{self.soft_cap:.1f}"
        dtype = "bf16" if self.q.dtype == jnp.bfloat16 else "f32"
        masks = "each" if self.mask.ndim == 3 else "one"
        shape = f"{f'{N}/{K}':>4}{T:6}{S:6}{H:5}{Hv:5}{f'{self.bq}×{self.bk}':>9}"
        return f"{shape}{dtype:>6}{masks:>6}{self.mask.mean():6.0%}{ids:5}{cap:>6}"


HEAD = (
    " N/K     T     S    H   Hv   blocks dtype masks  seen docs   cap   "
    "steps: yours    JAX   fetched: yours    JAX   dots: yours    JAX   compared with"
)


def draw(seed: int, N: int, K: int, T: int, S: int, H: int, Hv: int, dtype: Any) -> tuple:
    """q, k, v: signed, with scores of some units."""
    r = np.random.default_rng(seed)
    shapes = (N, T, H), (K, S, H), (K, S, Hv)
    q, k, v = (r.uniform(-1, 1, shape) for shape in shapes)
    return tuple(jnp.asarray(x, dtype) for x in (2 * q, 2 * k, v))


def dense(case: Case) -> np.ndarray:
    """Attention with all scores in memory, in float32, from the definition; zeros where nothing is seen."""
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
    """`fn(*args)` in float32; on a CPU compiled for a single run, which is what takes the time here."""
    if jax.default_backend() == "cpu":
        (out,) = quickly(jax.make_jaxpr(fn)(*args), jax.tree.leaves(args))
    else:
        out = jax.jit(fn)(*args)
    return np.asarray(out, np.float32)


def plain(case: Case) -> np.ndarray | None:
    """`jax.nn.dot_product_attention`, where it can: equal head dims, no cap."""
    if case.soft_cap is not None or case.q.shape[-1] != case.v.shape[-1]:
        return None
    q, k, v = (x.swapaxes(0, 1)[None] for x in (case.q, case.k, case.v))
    seen = jnp.asarray(case.seen[None])
    # not by `run`: without its algebraic simplifier, the XLA of JAX 0.9.2 crashes on this in bf16
    out = jax.jit(jax.nn.dot_product_attention)(q, k, v, mask=seen)
    return np.asarray(out, np.float32)[0].swapaxes(0, 1)


def has_splash() -> bool:
    """Does this JAX ship SplashAttention?"""
    try:
        importlib.import_module("jax.experimental.pallas.ops.tpu.splash_attention")
    except ImportError:
        return False
    return True


def production(masks: Sequence, soft_cap: float | None, bq: int, bk: int) -> Callable:
    """JAX's own splash attention, (q, k, v, segment_ids) -> out; `masks` of its own classes, one a head.

    A class of ours would be another kernel: JAX computes its causal and local masks, and stores all others.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask_lib

    public = mask_lib.CausalMask, mask_lib.LocalMask, mask_lib.FullMask, mask_lib.NumpyMask
    strange = [type(mask).__name__ for mask in masks if type(mask) not in public]
    assert not strange, f"{strange[0]} is no mask that JAX ships: compare with what JAX really runs"
    kernel = splash.make_splash_mha_single_device(
        mask=mask_lib.MultiHeadMask(list(masks)),
        block_sizes=splash.BlockSizes(block_q=bq, block_kv=bk, block_kv_compute=bk),
        attn_logits_soft_cap=soft_cap,
        interpret=jax.default_backend() != "tpu",
    )

    def attention(q: Any, k: Any, v: Any, segment_ids: Any = None) -> Any:
        ids = None if segment_ids is None else splash.SegmentIds(*segment_ids)
        return kernel(q, k, v, ids)

    return attention


def splash(case: Case) -> tuple[np.ndarray, Cost] | None:
    """What JAX's splash gives and costs; None where it is not installed or the mask is empty."""
    if not has_splash() or not case.mask.any():
        return None
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask_lib

    N, _, H = case.q.shape
    masks = [mask_lib.NumpyMask(one) for one in case.mask.reshape(-1, *case.mask.shape[-2:])]
    attention = production(masks * (N // len(masks)), case.soft_cap, case.bq, case.bk)
    # It has no 1/√H inside. Scaled in f32, and rounded to bf16 again only where nothing is lost by it.
    q = case.q.astype(jnp.float32) * H**-0.5
    q = q.astype(case.q.dtype) if H**0.5 % 1 == 0 else q
    rest = case.k, case.v, case.segment_ids
    cost = Cost.of(trace(attention, case.q, *rest))
    return run(attention, q, *rest), cost


def examine(fn: Callable, case: Case) -> str:
    """A line of the table; AssertionError where `fn` gives other numbers or costs more than JAX's kernel."""
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
    counts = [(mine.steps, "-"), (mine.fetched, "-"), (mine.dots, "-")]
    if theirs is not None:
        numbers, cost = theirs
        _same(out[some], numbers[some], TOLERANCE, "JAX's splash attention", case)
        for what, had, needed in (
            ("grid steps", mine.steps, cost.steps),
            ("blocks fetched", mine.fetched, cost.fetched),
            ("dots", mine.dots, cost.dots),
            ("FLOPs in dots", mine.flops, cost.flops),
        ):
            assert had <= needed, f"{had:,} {what}, and JAX's splash attention takes {needed:,}\n{case}"
        counts = [(mine.steps, cost.steps), (mine.fetched, cost.fetched), (mine.dots, cost.dots)]
        compared.append("splash")
    widths = (16, 7), (17, 7), (14, 7)
    cells = "".join(f"{a:{w}}{b:>{x}}" for (a, b), (w, x) in zip(counts, widths, strict=True))
    return f"{case}{cells}   {', '.join(compared)}"


def _same(got: np.ndarray, wanted: np.ndarray, tolerance: float, whose: str, case: Case) -> None:
    off = np.abs(got - wanted) - tolerance * (1 + np.abs(wanted))
    wrong = ~(off <= 0)  # NaN is wrong
    assert not wrong.any(), (
        f"{wrong.sum():,} of {wrong.size:,} numbers are not those of {whose}, for example "
        f"{got[wrong][0]:.5g} instead of {wanted[wrong][0]:.5g}\n{case}"
    )


def examples() -> tuple[Case, ...]:
    """Three small calls that have a bit of everything."""
    i, j = np.indices((384, 512))
    r = np.random.default_rng(0)
    ids = tuple(jnp.asarray(np.arange(n) // 200, jnp.int32) for n in (384, 512))
    rough = np.kron(r.random((4, 6, 8)) < 0.4, np.ones((1, 64, 64))) > 0
    return (
        Case(*draw(1, 2, 1, 384, 512, 64, 64, jnp.float32), mask=j <= i + 128),
        Case(*draw(2, 4, 2, 384, 512, 64, 64, jnp.bfloat16), rough),
        Case(*draw(3, 2, 2, 384, 512, 128, 64, jnp.float32), abs(i - j) < 90, ids, 5.0),
    )


def graduate(fn: Callable) -> str:
    """The table of `fn` beside JAX's attention on three small calls, or what is wrong with it."""
    missing = is_starter(find("splash_multi_head"), fn)
    if missing:
        return f"not yet: `{missing}` is as you found it"
    try:
        with np.errstate(invalid="ignore"):
            rows = [examine(fn, case) for case in examples()]
            rows += ["", *blind(fn)]
    except Exception as error:
        why = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return f"not yet: {why.splitlines()[0] if why else 'no kernel'}"
    return "\n".join([HEAD, *rows])


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


def banded_tiles(T: int, block: int, window: int | None = None) -> tuple[tuple, np.ndarray]:
    """(tiles, partial masks) of a causal mask (T, T), within `window` keys if given, without any dense mask."""
    reach = T if window is None else window
    behind = 1 if window is None else min(-(-window // block) + 1, T // block - 1)  # as those further back
    i = np.arange(behind * block, (behind + 1) * block)[:, None]  # one row of blocks has all there are
    j = np.arange((behind + 1) * block)[None, :]
    kinds, index, partial_masks = find("classify_blocks").solution((j <= i) & (i - j < reach), block, block)
    row, col = np.indices((T // block, T // block))
    back = np.clip(row - col, 0, behind)  # how many blocks a column lies behind its row
    block_mask = np.where(col <= row, kinds[0, behind - back], 0).astype(np.int32)
    mask_index = np.where(col <= row, index[0, behind - back], 0).astype(np.int32)
    return find("active_tiles").solution(block_mask, mask_index), partial_masks


def prefix(T: int, length: int = 1000) -> np.ndarray:
    """A causal mask (T, T) whose first `length` columns everybody sees: none of JAX's own formulas."""
    mask = np.tri(T, dtype=bool)
    mask[:, :length] = True
    return mask


def shipped(T: int) -> dict[str, Any]:
    """Masks (T, T) by name, each of a class that JAX ships, as its users would write it."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask_lib

    return {
        "causal": mask_lib.CausalMask((T, T)),
        "causal, window of 1024": mask_lib.LocalMask((T, T), (1023, 0), 0),
        "full": mask_lib.FullMask((T, T)),
        "causal, prefix of 1000": mask_lib.NumpyMask(prefix(T)),
    }


def listed(T: int, block: int) -> dict[str, tuple]:
    """(tiles, partial masks) of the same masks."""
    n = T // block
    kinds, zeros = np.full((n, n), 2, np.int32), np.zeros((n, n), np.int32)
    block_mask, mask_index, partial_masks = find("classify_blocks").solution(prefix(T), block, block)
    active_tiles = find("active_tiles").solution
    return {
        "causal": banded_tiles(T, block),
        "causal, window of 1024": banded_tiles(T, block, 1024),
        "full": (active_tiles(kinds, zeros), np.zeros((1, block, block), bool)),
        "causal, prefix of 1000": (active_tiles(block_mask, mask_index), partial_masks),
    }


def compared(fn: Callable, T: int, block: int) -> dict[str, dict[str, Cost]]:
    """For each mask: what dense attention costs, JAX's kernel if there is one, and `fn`, which is splash_over_tiles."""
    N, K, H = 8, 2, 128
    q, k = (jax.ShapeDtypeStruct((n, T, H), jnp.bfloat16) for n in (N, K))
    scores = 4 * N * T * T  # bytes, in f32: written and read, and so are the weights
    dense = Cost(0, 0, 0, 4 * N * T * T * H, 4 * scores + 4 * (N + K) * T * H)
    masks = shipped(T) if has_splash() else {}
    table: dict[str, dict[str, Cost]] = {}
    for name, (tiles, partial_masks) in listed(T, block).items():
        rows = table[name] = {"dense attention": dense}
        if name in masks:
            theirs = production([masks[name]] * N, None, block, block)
            rows["JAX's splash"] = Cost.of(trace(theirs, q, k, k))
        rows["mine"] = Cost.of(trace(_over_tiles(fn, tiles, partial_masks), q, k, k))
    return table


def costs(fn: Callable, T: int = 8192, block: int = 512) -> str:
    """A table: `fn`, which is splash_over_tiles, beside JAX's kernel and dense attention, without any data."""
    fn, whose = yours_or_reference(fn)
    lines = [f"8 query heads, 2 key heads, T = {T:,}, H = 128, bf16, blocks of {block}"]
    heads = f"{'grid steps':>12}{'tiles computed':>16}{'blocks fetched':>16}{'GiB moved':>12}{'TFLOP':>8}"
    for name, rows in compared(fn, T, block).items():
        lines += ["", f"{name:24}{heads}"]
        for who, cost in rows.items():
            counts = (cost.steps, 12), (cost.dots // 2, 16), (cost.fetched, 16)
            cells = "".join(f"{n:{width},}" if cost.steps else f"{'-':>{width}}" for n, width in counts)
            who = whose if who == "mine" else who
            lines.append(f"  {who:22}{cells}{cost.bytes / 2**30:12.2f}{cost.flops / 1e12:8.2f}")
    return "\n".join(lines)


def yours_or_reference(fn: Callable) -> tuple[Callable, str]:
    """`fn`, which is splash_over_tiles, and "yours"; the reference's, if there is nothing to count in `fn` yet."""
    tiles, partial_masks = banded_tiles(256, 128)
    x = jax.ShapeDtypeStruct((2, 256, 64), jnp.float32)
    try:
        if Cost.of(trace(_over_tiles(fn, tiles, partial_masks), x, x, x)).dots:
            return fn, "yours"
    except Exception:  # check(splash_multi_head) tells a learner what it is
        pass
    solved = importlib.import_module(find("splash_multi_head").module)
    return solved.splash_over_tiles, "reference, not yours"


def _over_tiles(fn: Callable, tiles: tuple, partial_masks: np.ndarray) -> Callable:
    return lambda q, k, v: fn(q, k, v, tiles, partial_masks)
