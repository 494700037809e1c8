"""Puzzle 17: all of it, and what the production kernel does beyond."""

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
# All in one kernel: many heads, grouped keys, any mask (a rule for all heads, or an array for all or for each),
# documents, capped scores, f32 and bf16.
#
# **Where do heads go in a flat list?** If every head has its own mask, stack the heads' rows
# and make one list: with `R = T // bq` rows of tiles per head, visit `t` belongs to head `rows[t] // R`, and to its
# row `rows[t] % R`. If all share one mask, one head's list is enough, walked once for every head:
#
# ```text
# grid (heads, len(rows))        head of step (h, t):  h + rows[t] // R
#
# a mask for each of N heads     (1, all lists)        h is 0; the list counts the heads
# one mask for all               (N, one list)         the grid counts them; rows[t] // R is 0
# ```
#
# **What if an operand is absent?** Without segments there are no ids to fetch; without partial tiles, or with a rule,
# no masks. `None` then replaces the operand, its spec and its Ref. Without a rule, `rule` is `None`. Test for `None` with *Python's* `if`,
# which runs while the kernel is traced.
#
# You write three things: the work of a tile; `splash_specs`, which returns a spec for each of the six operands, present or not,
# and for the output; and the grid.
#
# <details><summary>More: the price of a list</summary>
#
# A dense mask for 131,072 tokens would take 16 GiB. A list takes 16 bytes per tile. But to list its tiles, a rule is
# evaluated for every pair of tokens, so `splash_multi_head` accepts a rule for up to 32,768 tokens. Beyond that, make the list from block numbers and
# pass it to `splash_over_tiles`.
#
# The grid's axis of heads is `parallel`, so two cores can divide the heads between them. One long list, for a mask per head, cannot
# be divided, and takes N times the SMEM.
#
# A visit that needs no keys, or no mask, names the **next** block that is used: `causal_prefetch` again, for a list.
#
# ```text
# kind     1  2  2  1  1  0  1            masks  5  ·  ·  3  3  ·  8
#          the next used block                   5  3  3  3  3  8  8
# ```
#
# </details>

# %%
Tiles = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # rows, cols, masks, flags
from puzzles.splash_attention._masks import known_cap, known_mask
from puzzles.splash_attention.computed_masks import Rule, tiles_of_rule
from puzzles.splash_attention.flash_attention import spread


def splash_multi_head_spec(
    q: Float[Array, "N T H"],  # N heads of T queries, H wide
    k: Float[Array, "K S H"],  # K heads of S keys
    v: Float[Array, "K S Hv"],  # values are Hv wide
    mask: Bool[np.ndarray, "*N T S"] | Rule,
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
    *,
    bq: int = 128,  # queries of a tile
    bk: int = 128,  # keys of a tile
) -> Float[Array, "N T Hv"]:
    del bq, bk  # a matter of speed, not of numbers
    groups = len(q) // len(k)
    q32, k32, v32 = (x.astype(jnp.float32) for x in (q, k, v))
    k32, v32 = (jnp.repeat(x, groups, axis=0) for x in (k32, v32))
    scores = jnp.einsum("nth,nsh->nts", q32, k32) / q.shape[-1] ** 0.5
    scores = scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)
    mask = mask(*np.indices(scores.shape[1:], np.int32)) if callable(mask) else mask
    seen = jnp.broadcast_to(mask, scores.shape)
    if segment_ids is not None:
        seen &= segment_ids[0][:, None] == segment_ids[1][None, :]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    out = jnp.einsum("nts,nsh->nth", jnp.where(seen, weights, 0.0), v32)
    return out.astype(q.dtype)


# %%
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


# %%
def splash_multi_head_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref,
    q_ref, k_ref, v_ref, mask_ref, q_ids_ref, kv_ids_ref,  # the last three may be None
    o_ref, m_ref, l_ref, acc_ref,
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
    def _():  # m and l are 128 lanes wide: `spread` makes m as wide as s, alpha as wide as acc
        ### BEGIN SOLUTION
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
        ### END SOLUTION

    @pl.when(flags & 8 != 0)
    def _():
        l = l_ref[:, :1]
        o_ref[...] = (acc_ref[...] / jnp.where(l == 0.0, 1.0, l)).astype(o_ref.dtype)


def splash_specs(
    N: int, K: int, R: int, bq: int, bk: int, H: int, Hv: int
) -> tuple[list[pl.BlockSpec], pl.BlockSpec]:
    """Return the specs of q, k, v, the partial masks and both ids, and the spec of the output.

    There are N query heads, with R rows of tiles each, and K key heads. Tiles are bq × bk; H is the
    width of keys, Hv of values.
    """

    ### BEGIN SOLUTION
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
    return specs, pl.BlockSpec((None, bq, Hv), by_row)
    ### END SOLUTION


