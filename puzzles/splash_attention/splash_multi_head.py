"""Rung 16: all of it, and what the production kernel does beyond."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## splash_multi_head: all of it
#
# This is the summit: one kernel for many heads, grouped keys, any mask, a mask for all heads or one
# for each, packed documents, capped scores, f32 and bf16. You have written every piece. Three
# things are left to decide when they come together.
#
# **1. Where do heads go in a flat list?** If every head has its own mask, put the heads' rows below each other and
# make one list of them: with `R = T // bq` rows of tiles a head, visit `t` belongs to head `rows[t] // R` and to
# row `rows[t] % R` of it. If all heads share one mask, one head's list is enough, and the grid walks it
# once for every head. One grid does both:
#
# ```text
# grid (heads, len(rows))        head of step (h, t):  h + rows[t] // R
#
# a mask for each of N heads     (1, all lists)        0 + 0 … N-1     the list knows
# one mask for all               (N, one list)         h + 0           the grid knows
# ```
#
# Heads on a grid axis of their own are also what two cores can share out: that axis is `parallel`.
#
# **2. What if something is absent?** Without segments there are no ids to fetch, and a mask without partial tiles
# needs no blocks. `None` may stand in place of an operand and its spec, and then the kernel gets
# `None` in place of a Ref. `if mask_ref is not None:` is a *Python* if. It runs while the kernel is traced,
# and decides which code there is, not which code runs.
#
# **3. What does a visit fetch that it does not use?** A dead visit needs no keys, a full tile no mask. The helper below
# makes their entries repeat the **next** one that is used, so that it is fetched once, and
# early. That is `causal_prefetch`'s lesson again, for a list.
#
# ```text
# kind     1  2  2  1  1  0  1            masks  5  ·  ·  3  3  ·  8
#                                    becomes     5  3  3  3  3  8  8
# ```

# %%
def splash_multi_head_spec(
    q: Float[Array, "N T H"],
    k: Float[Array, "K S H"],
    v: Float[Array, "K S Hv"],
    mask: Bool[np.ndarray, "*N T S"],
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
    *,
    bq: int = 128,
    bk: int = 128,
) -> Float[Array, "N T Hv"]:
    del bq, bk  # a matter of speed, not of numbers
    groups = len(q) // len(k)
    q32, k32, v32 = (x.astype(jnp.float32) for x in (q, k, v))
    k32, v32 = (jnp.repeat(x, groups, axis=0) for x in (k32, v32))
    scores = jnp.einsum("nth,nsh->nts", q32, k32) / q.shape[-1] ** 0.5
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    seen = jnp.broadcast_to(mask, scores.shape)
    if segment_ids is not None:
        seen &= segment_ids[0][:, None] == segment_ids[1][None, :]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    out = jnp.einsum("nts,nsh->nth", jnp.where(seen, weights, 0.0), v32)
    return out.astype(q.dtype)


# %% [markdown]
# The list for many heads is plain NumPy, and given: your `classify_blocks` and `active_tiles`, on rows that are stacked.

# %%
def next_used(index: np.ndarray, used: np.ndarray) -> np.ndarray:
    """`index`, but where it is not used, the next entry that is; at the end, the last one."""
    where = np.flatnonzero(used)
    if len(where) == 0:
        return index
    following = np.searchsorted(where, np.arange(len(index)))
    return index[where[np.minimum(following, len(where) - 1)]]


def tiles_of_heads(mask: np.ndarray, bq: int, bk: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The flat list for a mask (T, S), or for one mask a head (N, T, S), and the partial blocks."""
    stacked = mask.reshape(-1, mask.shape[-1])  # heads below each other
    block_mask, mask_index, partial_masks = find("classify_blocks").solution(stacked, bq, bk)
    return find("active_tiles").solution(block_mask, mask_index), partial_masks


# %% [markdown]
# You write the kernel and, in the launch, the grid and a spec for each of the six operands. Here, too,
# `bq`, `bk` and `R` come from the list, so `splash_over_tiles` works without any mask: at T = 131,072, where a
# dense one would have 16 GiB, you hand it the list.

