"""Puzzle 21: the gradients of keys and values, column by column."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## attention_dkv: the same list, by columns
#
# A key takes part in many rows, and its gradient is a sum over them:
#
# ```text
# dv = pᵀ·do            dk = dsᵀ·q / √H            both sum over queries
#
# the mask       by row (dq)            by column (dk and dv)
#   k₀ k₁ k₂     rows  0  1  1  2       cols  0  0  1  1  2
# q₀ ■  ·  ·     cols  0  0  1  1       rows  0  1  1  2  ·
# q₁ ■  ◣  ·     flags 14 6  9  13      flags 6  10 5  9  12
# q₂ ·  ◣  ·
#                                       12: dead, no query attends to k₂
# ```
# %%
from puzzles.splash_attention._masks import vmem_limit
from puzzles.splash_attention.computed_masks import Rule


def attention_dkv_spec(
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
) -> tuple[Float[Array, "K S H"], Float[Array, "K S Hv"]]:
    del lse, delta  # JAX differentiates dense attention by itself
    seen = dense_mask(tiles, partial_masks, q.shape[1], k.shape[1], segment_ids, rule)
    return jax.vjp(lambda k, v: dense_attention(q, k, v, seen, soft_cap), k, v)[1](do)


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
# An output block stays in VMEM only while its visits follow each other. So `by_columns` reorders the visits: 4 and 8 now mark
# the first and the last visit of a *column*. A column that no query attends to gets a dead visit, which writes zeros.


# %%
def next_used(index: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return `index` with each unused entry replaced by the next used entry (or the last)."""
    where = np.flatnonzero(used)
    if len(where) == 0:
        return index
    following = np.searchsorted(where, np.arange(len(index)))
    return index[where[np.minimum(following, len(where) - 1)]]