def splash_over_tiles(
    q: Float[Array, "N T H"],
    k: Float[Array, "K S H"],
    v: Float[Array, "K S Hv"],
    tiles: Tiles,
    partial_masks: Bool[np.ndarray, "P bq bk"],
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
    rule: Rule | None = None,  # replaces the partial masks: only their shape is used, for bq and bk
) -> Float[Array, "N T Hv"]:
    (N, T, H), (K, S, Hv), (_, bq, bk) = q.shape, v.shape, partial_masks.shape
    assert N % K == 0 and T % bq == 0 and S % bk == 0, "groups and blocks must divide evenly"
    R = T // bq  # rows of tiles in a head
    rows, cols, masks, flags = tiles
    assert int(rows[-1]) + 1 in (R, N * R) and cols.max() < S // bk, (
        "the list belongs to another mask"
    )
    lists = int(rows[-1] + 1) // R  # 1: one mask for all heads, N: one for each
    assert rule is None or lists == 1, "all heads share a rule: give it the list of one head"
    cols, masks = next_used(cols, flags & 3 > 0), next_used(masks, flags & 3 == 1)

    q_ids, kv_ids = None, None
    if segment_ids is not None:
        q_ids, kv_ids = segment_ids[0].reshape(T, 1), segment_ids[1].reshape(1, S)
    needs_masks = rule is None and (flags & 3 == 1).any()
    operands = (q, k, v, partial_masks if needs_masks else None, q_ids, kv_ids)

    specs, out_spec = splash_specs(N, K, R, bq, bk, H, Hv)
    in_specs = [None if x is None else spec for x, spec in zip(operands, specs, strict=True)]
    return pl.pallas_call(
        functools.partial(splash_multi_head_kernel, soft_cap=soft_cap, rule=rule),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            ### BEGIN SOLUTION
            grid=(N // lists, len(rows)),
            ### END SOLUTION
            in_specs=in_specs,
            out_specs=out_spec,
            scratch_shapes=[
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, 128), jnp.float32),
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
    mask: Bool[np.ndarray, "*N T S"] | Rule,
    segment_ids: tuple[Int[Array, " T"], Int[Array, " S"]] | None = None,
    soft_cap: float | None = None,
    *,
    bq: int = 128,
    bk: int = 128,
) -> Float[Array, "N T Hv"]:
    N, T, S = *q.shape[:2], k.shape[1]
    mask, soft_cap = known_mask(mask, N, T, S), known_cap(soft_cap)
    if not callable(mask):
        tiles, partial_masks = tiles_of_heads(mask, bq, bk)
        return splash_over_tiles(q, k, v, tiles, partial_masks, segment_ids, soft_cap)
    assert max(T, S) <= 32_768, "make the list from block numbers, and call splash_over_tiles"
    tiles, no_masks = tiles_of_rule(mask, T, S, bq, bk), np.zeros((0, bq, bk), bool)
    return splash_over_tiles(q, k, v, tiles, no_masks, segment_ids, soft_cap, mask)


# %% [markdown]
# ### Graduation
#
# Is it as good as the real one? Here **your** function is called on three small inputs. Each result is compared with dense
# attention in f32; with
# [`jax.nn.dot_product_attention`](https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html), if
# that supports the call; and with JAX's production
# [SplashAttention](https://github.com/jax-ml/jax/tree/main/jax/experimental/pallas/ops/tpu/splash_attention), within
# the tolerance of its own tests. Steps, fetches, dots and bytes must be no more than production's. JAX's kernel takes
# masks as objects of its own classes: here a `CausalMask`, a `NumpyMask` for each head, and a `LocalMask`. You pass
# the first and the last as rules. Bytes of prefetched lists are in a separate column.
#
# Four differences you should know:
#
# * **No 1/√H inside.** JAX's kernel expects queries that you have scaled. So the comparison scales them first.
# * **Rows that attend to nothing.** JAX's kernel expects none; it gives them a mean of values, or NaN. `jax.nn` gives
#   them a mean. Yours are zeros, as the last lines of the output show. Numbers are compared on all other rows.
# * **p stays in f32 there**, `v` is cast to f32, and the rounding is left to the matrix unit. You cast `p` yourself.
# * **More arrays are 128 lanes wide there.** Both kernels keep m and l in 128 lanes. JAX's kernel also reads row numbers
#   and the queries' ids 128 lanes wide.

# %% active="ipynb"
# from puzzles.splash_attention import _graduation as graduation
#
# print(graduation.graduate(splash_multi_head))

