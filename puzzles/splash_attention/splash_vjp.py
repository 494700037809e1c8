"""Puzzle 22: attention that trains."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## splash_vjp: attention that trains
#
# `jax.custom_vjp` joins both backward passes to a forward pass that returns `lse`, as in `trainable_matmul`:
#
# ```text
#                 reads                    walks            dots in a tile
# forward         q k v                    the rows         2     q·kᵀ  p·v                   → o, lse
# ┄┄┄┄┄┄┄┄┄┄┄┄┄┄  keeps q k v ids o lse    ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
# delta           o do                     (plain JAX)      -                                 → delta
# attention_dq    q k v do lse delta       the rows         3     q·kᵀ  do·vᵀ  ds·k           → dq
# attention_dkv   q k v do lse delta       the columns      4     q·kᵀ  do·vᵀ  pᵀ·do  dsᵀ·q   → dk, dv
# ```
#
# The arrays kept in HBM are as long as the sequence. The T × S weights are computed again.
#
# * `nondiff_argnums` names the arguments that are known while tracing: the list, the patterns, the cap, the rule. The backward rule gets them first, and
#   returns no gradient for them.
# * The ids are arrays of integers: the gradient of the pair is `None`.
# * `o` and `do` may be bf16. Compute `delta` in f32, and make it a row, (N, 1, T), like `lse`.
# %%
from puzzles.splash_attention._masks import known_cap, known_mask, vmem_limit
from puzzles.splash_attention.computed_masks import Rule, tiles_of_rule
from puzzles.splash_attention.flash_attention import spread


def splash_vjp_spec(
    q: Float[Array, "N T H"],
    k: Float[Array, "K S H"],
    v: Float[Array, "K S Hv"],
    mask: Bool[np.ndarray, "*N T S"] | Rule,
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
    *,
    bq: int = 128,
    bk: int = 128,
) -> Float[Array, "N T Hv"]:
    del bq, bk  # a matter of speed, not of numbers
    q32, k32, v32 = (x.astype(jnp.float32) for x in (q, k, v))
    k32, v32 = (jnp.repeat(x, len(q) // len(k), axis=0) for x in (k32, v32))
    scores = jnp.einsum("nth,nsh->nts", q32, k32) / q.shape[-1] ** 0.5
    scores = scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)
    mask = mask(*np.indices(scores.shape[1:], np.int32)) if callable(mask) else mask
    seen = jnp.broadcast_to(mask, scores.shape)
    if segment_ids is not None:
        seen &= segment_ids[0][:, None] == segment_ids[1][None, :]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("nts,nsh->nth", jnp.where(seen, weights, 0.0), v32).astype(q.dtype)


# %% jupyter={"source_hidden": true} cellView="form"
# @title Two helpers of splash_multi_head
def next_used(index: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return `index` with each unused entry replaced by the next used entry (or the last)."""
    where = np.flatnonzero(used)
    if len(where) == 0:
        return index
    following = np.searchsorted(where, np.arange(len(index)))
    return index[where[np.minimum(following, len(where) - 1)]]


