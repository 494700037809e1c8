"""Puzzle 20: the gradient of the queries, row by row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## attention_dq: the weights again, and their gradient
#
# From `lse` you get each weight again, in any tile: `exp(s - lse)` is already normalised. `do` is the gradient of the result,
# and three lines lead from it to the queries:
#
# ```text
# forward                    backward
# s = q·kᵀ / √H              dp = do·vᵀ
# p = exp(s - lse)           ds = p * (dp - delta)        delta = sum of o * do over a row
# o = p·v                    dq = ds·k / √H
#
#                 one row of tiles, as in the forward pass
#    q, do    ──▶ ┌────────┬────────┬────────┐
#    lse      ──▶ │ s p    │ s p    │ s p    │ ──▶  acc, the sum of ds·k  ──▶  dq
#    delta    ──▶ │  dp ds │  dp ds │  dp ds │
#                 └───▲────┴───▲────┴───▲────┘
#                    k v      k v      k v
# ```
#
# Why `delta`? A row's weights sum to 1: if one grows, the others shrink. So only the difference between `dp` and its `p`-weighted
# mean over the row counts. A tile has too few keys for this mean. But the mean, the sum of p·(do·v), is do·(sum of
# p·v), which is do·o: one number per row, known before the launch.
# %%
from puzzles.splash_attention._masks import vmem_limit
from puzzles.splash_attention.computed_masks import Rule


def attention_dq_spec(
    q: Float[Array, "N T H"],
    k: Float[Array, "K S H"],
    v: Float[Array, "K S Hv"],
    do: Float[Array, "N T Hv"],
    lse: Float[Array, "N 1 T"],
    delta: Float[Array, "N 1 T"],
    tiles: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    partial_masks: Bool[np.ndarray, "P bq bk"],
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
    rule: Rule | None = None,
) -> Float[Array, "N T H"]:
    del lse, delta  # JAX differentiates dense attention by itself
    seen = dense_mask(tiles, partial_masks, q.shape[1], k.shape[1], segment_ids, rule)
    return jax.vjp(lambda q: dense_attention(q, k, v, seen, soft_cap), q)[1](do)[0]


# %% jupyter={"source_hidden": true} cellView="form"
# @title Functions that the spec calls: dense attention, and the dense mask of a list
def dense_attention(q, k, v, seen, soft_cap=None):
    q32, k32, v32 = (x.astype(jnp.float32) for x in (q, k, v))
    k32, v32 = (jnp.repeat(x, len(q) // len(k), axis=0) for x in (k32, v32))
    scores = jnp.einsum("nth,nsh->nts", q32, k32) / q.shape[-1] ** 0.5
    scores = scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("nts,nsh->nth", jnp.where(seen, weights, 0.0), v32).astype(q.dtype)


def dense_mask(tiles, partial_masks, T, S, segment_ids=None, rule=None):
    _, bq, bk = partial_masks.shape
    heads = (int(tiles[0][-1]) + 1) * bq // T  # 1: one mask for all; N: one for each
    seen = np.zeros((heads * T // bq, bq, S // bk, bk), bool)
    if rule is None:
        for row, col, mask, flag in zip(*tiles, strict=True):
            if flag & 3:
                seen[row, :, col] = partial_masks[mask] | (flag & 3 == 2)
    else:
        seen[:] = rule(*np.indices((T, S), np.int32)).reshape(seen.shape)
    seen = seen.reshape(heads, T, S)
    return seen if segment_ids is None else seen & (segment_ids[0][:, None] == segment_ids[1])


# %% [markdown]
# The launch has the grid of `splash_multi_head`, and cuts `do` like `q`. `lse` and `delta` are rows in HBM, since a column would take 128
# lanes per number.
#
# <details><summary>More: the price of a division</summary>
#
# Index maps run in every step, for every operand. So the maps below divide only if the list has the tiles of all heads. With
# one head's list, dividing would take 5 % of the cycles in blocks of 512 × 512, by libtpu's estimate for v5e.
#
# </details>


# %%
def next_used(index: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return `index` with each unused entry replaced by the next used entry (or the last)."""
    where = np.flatnonzero(used)
    if len(where) == 0:
        return index
    following = np.searchsorted(where, np.arange(len(index)))
    return index[where[np.minimum(following, len(where) - 1)]]