# %% [markdown]
# Long sequences are slow on a CPU, but their costs can be counted. Each mask below is passed to JAX as an object of JAX's own
# class for it: `CausalMask`, `LocalMask`, `FullMask`, and `NumpyMask` for any other mask. "Dense attention" writes
# scores and weights to HBM in f32, and reads them again.

# %% active="ipynb"
# print(graduation.costs(splash_over_tiles))

# %% [markdown]
# Read it by column:
#
# * **Steps**: yours are fewer, except for the full mask. JAX's kernel pads every row of tiles to the widest. (Steps are not
#   time. A step with nothing to do is short, and only a TPU can tell how short.)
# * **Tiles computed**: the same.
# * **Blocks and bytes**: yours are at most JAX's, for every mask. For a causal mask and a window JAX stores no patterns. It passes row
#   numbers to the kernel, 128 copies of each, and the kernel compares them with column numbers. Yours gets the rows
#   from the list. (An operand of one column counts as 128 lanes wide, in your launch as well.)
# * **Lists**: the price, counted as SMEM stores them. Yours take 16 bytes per tile. JAX's tables hold small integers, but each row of them is padded
#   to 128. For a causal mask of 131,072 tokens they take less than your list.
#
# And at T = 131,072? The list of a causal mask in blocks of 512 has 32,896 tiles, which take half of SMEM. No array is
# as large as T × T. Below is your launch, or the reference's if yours cannot be counted yet; then a picture
# of a launch with a small mask, for two heads that run one after the other.

# %% active="ipynb"
# over_tiles, whose = graduation.yours_or_reference(splash_over_tiles)
# tiles, partial_masks = graduation.banded_tiles(131_072, block=512)
# q = jax.ShapeDtypeStruct((4, 131_072, 128), jnp.bfloat16)
# k = v = jax.ShapeDtypeStruct((1, 131_072, 128), jnp.bfloat16)
# print(f"{whose}: {len(tiles[0]):,} tiles a head; the scores alone would have 256 GiB in f32")
# receipt(lambda q, k, v: over_tiles(q, k, v, tiles, partial_masks), q, k, v)

# %% active="ipynb"
# i, j = np.indices((512, 512))
# small = tiles_of_heads((j <= i) & (i - j < 256) | (j < 128), 128, 128)
# x = jax.ShapeDtypeStruct((2, 512, 64), jnp.float32)
# show(lambda q, k, v: over_tiles(q, k, v, *small), x, x, x)

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.splash_attention.causal_attention import dots, draw
from puzzles.splash_attention.computed_masks import RULES


def blocks(T, S):
    """(bq, bk) of a case: both orders occur."""
    return (64, 128) if T < S else (128, 256)