# %%
def splash_multi_head_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref,
    q_ref, k_ref, v_ref, mask_ref, q_ids_ref, kv_ids_ref,  # the last three may be None
    o_ref, m_ref, l_ref, acc_ref,
    *, soft_cap,
):  # fmt: skip
    ### BEGIN SOLUTION
    flags = flags_ref[pl.program_id(1)]
    kind = flags & 3

    @pl.when(flags & 4 != 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(kind != 0)
    def _():
        s = jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        s *= q_ref.shape[-1] ** -0.5
        if soft_cap is not None:
            s = soft_cap * jnp.tanh(s / soft_cap)
        seen = True
        if mask_ref is not None:
            seen = mask_ref[...] | (kind == 2)
        if q_ids_ref is not None:
            seen &= q_ids_ref[...] == kv_ids_ref[...]
        s = jnp.where(seen, s, -1e30)
        m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.where(seen, jnp.exp(s - m_new), 0.0)
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = alpha * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(flags & 8 != 0)
    def _():
        l = l_ref[...]
        o_ref[...] = (acc_ref[...] / jnp.where(l == 0.0, 1.0, l)).astype(o_ref.dtype)
    ### END SOLUTION


def splash_over_tiles(
    q: Float[Array, "N T H"],
    k: Float[Array, "K S H"],
    v: Float[Array, "K S Hv"],
    tiles: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    partial_masks: Bool[np.ndarray, "P bq bk"],
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
) -> Float[Array, "N T Hv"]:
    (N, T, H), (K, S, Hv), (_, bq, bk) = q.shape, v.shape, partial_masks.shape
    R = T // bq  # rows of tiles in a head
    rows, cols, masks, flags = tiles
    lists = int(rows[-1] + 1) // R  # 1: one mask for all heads, N: one for each
    cols, masks = next_used(cols, flags % 4 > 0), next_used(masks, flags % 4 == 1)

    q_ids, kv_ids = None, None
    if segment_ids is not None:
        q_ids, kv_ids = segment_ids[0].reshape(T, 1), segment_ids[1].reshape(1, S)
    needs_masks = (flags % 4 == 1).any()
    operands = (q, k, v, partial_masks if needs_masks else None, q_ids, kv_ids)

    # `grid`, `out_specs`, and `specs`: one spec for each operand, in their order
    ### BEGIN SOLUTION
    grid = (N // lists, len(rows))

    def by_row(h, t, rows, cols, masks, flags):
        return h + rows[t] // R, rows[t] % R, 0

    def by_column(h, t, rows, cols, masks, flags):
        return (h + rows[t] // R) // (N // K), cols[t], 0

    specs = [
        pl.BlockSpec((None, bq, H), by_row),
        pl.BlockSpec((None, bk, H), by_column),
        pl.BlockSpec((None, bk, Hv), by_column),
        pl.BlockSpec((None, bq, bk), lambda h, t, rows, cols, masks, flags: (masks[t], 0, 0)),
        pl.BlockSpec((bq, 1), lambda h, t, rows, cols, masks, flags: (rows[t] % R, 0)),
        pl.BlockSpec((1, bk), lambda h, t, rows, cols, masks, flags: (0, cols[t])),
    ]
    out_specs = pl.BlockSpec((None, bq, Hv), by_row)
    ### END SOLUTION

    return pl.pallas_call(
        functools.partial(splash_multi_head_kernel, soft_cap=soft_cap),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=grid,
            in_specs=[None if x is None else spec for x, spec in zip(operands, specs, strict=True)],
            out_specs=out_specs,
            scratch_shapes=[
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, Hv), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((N, T, Hv), q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(rows, cols, masks, flags, *operands)


def splash_multi_head(
    q: Float[Array, "N T H"],
    k: Float[Array, "K S H"],
    v: Float[Array, "K S Hv"],
    mask: Bool[np.ndarray, "*N T S"],
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
    *,
    bq: int = 128,
    bk: int = 128,
) -> Float[Array, "N T Hv"]:
    tiles, partial_masks = tiles_of_heads(mask, bq, bk)
    return splash_over_tiles(q, k, v, tiles, partial_masks, segment_ids, soft_cap)


# %% [markdown]
# END

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, rng
from puzzles.splash_attention.causal_attention import draw
from puzzles.splash_attention.splash_attention import changes


def make_masks(T, S, bq, bk, heads):
    """Rows of tiles of all kinds, in another order for each head; row 2 is empty, and so is most of row 3."""
    i, j = np.indices((T, S))
    R, last = T // bq, S // bk - 1
    masks = []
    for head in range(heads):
        row, col, y, x = (i // bq + 3 * head) % R, j // bk, i % bq, j % bk
        mask = (row == 0) & (col == 1) & ((x - y + head) % 3 == 0)
        mask |= (row == 0) & (col == last) & (x < y + 9)
        mask |= (row == 1) & (col != 1 + head % 2)
        mask |= (row == 3) & (col == 1) & (y >= bq // 2) & (x < 99)
        mask |= (row > 3) & (col == 0) & (y >= bq // 4)
        mask |= (row > 3) & (col == 1)
        mask |= (row > 3) & (col == last) & ((x - y + head) % 3 == 0)
        masks.append(mask)
    return np.stack(masks)


def make_inputs(key, N, K, T, S, H, Hv, bq, bk, masks, segments=0, cap=None, bf16=False):
    r = rng(key)
    q, k, _ = draw(key, N * T, K * S, H, offsets=(1, -64, 9))
    dtype = jnp.bfloat16 if bf16 else jnp.float32
    q, k = q.reshape(N, T, H).astype(dtype), k.reshape(K, S, H).astype(dtype)
    v = jnp.asarray(r.normal(0.5, 1, (K, S, Hv)), dtype)
    mask = make_masks(T, S, bq, bk, masks)
    ids = None
    if segments:
        cuts = np.sort(r.choice(np.arange(40, min(T, S) - 40), segments - 1, replace=False))
        names = r.permutation(segments) + 1
        q_ids, kv_ids = (names[np.searchsorted(cuts, np.arange(n), side="right")] for n in (T, S))
        ids = jnp.asarray(q_ids, jnp.int32), jnp.asarray(kv_ids, jnp.int32)
    return q, k, v, mask[0] if masks == 1 else mask, ids, cap, bq, bk


def observe(fn):
    """The function with its blocks as arguments, so that a case can choose them."""
    return lambda q, k, v, mask, ids, cap, bq, bk: fn(q, k, v, mask, ids, cap, bq=bq, bk=bk)


PUZZLE = Puzzle(
    spec=splash_multi_head_spec,
    solution=splash_multi_head,
    inputs=make_inputs,
    observe=observe,
    cases=[
        dict(N=4, K=2, T=320, S=384, H=64, Hv=128, bq=64, bk=128, masks=4),
        dict(N=6, K=2, T=640, S=256, H=64, Hv=32, bq=128, bk=128, masks=1, segments=3, cap=20.0),
        dict(N=2, K=2, T=320, S=512, H=64, Hv=64, bq=64, bk=256, masks=1, bf16=True),
    ],
    hints=["a", "b", "c"],
    explain="""x.""",
)