def by_columns(tiles, N, K, R, J):
    """Return the visits of a list reordered by key head and column.

    `tiles` goes by rows: R rows for each query head in it, and J columns. In the result the rows
    of the list's query head n begin at n * R, and the columns of its key head k at k * J.
    """
    rows, cols, masks, flags = tiles
    kinds = flags & 3
    live = kinds > 0
    heads = max(1, (rows[-1] + 1) // R * K // N)  # key heads in the list: 1 or K
    cols = rows // R * K // N * J + cols
    unseen = np.setdiff1d(np.arange(heads * J), cols[live])  # a dead visit each
    rows, masks, kinds = (np.append(x[live], np.zeros_like(unseen)) for x in (rows, masks, kinds))
    cols = np.append(cols[live], unseen)
    order = np.lexsort((rows, cols))
    rows, cols, masks, kinds = (x[order].astype(np.int32) for x in (rows, cols, masks, kinds))
    new_column = cols[1:] != cols[:-1]
    flags = kinds + 4 * np.append(True, new_column) + 8 * np.append(new_column, True)
    return next_used(rows, kinds > 0), cols, next_used(masks, kinds == 1), flags.astype(np.int32)


# %% [markdown]
# **Grouped queries**: if heads share a mask, the grid's last axis, `g`, repeats each visit for every query head of the
# group.


# %%
def attention_dkv(
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
) -> tuple[Float[Array, "K S H"], Float[Array, "K S Hv"]]:
    (N, T, H), (K, S, Hv), (_, bq, bk) = q.shape, v.shape, partial_masks.shape
    assert N % K == 0 and T % bq == 0 and S % bk == 0, "groups and blocks must divide evenly"
    assert lse.shape == delta.shape == (N, 1, T), (
        f"lse and delta are rows, {N, 1, T}: {lse.shape} and {delta.shape}"
    )
    R, J = T // bq, S // bk  # rows of tiles in a query head, columns in a key head
    assert int(tiles[0][-1]) + 1 in (R, N * R) and tiles[1].max() < J, (
        "the list belongs to another mask"
    )
    rows, cols, masks, flags = by_columns(tiles, N, K, R, J)
    lists = (int(cols[-1]) + 1) // J  # 1: one mask for all heads, K: the list has all of them
    shared = int(tiles[0][-1]) < R
    assert rule is None or shared, "all heads share a rule: give it the list of one head"
    G = N // K if shared else 1  # query heads that a visit is made for

    def head(h, t, g, rows, flags):
        return h * (N // K) + rows[t] // R + jnp.where(flags[t] & 3 == 0, 0, g)

    def by_row(h, t, g, rows, cols, masks, flags):
        return head(h, t, g, rows, flags), rows[t] % R, 0

    def along_row(h, t, g, rows, cols, masks, flags):
        return head(h, t, g, rows, flags), 0, rows[t] % R

    def by_column(h, t, g, rows, cols, masks, flags):
        return h + cols[t] // J, cols[t] % J, 0

    specs = [
        pl.BlockSpec((None, bq, H), by_row),
        pl.BlockSpec((None, bk, H), by_column),
        pl.BlockSpec((None, bk, Hv), by_column),
        pl.BlockSpec((None, bq, Hv), by_row),
        pl.BlockSpec((None, 1, bq), along_row),
        pl.BlockSpec((None, 1, bq), along_row),
        pl.BlockSpec((None, bk, bq), lambda h, t, g, rows, cols, masks, flags: (masks[t], 0, 0)),
        pl.BlockSpec((1, bq), lambda h, t, g, rows, cols, masks, flags: (0, rows[t] % R)),
        pl.BlockSpec((1, bk), lambda h, t, g, rows, cols, masks, flags: (0, cols[t] % J)),
    ]
    q_ids, kv_ids = None, None
    if segment_ids is not None:
        q_ids, kv_ids = segment_ids[0].reshape(1, T), segment_ids[1].reshape(1, S)
    needs_patterns = rule is None and (flags & 3 == 1).any()
    assert not needs_patterns or len(partial_masks), "partial tiles need a rule, or patterns"
    patterns = np.swapaxes(partial_masks, 1, 2) if needs_patterns else None  # transposed as well
    operands = (q, k, v, do, lse, delta, patterns, q_ids, kv_ids)
    dk, dv = pl.pallas_call(
        functools.partial(attention_dkv_kernel, soft_cap=soft_cap, rule=rule),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(K // lists, len(rows), G),
            in_specs=[None if x is None else spec for x, spec in zip(operands, specs, strict=True)],
            out_specs=[specs[1], specs[2]],
            scratch_shapes=[
                pltpu.VMEM((bk, H), jnp.float32),
                pltpu.VMEM((bk, Hv), jnp.float32),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct(k.shape, k.dtype),
            jax.ShapeDtypeStruct(v.shape, v.dtype),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=vmem_limit(patterns),
        ),
        interpret=INTERPRET,
    )(rows, cols, masks, flags, *operands)
    return dk, dv


# %% [markdown]
# **A tile is transposed**: `k·qᵀ` has keys along the rows and queries along the lanes. So `lse` and `delta` are used as they are in HBM,
# as rows, and `p` and `ds` are already transposed. JAX's kernel does the same.


# %% jupyter={"source_hidden": true} cellView="form"
# @title p and ds of a tile (contains the answer to attention_dq)
def weights(q, k, v, do, lse, delta, seen, soft_cap):
    """Return p and ds of a tile, transposed to (bk, bq), so that lse and delta are rows."""
    contract = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)
    s = q.shape[-1] ** -0.5 * contract(k, q, (((1,), (1,)), ((), ())))
    slope = 1.0
    if soft_cap is not None:
        bent = jnp.tanh(s / soft_cap)
        s, slope = soft_cap * bent, 1.0 - bent * bent
    p = jnp.where(seen, jnp.exp(s - lse), 0.0)
    dp = contract(v, do, (((1,), (1,)), ((), ())))
    return p, p * (dp - delta) * slope


# %% [markdown]
# Fill in the start, the two sums and the stores. `opens` and `closes` mark a column's first and last step. `p` and `ds` are
# given in f32, (bk, bq). `ds` does not contain dk's factor 1/√H. Dots take `q`'s dtype, and return f32.


# %%
def attention_dkv_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref,
    q_ref, k_ref, v_ref, do_ref, lse_ref, delta_ref,
    mask_ref, q_ids_ref, kv_ids_ref,  # each of these may be None
    dk_ref, dv_ref, dk_acc_ref, dv_acc_ref,
    *, soft_cap, rule,
):  # fmt: skip
    t, g = pl.program_id(1), pl.program_id(2)
    flags = flags_ref[t]
    kind = flags & 3
    opens = (flags & 4 != 0) & (g == 0)
    closes = (flags & 8 != 0) & (g == pl.num_programs(2) - 1)
    scale = q_ref.shape[-1] ** -0.5  # 1/√H

    @pl.when(opens)
    def _():
        ### BEGIN SOLUTION
        dk_acc_ref[...] = jnp.zeros_like(dk_acc_ref)
        dv_acc_ref[...] = jnp.zeros_like(dv_acc_ref)
        ### END SOLUTION

    @pl.when(kind != 0)
    def _():
        q, k, v, do = q_ref[...], k_ref[...], v_ref[...], do_ref[...]
        seen = True
        if mask_ref is not None:
            seen = mask_ref[...] | (kind == 2)
        if rule is not None:
            shape = k.shape[0], q.shape[0]
            row = rows_ref[t] * q.shape[0] + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
            column = cols_ref[t] * k.shape[0] + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
            seen = rule(row, column)
        if q_ids_ref is not None:
            seen &= jnp.expand_dims(kv_ids_ref[0], -1) == q_ids_ref[...]
        p, ds = weights(q, k, v, do, lse_ref[...], delta_ref[...], seen, soft_cap)
        ### BEGIN SOLUTION
        dv_acc_ref[...] += jnp.dot(p.astype(q.dtype), do, preferred_element_type=jnp.float32)
        dk_acc_ref[...] += jnp.dot(ds.astype(q.dtype), q, preferred_element_type=jnp.float32)
        ### END SOLUTION

    @pl.when(closes)
    def _():
        ### BEGIN SOLUTION
        dk_ref[...] = (scale * dk_acc_ref[...]).astype(dk_ref.dtype)
        dv_ref[...] = dv_acc_ref[...].astype(dv_ref.dtype)
        ### END SOLUTION


# %% tags=["author"]
from puzzles import Puzzle
from puzzles.splash_attention.attention_dq import audit, fresh, make_inputs
from puzzles.splash_attention.attention_dq import scale as scale_of_dq
from puzzles.splash_attention.causal_attention import dots


def scale(T=4096, S=5376):
    """Fewer queries than keys: the last columns are seen by nobody. The window is a rule."""
    return *scale_of_dq(T=T, S=S), lambda row, column: (column <= row) & (row - column < 1024)


PUZZLE = Puzzle(
    spec=attention_dkv_spec,
    solution=attention_dkv,
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
    results=["dk", "dv"],
    hints=[
        "A key's gradient is a sum over queries, tile after tile. Where does a column begin, "
        "what does each tile add, and what is still to do when the column ends?",
        "The tile is transposed, so queries are the last axis of `p` and `ds`, and the first of "
        "`do` and `q`: `jnp.dot`. `.astype` before a dot, `preferred_element_type=jnp.float32` "
        "in it, and `.astype` with the output's dtype at the store.",
        "Start: both accumulators are zeros. A tile: dv's accumulator grows by a dot of p and "
        "do, dk's by a dot of ds and q. End: two stores, one of them scaled.",
    ],
    explain="""If many steps add to one output, these steps have to be consecutive. dq needs the
    order by rows, dk and dv the order by columns, so they are two launches over two orders of
    one list. s is computed again in each. That costs dots, and saves T × S numbers in HBM.""",
    audit=audit,
)