def tiles_of_heads(mask: np.ndarray, bq: int, bk: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return the flat list and the partial blocks of a mask (T, S), or one per head (N, T, S)."""
    stacked = mask.reshape(-1, mask.shape[-1])  # heads below each other
    block_mask, mask_index, partial_masks = find("classify_blocks").solution(stacked, bq, bk)
    return find("active_tiles").solution(block_mask, mask_index), partial_masks


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel of the forward pass, with lse (contains the answers to attention_lse and splash_multi_head)
def forward_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref,
    q_ref, k_ref, v_ref, mask_ref, q_ids_ref, kv_ids_ref,  # the last three may be None
    o_ref, lse_ref, m_ref, l_ref, acc_ref,
    *, soft_cap, rule,
):  # fmt: skip
    t = pl.program_id(1)
    flags = flags_ref[t]
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
        if rule is not None:
            row = rows_ref[t] * q_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
            column = cols_ref[t] * k_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
            seen = rule(row, column)
        if q_ids_ref is not None:
            seen &= q_ids_ref[...] == kv_ids_ref[...]
        s = jnp.where(seen, s, -jnp.inf)
        m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp(s - spread(m_new, s))
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(flags & 8 != 0)
    def _():
        l = l_ref[:, :1]
        o_ref[...] = (acc_ref[...] / jnp.where(l == 0.0, 1.0, l)).astype(o_ref.dtype)
        lse_ref[...] = m_ref[:, :1] + jnp.log(l)  # -inf for a row that attends to nothing


# %% jupyter={"source_hidden": true} cellView="form"
# @title The launch of the forward pass (contains the answer to splash_multi_head)
def forward_over_tiles(q, k, v, tiles, partial_masks, segment_ids, soft_cap, rule):
    """Return attention over a list, and each row's log of the sum of exponentials, (N, 1, T)."""
    (N, T, H), (K, S, Hv), (_, bq, bk) = q.shape, v.shape, partial_masks.shape
    assert N % K == 0 and T % bq == 0 and S % bk == 0, "groups and blocks must divide evenly"
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

    def by_column(h, t, rows, cols, masks, flags):
        head, _ = place(h, t, rows)
        return head if N == K else head // (N // K), cols[t], 0

    specs = [
        pl.BlockSpec((None, bq, H), by_row),
        pl.BlockSpec((None, bk, H), by_column),
        pl.BlockSpec((None, bk, Hv), by_column),
        pl.BlockSpec((None, bq, bk), lambda h, t, rows, cols, masks, flags: (masks[t], 0, 0)),
        pl.BlockSpec((bq, 1), lambda h, t, rows, cols, masks, flags: (place(h, t, rows)[1], 0)),
        pl.BlockSpec((1, bk), lambda h, t, rows, cols, masks, flags: (0, cols[t])),
    ]
    q_ids, kv_ids = None, None
    if segment_ids is not None:
        q_ids, kv_ids = segment_ids[0].reshape(T, 1), segment_ids[1].reshape(1, S)
    patterns = partial_masks if rule is None and (flags & 3 == 1).any() else None
    operands = (q, k, v, patterns, q_ids, kv_ids)
    o, lse = pl.pallas_call(
        functools.partial(forward_kernel, soft_cap=soft_cap, rule=rule),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(N // lists, len(rows)),
            in_specs=[None if x is None else spec for x, spec in zip(operands, specs, strict=True)],
            out_specs=[
                pl.BlockSpec((None, bq, Hv), by_row),
                pl.BlockSpec((None, bq, 1), by_row),
            ],
            scratch_shapes=[
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, Hv), jnp.float32),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((N, T, Hv), q.dtype),
            jax.ShapeDtypeStruct((N, T, 1), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem_limit(patterns)
        ),
        interpret=INTERPRET,
    )(rows, cols, masks, flags, *operands)
    return o, lse.reshape(N, 1, T)  # a column in the kernel; kept as a row


# %% [markdown]
# `splash_vjp` makes the list and calls `trainable`, whose rules come next.


# %%
@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def trainable(q, k, v, segment_ids, tiles, partial_masks, soft_cap, rule):
    o, _ = forward_over_tiles(q, k, v, tiles, partial_masks, segment_ids, soft_cap, rule)
    return o


def splash_vjp(
    q: Float[Array, "N T H"],
    k: Float[Array, "K S H"],
    v: Float[Array, "K S Hv"],
    mask: Bool[np.ndarray, "*N T S"] | Rule,
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
    *,
    bq: int = 128,
    bk: int = 128,
) -> Float[Array, "N T Hv"]:
    N, T, S = *q.shape[:2], k.shape[1]
    mask, soft_cap = known_mask(mask, N, T, S), known_cap(soft_cap)
    if callable(mask):
        assert max(T, S) <= 32_768, "make the list from block numbers, and call trainable"
        rule, tiles, partial_masks = (
            mask,
            tiles_of_rule(mask, T, S, bq, bk),
            np.zeros((0, bq, bk), bool),
        )
    else:
        rule, (tiles, partial_masks) = None, tiles_of_heads(mask, bq, bk)
    return trainable(q, k, v, segment_ids, tiles, partial_masks, soft_cap, rule)


# %% [markdown]
# Write both rules with `forward_over_tiles`, and with `find("attention_dq").solution` and
# `find("attention_dkv").solution`, which take the same eleven arguments.


# %%
def trainable_forward(q, k, v, segment_ids, tiles, partial_masks, soft_cap, rule):
    # returns the result, and a tuple of everything to keep
    ### BEGIN SOLUTION
    o, lse = forward_over_tiles(q, k, v, tiles, partial_masks, segment_ids, soft_cap, rule)
    return o, (q, k, v, segment_ids, o, lse)
    ### END SOLUTION


def trainable_backward(tiles, partial_masks, soft_cap, rule, kept, do):
    # returns the gradients of q, k, v and segment_ids
    ### BEGIN SOLUTION
    q, k, v, segment_ids, o, lse = kept
    products = o.astype(jnp.float32) * do.astype(jnp.float32)
    delta = jnp.sum(products, axis=-1)[:, None]
    args = q, k, v, do, lse, delta, tiles, partial_masks, segment_ids, soft_cap, rule
    dq = find("attention_dq").solution(*args)
    dk, dv = find("attention_dkv").solution(*args)
    return dq, dk, dv, None
    ### END SOLUTION


trainable.defvjp(trainable_forward, trainable_backward)


# %% [markdown]
# ### The same gradients as JAX's?
#
# The next cell computes **your** gradients of a small call, which has a bit of everything. It compares them with dense attention in
# float64, and with JAX's SplashAttention, within the tolerances of its own tests. JAX's SplashAttention runs with the same
# blocks, and with two backward kernels (`use_fused_bwd_kernel=False`).

# %% active="ipynb"
# from puzzles.splash_attention import _gradients as graduation
#
# print(graduation.graduate(splash_vjp))

# %% [markdown]
# ### Does training cost as much as in production?
#
# The table compares the reference with JAX's SplashAttention, launch by launch, for the three masks that JAX computes in its kernel. You pass them as
# rules. An operand of one column counts as 128 lanes wide, in both.

# %% active="ipynb"
# print(graduation.costs(find("splash_vjp").solution))

# %% [markdown]
# The forward pass takes two dots per tile, the backward passes seven. Two of the seven compute `s` again, and two compute `dp`, once for each order of the list.
#
# The reference takes as many dots as JAX's two backward kernels, and fewer steps and bytes. Passed as an array, a window mask would be fetched as stored
# patterns and would move more bytes than JAX's kernel does.
#
# JAX's backward pass can also make do with five dots. With `use_fused_bwd_kernel=True` its walk by columns adds up `ds·k` as
# well. The table shows this launch in the row of dk and dv. But every column visits the rows of dq again. So each column writes
# a dq of its own to HBM, and XLA adds them up. (The table leaves out this sum.) The fused kernel takes fewer dots, but with
# many columns it moves more bytes. tokamax's kernel (2026) is always fused.

# %% [markdown]
# ### The first four parts in short
#
# A softmax takes **three passes** over its scores: for the maximum, the sum, the weights. You found the maximum and the sum in **two**
# launches, then, with a correction, in **one** pass. The same correction carries an accumulator along, and the scores
# are **never materialised**. Then came masks: first applied; then **compute skipped**, by `pl.when`; then **traffic skipped**, by an index
# that does not change; then **steps skipped**, by a list. Heads, groups, documents and caps were a line or two
# each. All along, the body in the middle hardly changed. Besides its result, it leaves **one number per row**. That is enough to merge parts
# that were computed separately, and enough to compute every weight again in training.

# %% [markdown]
# ### Beyond these parts: production kernels
#
# * **A batch.** JAX's SplashAttention and yours take one sequence. For several, `jax.vmap` adds a grid axis to either.
# * **Two block sizes for keys.** In JAX's kernel a step fetches `block_kv` keys, and a dot takes `block_kv_compute` of them: large
#   fetches, small intermediates. The backward kernels have sizes of their own.
# * **The vector unit.** A score costs 4 · H FLOPs in the matrix unit, and a maximum, an exponential and a sum outside of it. The
#   receipt's share of the peak leaves this vector work out; its time includes it. With H = 64 instead of 128 there are half as many FLOPs and just as
#   many exponentials, and blocks are still padded to 128 lanes. tokamax, below, takes exponentials to the base 2.
# * **Documents.** Ids are known too late for a list made in NumPy. So tiles between two documents are computed and
#   masked, here and with the `segment_ids` of JAX's kernel. But JAX's kernel also accepts a mask as a JAX array. Its
#   tables are then made on the device, and these dots are skipped. The price: it keeps the whole mask in HBM. tokamax
#   (2026) also accepts such a mask. It makes the flat list on the device, and launches a grid whose length is known only
#   there.
# * **Layouts.** In JAX's kernel q, k and v may each have the sequence as their last axis in memory; `QKVLayout` says which.
# * **A flat list.** [tokamax](https://github.com/openxla/tokamax) has a newer version of JAX's kernel, marked as
#   experimental (2026). Its forward pass also walks active tiles with first and last flags.
# * **Many chips.** JAX's kernel can be cut across chips by heads (`head_shards`) and by queries (`q_seq_shards`), but not by keys.
#   Ring attention cuts the keys. tokamax has it (`ring_attention_kernel.py`), and you have both pieces: `attention_lse` and
#   `merge_attention`.
#
# The next thing to read is
# [JAX's kernel](https://github.com/jax-ml/jax/blob/main/jax/experimental/pallas/ops/tpu/splash_attention/splash_attention_kernel.py),
# together with [FlashAttention-2](https://arxiv.org/abs/2307.08691), which states both passes. The backward pass is derived in
# appendix B of [FlashAttention](https://arxiv.org/abs/2205.14135).
#
# <details><summary>More: where you find this ladder in JAX's source</summary>
#
# In JAX 0.10.2 (2026), in `splash_attention_kernel.py`:
#
# * `flash_attention_kernel`: its `init`, `body` and `end` are your start, tile and store. m and l are (bq, 128), with the same number in all lanes; `jnp.tile` makes m as wide as the scores, and 1 / l as wide as the output. `run` is a loop over the keys of a block, `block_kv_compute` at a time.
# * `_apply_mask_and_soft_cap`: the cap, then stored patterns or a rule, and ids. Masked scores get `DEFAULT_MASK_VALUE`, -0.7 times
#   the largest f32, and not -inf as yours do. So a row that attends to nothing becomes a mean there. If none of its blocks runs, it
#   ends with 1 / l for an l of 0: NaN.
# * `_next_nonzero`: `block_mask` holds the kinds, `data_next` your cols and `mask_next` your masks.
# * `_flash_attention_dq_kernel`, `_flash_attention_dkv_kernel`: rows of lse and di (your delta), and in the latter, by
#   `k_in_lanes=False`, the transposed tile.
#
# The tables are made in `splash_attention_mask_info.py`: `_process_mask`, and for a mask that is a JAX array
# `_process_dynamic_mask`. There is one table per head. If the heads of a shard (`head_shards`) share a static mask, there is
# one per shard.
#
# </details>

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng, vjp
from puzzles.splash_attention.attention_dq import make_masks, make_segments
from puzzles.splash_attention.computed_masks import RULES


def make_inputs(key, N, K, R, S, H, Hv, bq, masks=1, segments=0, cap=None, bf16=False, rule=None):
    r, T, dtype = rng(key), R * bq, jnp.bfloat16 if bf16 else jnp.float32
    q, k, v = (r.normal(size=shape) for shape in ((N, T, H), (K, S, H), (K, S, Hv)))
    if not bf16:  # beside large scores, the rounding of p and ds would drown small gradients
        q[:, 1::4] *= 4
    ids = make_segments(r, T, S, segments) if segments else None
    ids = ids and tuple(array(x, jnp.int32) for x in ids)
    arrays = (array(x, dtype) for x in (q, k, v + 0.5))
    return *arrays, RULES[rule] if rule else make_masks(R, S, bq, masks, N // K), ids, cap


def observe(fn):
    """The result and the gradients, for a gradient at the result that is nobody's operand."""

    def with_gradients(q, k, v, mask, ids, cap):
        bq = 256 if q.shape[1] == 512 else 128
        o, pullback = vjp(lambda q, k, v: fn(q, k, v, mask, ids, cap, bq=bq, bk=128), q, k, v)
        return o, *pullback(
            jax.lax.rev(o, (1, 2)) + jnp.asarray(0.5, o.dtype)
        )  # rows see nothing, and get some

    return with_gradients


def scale(N=8, K=2, T=5376, S=4096, H=128, width=1024, cap=30.0):
    shapes = (N, T, H), (K, S, H), (K, S, H)
    arrays = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    ids = tuple(jax.ShapeDtypeStruct((n,), jnp.int32) for n in (T, S))
    return *arrays, lambda row, column: (column <= row) & (row - column < width), ids, cap


def dots_a_tile(*launches: Launch) -> str:
    """How many dots each launch takes for a tile that has work."""
    numbers = []
    for one in launches:
        runs = [dot.executed for dot in one.dots]
        numbers.append(str(sum(int(x.sum()) for x in runs) // max(1, int((sum(runs) > 0).sum()))))
    return f"dots a tile: {', '.join(numbers)}"


def fresh(r):
    # Mostly the shapes of the first case, which is traced by now, and other documents; or what that
    # case has both of, and the other neither: ids without a cap, or a cap without ids.
    if r.integers(4):
        return dict(N=4, K=2, R=5, S=384, H=16, Hv=32, bq=128, masks=4, segments=4, cap=40.0)
    segments, cap = ((3, None), (4, None), (0, 0.75))[r.integers(3)]
    R, H = ((5, 32), (3, 128))[r.integers(2)]
    return dict(N=2, K=1, R=R, S=256, H=H, Hv=32, bq=128, masks=2, segments=segments, cap=cap)


def audit(forward: Launch, dq: Launch, dkv: Launch) -> None:
    """The forward pass, and two passes back: three launches."""


PUZZLE = Puzzle(
    spec=splash_vjp_spec,
    solution=splash_vjp,
    inputs=make_inputs,
    observe=observe,
    cases=[
        dict(N=4, K=2, R=5, S=384, H=16, Hv=32, bq=128, masks=4, segments=3, cap=40.0),
        dict(N=2, K=1, R=2, S=256, H=16, Hv=16, bq=256, rule="prefix", bf16=True),
    ],
    fresh=fresh,
    scale=scale,
    par=dots_a_tile,
    tolerance={"float32": 2e-4, "bfloat16": 1e-1},
    results=["the result", *(f"the gradient of {x}" for x in "qkv")],
    outside=[
        "mul",
        "div",
        "reduce_sum",
        "dot_general",
        "rev",
    ],  # delta, a mean for it, and `observe`
    waivers={
        "blocks": "no kernel is written here, and the puzzles of those that are called have such "
        "cases",
    },
    hints=[
        "Look at the eleven arguments of the two backward passes. Which come with the call, "
        "which does the forward pass return, and which is computed in between?",
        "The forward rule returns `(result, kept)`. The backward rule returns one gradient for "
        "each argument that is not in `nondiff_argnums`. `jnp.sum(..., axis=-1)` has the shape "
        "(N, T), and `[:, None]` puts an axis in between; `.astype(jnp.float32)` comes before "
        "the product.",
        "Forward: both outputs, then the result and six things to keep. Backward: unpack them; "
        "compute delta from o and do; write the eleven arguments once, for both passes; return "
        "three gradients and `None`.",
    ],
    explain="""Of the softmax, the backward pass needs one number per row, lse. Of the result it
    needs another, delta. Everything else is computed again in VMEM. So memory grows with T, and
    the dots grow with the tiles of the mask, forward and backward.""",
    audit=audit,
)