def make_masks(T, S, heads):
    """Rows of tiles of all kinds, in another order for each head; one row is empty; 0 heads: all is
    seen.
    """
    if heads == 0:
        return np.ones((T, S), bool)
    bq, bk = blocks(T, S)
    i, j = np.ogrid[:T, :S]
    R, last, masks = T // bq, S // bk - 1, []
    for head in range(heads):
        row, col, y, x = (i // bq + 3 * head) % R, j // bk, i % bq, j % bk
        mask = (row == 0) & (col == 1) & ((x - y + head) % 3 == 0)
        mask |= (row == 0) & (col == last) & (x < y + 9)
        mask |= (row == 1) & (col != 1 + head % 2)
        mask |= (row == 3) & (col == 1) & (y >= bq // 2) & (x < 99)
        mask |= (row > 3) & (col == 0) & (y >= bq // 4 + (row - 4) // 2)
        mask |= (row > 3) & (col == 1)
        mask |= (row > 3) & (col == last) & ((x - y + head) % 3 == 0)
        masks.append(mask)
    return np.stack(masks) if heads > 1 else masks[0]


def make_inputs(key, N, K, T, S, H, Hv, masks=0, segments=0, cap=None, bf16=False, rule=None):
    r = rng(key)
    q, k, _ = draw(key, N * T, K * S, H, offsets=(1, -64, 9))
    dtype = jnp.bfloat16 if bf16 else jnp.float32
    q, k = (array(np.asarray(x).reshape(-1, n, H), dtype) for x, n in ((q, T), (k, S)))
    v = array(r.normal(0.5, 1, (K, S, Hv)), dtype)
    ids = None
    if segments:
        cuts = (np.arange(1, segments) / segments * min(T, S)).astype(int) + r.integers(
            -20, 20, segments - 1
        )
        cuts.sort()
        names = r.permutation([-1, 0, 2**24, 2**24 + 1])[:segments]
        q_ids, kv_ids = (names[np.searchsorted(cuts, np.arange(n), side="right")] for n in (T, S))
        ids = array(q_ids, jnp.int32), array(kv_ids, jnp.int32)
    return q, k, v, RULES[rule] if rule else make_masks(T, S, masks), ids, cap


def observe(fn):
    """The function with the blocks of the case."""

    def run(q, k, *rest):
        bq, bk = blocks(q.shape[1], k.shape[1])
        return fn(q, k, *rest, bq=bq, bk=bk)

    return run


@functools.cache
def local(T, S, window):
    """A causal window, and a few rows at the end that see nothing."""
    mask = np.tri(T, S, dtype=bool) & ~np.tri(T, S, -window, dtype=bool)
    mask.flags.writeable = False
    return mask


def scale(N=8, K=2, T=5376, S=4096, H=128, window=1024, cap=30.0):
    arrays = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((N, T, H), (K, S, H), (K, S, H))
    )
    ids = tuple(jax.ShapeDtypeStruct((n,), jnp.int32) for n in (T, S))
    return *arrays, local(T, S, window), ids, cap


def fresh(r):
    cases = [
        dict(N=4, K=1, T=320, S=384, H=32, Hv=64, masks=1, segments=4, cap=7.0),
        dict(N=2, K=2, T=512, S=512, H=64, Hv=16, masks=2, bf16=True),
        dict(N=6, K=3, T=64, S=256, H=32, Hv=16, masks=0, segments=3),
        dict(N=3, K=1, T=384, S=640, H=8, Hv=32, masks=3, cap=100.0),
        dict(N=4, K=2, T=256, S=384, H=32, Hv=64, rule="late"),
    ]
    return cases[r.integers(len(cases))]


def audit(launch: Launch, *, args) -> None:
    wanted = str(args[0].dtype)
    for dot in launch.dots:
        kinds = {str(dtype) for dtype in dot.dtypes[:2]}
        assert kinds == {wanted}, (
            f"a dot multiplies {' by '.join(dot.dtypes[:2])}: give the matrix unit {wanted} on "
            "both sides, and ask for an f32 result"
        )
    narrow = [o.name for o in launch.scratch if str(o.dtype) != "float32"]
    assert not narrow, f"`{narrow[0]}` is no float32: m, l and acc are changed at every step"


_FIRST, _ALIVE, _LAST = (
    "@pl.when(flags & 4 != 0)",
    "@pl.when(kind != 0)",
    "@pl.when(flags & 8 != 0)",
)

PUZZLE = Puzzle(
    spec=splash_multi_head_spec,
    solution=splash_multi_head,
    inputs=make_inputs,
    observe=observe,
    cases=[
        dict(N=4, K=2, T=384, S=512, H=64, Hv=128, masks=4, segments=3),
        dict(N=6, K=2, T=640, S=512, H=64, Hv=32, masks=1, cap=150.0),
        dict(N=5, K=5, T=128, S=256, H=16, Hv=32, masks=0, bf16=True),
        dict(N=2, K=1, T=640, S=768, H=16, Hv=64, rule="prefix", segments=2, cap=0.5),
        dict(N=1, K=1, T=34 * 64, S=18 * 128, H=16, Hv=16, masks=1),  # long lists, many patterns
        dict(N=1, K=1, T=34 * 64, S=18 * 128, H=16, Hv=16, rule="window", segments=2),
    ],
    fresh=fresh,
    scale=scale,
    par=dots,
    tolerance={"float32": 2e-4, "bfloat16": 1e-2},
    hints=[
        "Every part is known; only the combination is new. The kernel is that of "
        "splash_attention with the casts of multi_head_attention, the cap of "
        "soft_cap_attention, the ids of segment_attention and the numbers of computed_masks. In "
        "the launch, ask for each operand: which head, which row, which column does visit t of "
        "list h need?",
        "Python's `if x is not None:` drops code while tracing. `seen` can start as plain "
        "`True` until the first condition: `jnp.where` and `&` accept it. Masked scores are "
        "`-jnp.inf`. Index maps have two program ids before the four Refs, and may use `//`, "
        "`%`, `R`, `N` and `K`. Of the seven specs, two have heads of queries (those of q and "
        "of the output), two have heads of keys, three have no heads.",
        "In the tile: dot, scale, cap, seen, mask, the online softmax, with p cast for its dot. "
        "Launch: the grid is (times that the list is walked, length of the list). The list is "
        "walked once for each head that shares it. The query head is h plus the head that the "
        "row gives; the key head is that, divided by the size of a group; q, its ids and the "
        "output go by row; k, v and their ids by column.",
    ],
    explain="""The list decides where a step is in the table, the index maps decide which blocks
    it gets, and the kernel decides what to do with them. These are three separate things, so
    heads, groups, masks, segments and caps could each be added in one place. An absent operand
    is `None` while tracing, and costs nothing.""",
    audit=audit,
)