def attention_dq(
    q: Float[Array, "N T H"],
    k: Float[Array, "K S H"],
    v: Float[Array, "K S Hv"],
    do: Float[Array, "N T Hv"],
    lse: Float[Array, "N 1 T"],
    delta: Float[Array, "N 1 T"],
    tiles: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    partial_masks: Bool[np.ndarray, "P bq bk"],
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
    rule: Rule | None = None,
) -> Float[Array, "N T H"]:
    (N, T, H), (K, S, Hv), (_, bq, bk) = q.shape, v.shape, partial_masks.shape
    assert N % K == 0 and T % bq == 0 and S % bk == 0, "groups and blocks must divide evenly"
    assert lse.shape == delta.shape == (N, 1, T), (
        f"lse and delta are rows, {N, 1, T}: {lse.shape} and {delta.shape}"
    )
    R = T // bq  # rows of tiles in a head
    rows, cols, masks, flags = tiles
    assert int(rows[-1]) + 1 in (R, N * R) and cols.max() < S // bk, (
        "the list belongs to another mask"
    )
    lists = (int(rows[-1]) + 1) // R  # 1: one mask for all heads, N: one for each
    assert rule is None or lists == 1, "all heads share a rule: give it the list of one head"
    cols, masks = next_used(cols, flags & 3 > 0), next_used(masks, flags & 3 == 1)

    def place(h, t, rows):  # a head and its row of tiles; divisions cost cycles in every step
        return (h, rows[t]) if lists == 1 else (h + rows[t] // R, rows[t] % R)

    def by_row(h, t, rows, cols, masks, flags):
        return *place(h, t, rows), 0

    def along_row(h, t, rows, cols, masks, flags):
        head, row = place(h, t, rows)
        return head, 0, row

    def by_column(h, t, rows, cols, masks, flags):
        head, _ = place(h, t, rows)
        return head if N == K else head // (N // K), cols[t], 0

    specs = [
        pl.BlockSpec((None, bq, H), by_row),
        pl.BlockSpec((None, bk, H), by_column),
        pl.BlockSpec((None, bk, Hv), by_column),
        pl.BlockSpec((None, bq, Hv), by_row),
        pl.BlockSpec((None, 1, bq), along_row),
        pl.BlockSpec((None, 1, bq), along_row),
        pl.BlockSpec((None, bq, bk), lambda h, t, rows, cols, masks, flags: (masks[t], 0, 0)),
        pl.BlockSpec((bq, 1), lambda h, t, rows, cols, masks, flags: (place(h, t, rows)[1], 0)),
        pl.BlockSpec((1, bk), lambda h, t, rows, cols, masks, flags: (0, cols[t])),
    ]
    q_ids, kv_ids = None, None
    if segment_ids is not None:
        q_ids, kv_ids = segment_ids[0].reshape(T, 1), segment_ids[1].reshape(1, S)
    needs_patterns = rule is None and (flags & 3 == 1).any()
    assert not needs_patterns or len(partial_masks), "partial tiles need a rule, or patterns"
    patterns = partial_masks if needs_patterns else None
    operands = (q, k, v, do, lse, delta, patterns, q_ids, kv_ids)
    return pl.pallas_call(
        functools.partial(attention_dq_kernel, soft_cap=soft_cap, rule=rule),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(N // lists, len(rows)),
            in_specs=[None if x is None else spec for x, spec in zip(operands, specs, strict=True)],
            out_specs=pl.BlockSpec((None, bq, H), by_row),
            scratch_shapes=[pltpu.VMEM((bq, H), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((N, T, H), q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem_limit(patterns)
        ),
        interpret=INTERPRET,
    )(rows, cols, masks, flags, *operands)


# %% [markdown]
# Fill in `slope`, the derivative of the cap, and the work of a tile. `s` is scaled, capped and in f32; `seen` says which scores count;
# `lse` and `delta` are columns, (bq, 1). In a row that attends to nothing `lse` is -inf, and dq is zeros. Dots take the arrays' own
# dtype, and return f32.


# %%
def attention_dq_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref,
    q_ref, k_ref, v_ref, do_ref, lse_ref, delta_ref,
    mask_ref, q_ids_ref, kv_ids_ref,  # each of these may be None
    dq_ref, acc_ref,
    *, soft_cap, rule,
):  # fmt: skip
    t = pl.program_id(1)
    flags = flags_ref[t]
    kind = flags & 3
    scale = q_ref.shape[-1] ** -0.5  # 1/√H

    @pl.when(flags & 4 != 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(kind != 0)
    def _():
        q, k, v, do = q_ref[...], k_ref[...], v_ref[...], do_ref[...]
        s = scale * jax.lax.dot_general(
            q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        slope = 1.0
        if soft_cap is not None:
            bent = jnp.tanh(s / soft_cap)
            s = soft_cap * bent
            ### BEGIN SOLUTION
            slope = 1.0 - bent * bent
            ### END SOLUTION
        seen = True
        if mask_ref is not None:
            seen = mask_ref[...] | (kind == 2)
        if rule is not None:
            row = rows_ref[t] * q.shape[0] + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
            column = cols_ref[t] * k.shape[0] + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
            seen = rule(row, column)
        if q_ids_ref is not None:
            seen &= q_ids_ref[...] == kv_ids_ref[...]
        lse, delta = (jnp.expand_dims(ref[0], -1) for ref in (lse_ref, delta_ref))  # (bq, 1)
        ### BEGIN SOLUTION
        p = jnp.where(seen, jnp.exp(s - lse), 0.0)
        dp = jax.lax.dot_general(
            do, v, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        ds = p * (dp - delta) * slope
        dq = jnp.dot(ds.astype(k.dtype), k, preferred_element_type=jnp.float32)
        acc_ref[...] += scale * dq
        ### END SOLUTION

    @pl.when(flags & 8 != 0)
    def _():
        dq_ref[...] = acc_ref[...].astype(dq_ref.dtype)


# %% tags=["author"]
from puzzles import Launch, Puzzle, array, find, rng
from puzzles.splash_attention.attention import root
from puzzles.splash_attention.causal_attention import dots
from puzzles.splash_attention.computed_masks import RULES, tiles_of_rule


def make_masks(R, S, bq, heads, group, bk=128):
    """(T, S), or (heads, T, S): tiles of all kinds, empty rows, a row and a column of tiles that are empty.

    With 6 rows and 5 columns of tiles, some have a single one, full or partial.

    0 heads: all is seen. Columns differ by key head, rows by query head.
    """
    if heads == 0:
        return np.ones((R * bq, S), bool)
    i, j = np.ogrid[: R * bq, :S]
    masks = []
    for head in range(heads):
        row, col = (i // bq + 2 * head) % R, (j // bk + head // group) % (S // bk)
        y, x = i % bq, j % bk
        mask = (row == 0) & (col == 0) & (x < 3 * y + 40)
        mask |= (row == 2) & ((col == 0) | (col == 1) & ((x - y) % 3 == 0))
        mask |= (row == 3) & ((col == 1) | (col == 0) & (y >= bq // 2))
        mask |= (row == 4) & (col == 1) & (y % 8 != 5)
        if head % group == 0:  # two columns with one tile each
            mask |= (row == 5) & (col == 3) | (row == 3) & (col == 4) & (x < 3 * y + 40)
        else:
            mask |= (row == 5) & (col == 0)
        masks.append(mask)
    return np.stack(masks) if heads > 1 else masks[0]


def make_segments(r, T, S, count):
    """Ids of queries and keys: the first comes back in the end, and some of the last queries have
    no keys.
    """
    cuts = np.sort(
        (np.arange(1, count) / count * min(T, S)).astype(int) + r.integers(-9, 9, count - 1)
    )
    names = r.permutation([-1, 0, 2**24, 2**24 + 1])[:count]
    names[-1] = names[0]
    q_ids, kv_ids = (names[np.searchsorted(cuts, np.arange(n), side="right")] for n in (T, S))
    q_ids[-T // 9 :] = 5
    return q_ids, kv_ids


def forward(q, k, v, do, seen, cap):
    """(lse, delta) of dense attention, as rows; -inf and 0 where a row sees nothing."""
    q, k, v, do = (np.asarray(x, np.float32) for x in (q, k, v, do))
    k, v = (np.repeat(x, len(q) // len(k), axis=0) for x in (k, v))
    s = q @ k.swapaxes(1, 2) * np.float32(q.shape[-1] ** -0.5)
    s = s if cap is None else cap * np.tanh(s / cap)
    s = np.where(seen, s, np.float32(-np.inf))
    top = s.max(axis=-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, -np.inf, top + np.log(total))
    o = e @ v / np.where(total == 0, 1, total)
    delta = (o * do).sum(axis=-1)
    return (array(x[:, None], jnp.float32) for x in (lse[..., 0], delta))


def make_inputs(
    key, N, K, R, S, H, Hv, bq, bk, masks=1, segments=0, cap=None, bf16=False, rule=None
):
    """Scores of some units; of every 16th query all lie near 95, or near -95, where exp alone is
    lost.
    """
    r, T, dtype = rng(key), R * bq, jnp.bfloat16 if bf16 else jnp.float32
    q, k = (np.round(8 * r.normal(size=shape)) / 8 for shape in ((N, T, H), (K, S, H)))
    if (
        not bf16
    ):  # beside so large weights and keys, the rounding of p and ds would drown small gradients
        q[:, 1::4] *= 4
        k[..., 0], few = root(H), q[:, ::16, 0]
        few[:] = r.integers(90, 101, few.shape) * r.choice([-1, 1], few.shape)
        k[:, 127::128, 1] += 8 * root(
            H
        )  # keys that many rows love, also some that must not see them
        q[:, 2::4, 1] = 12
    v, do = r.normal(0.5, 1, (K, S, Hv)), r.normal(size=(N, T, Hv))
    q, k, v, do = (array(x, dtype) for x in (q, k, v, do))
    rule = RULES[rule] if rule else None
    if rule is None:
        tiles, partial_masks = listed(make_masks(R, S, bq, masks, N // K, bk), bq, bk)
    else:
        tiles, partial_masks = tiles_of_rule(rule, T, S, bq, bk), np.zeros((0, bq, bk), bool)
    ids = make_segments(r, T, S, segments) if segments else None
    lse, delta = forward(q, k, v, do, dense_mask(tiles, partial_masks, T, S, ids, rule), cap)
    ids = ids and tuple(array(x, jnp.int32) for x in ids)
    return q, k, v, do, lse, delta, tiles, partial_masks, ids, cap, rule


def listed(mask, bq, bk=128):
    """The flat list of a mask (T, S), or of one for each head, and its partial blocks."""
    tables = find("classify_blocks").solution(mask.reshape(-1, mask.shape[-1]), bq, bk)
    return find("active_tiles").solution(*tables[:2]), tables[2]


@functools.cache
def window_mask(T, S, width):
    """A causal window, and a few rows at the end that see nothing."""
    mask = np.tri(T, S, dtype=bool) & ~np.tri(T, S, -width, dtype=bool)
    mask.flags.writeable = False
    return mask


@functools.cache
def window(T, S, width):
    """The list of such a mask, in blocks of 128."""
    return listed(window_mask(T, S, width), 128)


def scale(N=8, K=2, T=5376, S=4096, H=128, width=1024, cap=30.0):
    shapes = (N, T, H), (K, S, H), (K, S, H), (N, T, H)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    arrays += [jax.ShapeDtypeStruct((N, 1, T), jnp.float32)] * 2
    ids = tuple(jax.ShapeDtypeStruct((n,), jnp.int32) for n in (T, S))
    return *arrays, *window(T, S, width), ids, cap


def fresh(r):
    # mostly of the shapes of the cases, whose programs are compiled by now, and other documents
    if r.integers(4):
        return dict(
            N=4,
            K=2,
            R=6,
            S=1280,
            H=16,
            Hv=32,
            bq=128,
            bk=256,
            masks=4,
            segments=int(r.choice([3, 4])),
        )
    N, K = ((8, 4), (3, 3), (2, 1))[r.integers(3)]
    return dict(
        N=N,
        K=K,
        R=2,
        S=384,
        H=32,
        Hv=16,
        bq=256,
        bk=128,
        segments=int(r.choice([0, 2])),
        cap=2.0,
        bf16=True,
        rule="prefix",
    )


def audit(launch: Launch, *, args) -> None:
    wanted = str(args[0].dtype)
    for dot in launch.dots:
        kinds = {str(dtype) for dtype in dot.dtypes[:2]}
        assert kinds == {wanted}, (
            f"a dot multiplies {' by '.join(dot.dtypes[:2])}: give the matrix unit {wanted} on "
            "both sides, and ask for an f32 result"
        )
        assert str(dot.dtypes[2]) == "float32", (
            f"a dot returns {dot.dtypes[2]}: ask for f32 by `preferred_element_type`, for its "
            "result is changed further"
        )


PUZZLE = Puzzle(
    spec=attention_dq_spec,
    solution=attention_dq,
    inputs=make_inputs,
    cases=[
        dict(N=4, K=2, R=6, S=1280, H=16, Hv=32, bq=128, bk=256, masks=4, segments=3),
        dict(
            N=8,
            K=4,
            R=2,
            S=384,
            H=32,
            Hv=16,
            bq=256,
            bk=128,
            segments=2,
            cap=2.0,
            bf16=True,
            rule="prefix",
        ),
    ],
    fresh=fresh,
    scale=scale,
    par=dots,
    tolerance={"float32": 2e-4, "bfloat16": 3e-2},  # p and ds are rounded to bf16 before their dots
    hints=[
        "Follow the right column of the drawing line by line: the weights of this tile, the "
        "gradient that reaches them, the gradient that reaches the scores, and from there back "
        "through the product with k. What must a masked weight be?",
        "`lse` and `delta` are columns, (bq, 1), and broadcast. `jnp.where` drops masked "
        "weights, even if their exponentials are infinite. `jax.lax.dot_general` contracts the "
        "last axes of `do` and `v`; `.astype` before the dot that takes ds.",
        "The slope is 1 at score 0, and 0 where `bent` is ±1. Then five statements: p is an "
        "exponential where `seen` is True and 0 elsewhere; dp is a dot; ds is a product of "
        "three factors, one of them a difference; dq is a dot with ds; and acc grows by dq "
        "times the scale.",
    ],
    explain="""With lse a weight needs neither maximum nor sum, so tiles no longer depend on
    each other: there is no alpha here, and acc only adds. delta is a row's mean of dp, and it
    follows from o. 1/√H appears twice: in s, and on the way back from s to q.""",
    audit=audit,
)
