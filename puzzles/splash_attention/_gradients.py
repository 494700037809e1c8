"""A learner's splash_vjp beside dense attention and JAX's own splash attention:
gradients and dots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles import Launch, array, find, trace
from puzzles._judge import Code, execute
from puzzles._launch import trace_call
from puzzles.splash_attention._costs import WINDOW
from puzzles.splash_attention._graduation import Case, draw
from puzzles.splash_attention._production import Cost, has_splash, shipped, source
from puzzles.splash_attention.computed_masks import Rule

__all__ = [
    "Case",
    "costs",
    "dots",
    "draw",
    "examine",
    "example",
    "graduate",
    "has_splash",
    "shipped",
    "step_costs",
]

# Absolute and relative: those of jax-ml/jax, tests/pallas/tpu_splash_attention_kernel_test.py,
# test_splash_attention_bwd, for f32 and bf16 alike; and of its forward pass.
BACKWARD, FORWARD = (2e-2, 3e-2), (3e-3, 3e-3)
# Beside dense attention also relative to the root mean square of all numbers: gradients may be
# small. The CPU computes f32 in f32, so there it must do better.
OF_ALL, F32_ON_CPU = 0.1, 5e-5
NAMES = "o", "dq", "dk", "dv"
PASSES = "forward", "dq", "dk and dv"
STEP = "the whole step"
LAUNCHES = *PASSES, STEP
DOTS = 2, 3, 4  # a tile of each

HEAD = (
    " N/K     T     S    H   Hv   blocks dtype    mask heads  seen docs   cap   "
    "largest error of dq, dk, dv: dense     JAX's   dots a tile"
)


def gradients(fn: Callable, case: Case, do: Any) -> list[np.ndarray]:
    """`fn(q, k, v, ids)` and its gradients of q, k and v where `do` is that of the
    result, in f32.
    """

    def pulled(q: Any, k: Any, v: Any, ids: Any, do: Any) -> tuple:
        o, pullback = jax.vjp(lambda q, k, v: fn(q, k, v, ids), q, k, v)
        return o, *pullback(do)

    out = execute(trace_call(pulled, case.q, case.k, case.v, case.segment_ids, do))
    return [np.asarray(x, np.float32) for x in out]


def dense(case: Case, do: Any) -> list[np.ndarray]:
    """The same of dense attention, by the chain rule in float64; zeros where nothing is seen."""
    q, k, v, do = (np.asarray(x, np.float64) for x in (case.q, case.k, case.v, do))
    (N, _, H), K = q.shape, len(k)
    k, v = (np.repeat(x, N // K, axis=0) for x in (k, v))
    s, slope = q @ k.swapaxes(1, 2) * H**-0.5, 1.0
    if case.soft_cap is not None:
        bent = np.tanh(s / case.soft_cap)
        s, slope = case.soft_cap * bent, 1.0 - bent**2
    s = np.where(case.seen, s, -np.inf)
    p = np.exp(s - np.maximum(s.max(axis=-1, keepdims=True), -1e30))
    total = p.sum(axis=-1, keepdims=True)
    p /= np.where(total == 0, 1, total)
    dp = do @ v.swapaxes(1, 2)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * slope * H**-0.5
    of_heads = ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ do
    dk, dv = (x.reshape(K, N // K, *x.shape[1:]).sum(axis=1) for x in of_heads)
    return [p @ v, ds @ k, dk, dv]


def productions_attention(case: Case, fused: bool = False) -> Callable:
    """JAX's own splash attention, (q, k, v, ids) -> o; one backward kernel if `fused`, else two."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask_lib

    (N, _, H), bq, bk = case.q.shape, case.bq, case.bk
    one_key_head = len(case.k) == 1 < N
    blocks = dict(block_q=bq, block_kv=bk, block_q_dkv=bq, block_kv_dkv=bk)
    if not fused:
        blocks |= dict(block_q_dq=bq, block_kv_dq=bk)
    make = splash.make_splash_mqa if one_key_head else splash.make_splash_mha
    kernel = make(
        mask_lib.MultiHeadMask(case.shipped),
        block_sizes=splash.BlockSizes(**blocks, use_fused_bwd_kernel=fused),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=case.soft_cap,
        interpret=jax.default_backend() != "tpu",
    )

    def attention(q: Any, k: Any, v: Any, ids: Any) -> Any:
        k, v = (x[0] if one_key_head else x for x in (k, v))
        ids = None if ids is None else splash.SegmentIds(*ids)
        return kernel(q * H**-0.5, k, v, ids)  # it has no 1/√H inside

    return attention


def production(case: Case, do: Any) -> list[np.ndarray] | None:
    """The same of JAX's own kernels; None where there are none, or nothing is seen."""
    if not has_splash() or not case.stored.any():
        return None
    attention = productions_attention(case)
    if case.q.shape[-1] ** 0.5 % 1:  # in bf16 scaled queries would be rounded once more
        wide = (x.astype(jnp.float32) for x in (case.q, case.k, case.v))
        case = Case(*wide, case.mask, case.segment_ids)
    return gradients(attention, case, do.astype(case.q.dtype))


def dots(launches: Sequence[Launch]) -> tuple[float, ...]:
    """How many dots each launch runs for a tile that has work."""
    return tuple(
        sum(int(dot.executed.sum()) for dot in one.dots)
        / max(1, int((sum(dot.executed for dot in one.dots) > 0).sum()))
        for one in launches
    )


def backward_launches(fn: Callable, case: Case) -> tuple[Launch, ...]:
    """What `fn(q, k, v, ids)` launches, forward and back."""
    do = jax.ShapeDtypeStruct((*case.q.shape[:2], case.v.shape[-1]), case.q.dtype)

    def pulled(q: Any, k: Any, v: Any, ids: Any, do: Any) -> Any:
        return jax.vjp(lambda q, k, v: fn(q, k, v, ids), q, k, v)[1](do)

    return trace(pulled, case.q, case.k, case.v, case.segment_ids, do)


def examine(fn: Callable, case: Case, seed: int = 0) -> str:
    """A line of the table; AssertionError where `fn` has other gradients, or takes other dots."""
    r = np.random.default_rng(seed)
    do = r.uniform(-1, 1, (*case.q.shape[:2], case.v.shape[-1]))
    do = array(do, case.q.dtype)

    def attention(q: Any, k: Any, v: Any, ids: Any) -> Any:
        return fn(q, k, v, case.mask, ids, case.soft_cap, bq=case.bq, bk=case.bk)

    form = jax.eval_shape(attention, case.q, case.k, case.v, case.segment_ids)
    assert (form.shape, form.dtype) == (do.shape, do.dtype), (
        f"the result is {form.dtype} {form.shape}, and should be {do.dtype} {do.shape}"
    )
    mine, wanted = gradients(attention, case, do), dense(case, do)
    exact = case.q.dtype == jnp.float32 and jax.default_backend() == "cpu"
    for name, got, want in zip(NAMES, mine, wanted, strict=True):
        size = float(np.sqrt(np.mean(want**2)))
        absolute, relative = BACKWARD if name != "o" else FORWARD
        absolute = min(absolute, OF_ALL * size)
        if exact:
            absolute, relative = F32_ON_CPU * size, F32_ON_CPU
        _same(got, want, absolute, relative, f"{name} of dense attention in float64", case)
    off = max(float(np.abs(a - b).max()) for a, b in zip(mine[1:], wanted[1:], strict=True))
    beside = "-"
    some = case.seen.any(axis=-1)
    # JAX leaves rows undefined that see nothing, so nothing is asked of them
    heard = array(np.where(some[..., None], do, 0), do.dtype)
    theirs = production(case, heard)
    if theirs is not None:
        mine = mine if some.all() else gradients(attention, case, heard)
        pairs = list(zip(NAMES, mine, theirs, strict=True))
        for name, got, want in pairs:
            got, want = (x[some] if name == "o" else x for x in (got, want))
            limits = BACKWARD if name != "o" else FORWARD
            _same(got, want, *limits, f"{name} of JAX's splash attention", case)
        beside = f"{max(float(np.abs(a - b).max()) for _, a, b in pairs[1:]):.1e}"
    taken = dots(backward_launches(attention, case))
    if case.seen.any():
        assert taken == DOTS, (
            f"dots a tile: {_listed(taken)}, where {_listed(DOTS)} are enough\n{case}"
        )
    return f"{case}{off:34.1e}{beside:>10}   {_listed(taken)}"


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{n:g}" for n in numbers)


def _same(
    got: np.ndarray, want: np.ndarray, absolute: float, relative: float, whose: str, case: Case
) -> None:
    wrong = ~(np.abs(got - want) <= absolute + relative * np.abs(want))  # NaN is wrong
    assert not wrong.any(), (
        f"{wrong.sum():,} of {wrong.size:,} numbers are not those of {whose}, for example "
        f"{got[wrong][0]:.5g} instead of {want[wrong][0]:.5g}\n{case}"
    )


def example() -> Case:
    """A small call that has a bit of everything."""
    i, j = np.indices((256, 384))
    rough = np.kron(np.random.default_rng(0).random((4, 4, 6)) < 0.4, np.ones((1, 64, 64))) > 0
    ids = tuple(array(np.arange(n) // 150, jnp.int32) for n in (256, 384))
    arrays = draw(1, 4, 2, 256, 384, 64, 128, jnp.float32)
    return Case(*arrays, rough | (abs(i - j) < 40), ids, 5.0)


def graduate(fn: Callable) -> str:
    """The table of `fn` beside dense attention and JAX's, or what is wrong with it."""
    if missing := Code(find("splash_vjp"), fn).starter:
        return f"not yet: `{missing}` is as you found it"
    try:
        row = examine(fn, example())
    except Exception as error:
        why = (
            str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        )
        return f"not yet: {why.splitlines()[0] if why else 'no kernel'}"
    return f"{HEAD}\n{row}\n{source()}"


def step_costs(fn: Callable, case: Case) -> dict[str, dict[str, Cost]]:
    """What a step of training costs, by launch and in sum: `fn`, and JAX's kernels if there are any.

    JAX's backward pass is two kernels, or one, "fused", which stands under dk and dv.
    """

    def attention(q: Any, k: Any, v: Any, ids: Any) -> Any:
        return fn(q, k, v, case.mask, ids, case.soft_cap, bq=case.bq, bk=case.bk)

    table = {"reference": dict(zip(PASSES, backward_launches(attention, case), strict=True))}
    if has_splash():
        forward, dkv, dq = backward_launches(productions_attention(case), case)
        table["JAX's"] = dict(zip(PASSES, (forward, dq, dkv), strict=True))
        forward, fused = backward_launches(productions_attention(case, fused=True), case)
        table["JAX's fused"] = {PASSES[0]: forward, PASSES[2]: fused}
    return {
        who: {name: Cost.of([one]) for name, one in rows.items()} | {STEP: Cost.of(rows.values())}
        for who, rows in table.items()
    }


def rule_of(name: str, args: tuple) -> Rule | None:
    """The rule of one of JAX's masks, given by its class and arguments; None where it has none."""
    if name == "CausalMask":
        offset = args[1] if len(args) > 1 else 0
        return lambda row, column: column <= row + offset
    if name == "LocalMask":
        (left, right), offset = args[1:]
        return lambda row, column: (
            (column >= row + offset - left) & (column <= row + offset + right)
        )
    if name == "ChunkedCausalMask":
        size = args[1]
        return lambda row, column: (column // size == row // size) & (column <= row)
    return None


def computed_masks(T: int, block: int) -> dict[str, Case]:
    """The masks that JAX computes, of T tokens: 8 query heads, 2 key heads, no data."""
    q, k = (jax.ShapeDtypeStruct((n, T, 128), jnp.bfloat16) for n in (8, 2))
    masks = {
        "causal": ("CausalMask", ((T, T),)),
        f"window of {WINDOW}": ("LocalMask", ((T, T), (WINDOW - 1, 0), 0)),
        "chunks of 1000": ("ChunkedCausalMask", ((T, T), 1000)),
    }
    return {
        name: Case(q, k, k, rule_of(*mask), bq=block, bk=block, theirs=(mask,))
        for name, mask in masks.items()
    }


def costs(fn: Callable, T: int = 4096, block: int = 512) -> str:
    """A table: a step of training by `fn` and by JAX's kernels, launch by launch,
    without any data.
    """
    lines = [f"8 query heads, 2 key heads, T = {T:,}, H = 128, bf16, blocks of {block}"]
    for name, case in computed_masks(T, block).items():
        table = step_costs(fn, case)
        lines += ["", f"{name:16}" + "".join(f"{who:>12}: steps   dots     MiB" for who in table)]
        for launch in LAUNCHES:
            cells = (_cell(rows.get(launch)) for rows in table.values())
            lines.append(f"  {launch:14}{''.join(cells)}")
    return "\n".join(lines)


def _cell(cost: Cost | None) -> str:
    if cost is None:
        return f"{'-':>19}{'-':>7}{'-':>8}"
    return f"{cost.steps:19,}{cost.dots:7,}{cost.bytes / 2**20:8,.1f}"
