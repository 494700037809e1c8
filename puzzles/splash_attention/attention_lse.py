"""Puzzle 18: what the forward pass keeps for the backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float

from puzzles import INTERPRET, find

# %% [markdown]
# ## attention_lse: one number per row
#
# A gradient needs the weights again. They were never stored: for 32,768 queries and keys they take 4 GiB per head. The
# backward pass computes them again, tile by tile, from the maximum m and the sum l of each row's softmax. Those are two
# numbers per row. Is one enough?
#
# $$\frac{e^{s_{ts} - m_t}}{l_t} = e^{s_{ts} - \text{lse}_t} \qquad\qquad \text{lse}_t = \log \sum_s e^{s_{ts}}$$
#
# This number is the row's **logsumexp**. With it, a weight is one exponential of one score, in any tile:
#
# ```text
#   forward                               backward, in any tile
#
#   q  k  v ──→ o    (T, Hv)              q  k ──────→ s ─┐
#           ──→ lse  (T, 1) ─── kept ──────────────────→ exp(s - lse) = p
# ```
#
# How does lse follow from m and l? The sum itself may overflow. And what is the lse of a row that attends to nothing,
# whose sum has no terms?
#
# The kernel is `splash_attention`'s, with values of their own width, Hv. Fill in the store of a row's last
# visit, and the launch's second output.

# %%
Tiles = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # as returned by active_tiles


def attention_lse_spec(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S Hv"],
    tiles: Tiles,
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> tuple[Float[Array, "T Hv"], Float[Array, "T 1"]]:
    (T, H), (S, _), (_, bq, bk) = q.shape, k.shape, partial_masks.shape
    seen = np.zeros((T // bq, bq, S // bk, bk), bool)
    for row, col, mask, flag in zip(*tiles, strict=True):
        kind = flag & 3
        seen[row, :, col] = partial_masks[mask] if kind == 1 else kind == 2
    seen = seen.reshape(T, S)
    scores = jnp.where(seen, jnp.dot(q, k.T) / H**0.5, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=1, keepdims=True)
    return jnp.dot(jnp.where(seen, jnp.exp(scores - lse), 0.0), v), lse


# %%
from puzzles.splash_attention.flash_attention import spread


def attention_lse_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref,
    q_ref, k_ref, v_ref, mask_ref, o_ref, lse_ref, m_ref, l_ref, acc_ref,
):  # fmt: skip
    flags = flags_ref[pl.program_id(0)]
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
        s *= q_ref.shape[1] ** -0.5
        s = jnp.where(mask_ref[...] | (kind == 2), s, -jnp.inf)
        m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp(s - spread(m_new, s))
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(flags & 8 != 0)
    def _():
        m, l = m_ref[:, :1], l_ref[:, :1]
        o_ref[...] = acc_ref[...] / jnp.where(l == 0.0, 1.0, l)
        ### BEGIN SOLUTION
        lse_ref[...] = m + jnp.log(l)
        ### END SOLUTION


def attention_lse(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S Hv"],
    tiles: Tiles,
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> tuple[Float[Array, "T Hv"], Float[Array, "T 1"]]:
    (T, H), (_, Hv), (_, bq, bk) = q.shape, v.shape, partial_masks.shape

    def by_row(t, rows, cols, masks, flags):
        return rows[t], 0

    def by_column(t, rows, cols, masks, flags):
        return cols[t], 0

    o, lse = pl.pallas_call(
        attention_lse_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(len(tiles[0]),),
            in_specs=[
                pl.BlockSpec((bq, H), by_row),
                pl.BlockSpec((bk, H), by_column),
                pl.BlockSpec((bk, Hv), by_column),
                pl.BlockSpec((None, bq, bk), lambda t, rows, cols, masks, flags: (masks[t], 0, 0)),
            ],
            out_specs=[
                pl.BlockSpec((bq, Hv), by_row),
                ### BEGIN SOLUTION
                pl.BlockSpec((bq, 1), by_row),
                ### END SOLUTION
            ],
            scratch_shapes=[
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, Hv), jnp.float32),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((T, Hv), jnp.float32),
            ### BEGIN SOLUTION
            jax.ShapeDtypeStruct((T, 1), jnp.float32),
            ### END SOLUTION
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=INTERPRET,
    )(*tiles, q, k, v, partial_masks)
    return o, lse


# %% [markdown]
# Is one number per row really enough? The next cell computes the weights again, from q, k and the reference's lse, without a maximum or a sum.
# Rows that attend to nothing have no weights. JAX's kernel also writes an lse, in 128 copies, one per lane, and XLA keeps one of
# them: (heads, T), 4 bytes per row. Yours is a column; in HBM it is padded to 128 lanes.
# The backward pass gets it as a row.

# %% active="ipynb"
# T, H = 512, 64
# t, s = np.indices((T, T))
# mask = (s <= t) & (t - s < 200) & (t >= 100)  # the first rows attend to nothing
# block_mask, mask_index, patterns = find("classify_blocks").solution(mask, 128, 128)
# tiles = find("active_tiles").solution(block_mask, mask_index)
# q, k, v = np.random.default_rng(0).normal(size=(3, T, H)).astype(np.float32)
# o, lse = map(np.asarray, find("attention_lse").solution(q, k, v, tiles, patterns))
# p = np.where(mask, np.exp(q @ k.T / H**0.5 - lse), 0.0)
# sums = p.sum(axis=1)
# print(f"lse of row 0: {lse[0, 0]}, of row 511: {lse[511, 0]:.4f}")
# print(f"weights of rows 0 to 99 sum to {sums[:100].max()}, the others' to {sums[100:].min():.5f} … {sums[100:].max():.5f}")
# print(f"p @ v differs from o by at most {abs(p @ v - o).max():.0e}")

# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.splash_attention._production import moved
from puzzles.splash_attention.attention import root
from puzzles.splash_attention.block_sparse_attention import packed
from puzzles.splash_attention.splash_attention import make_mask


def listed(mask, bq, bk):
    """The flat list of a dense mask, and its partial blocks."""
    block_mask, mask_index, partial_masks = find("classify_blocks").solution(mask, bq, bk)
    return find("active_tiles").solution(block_mask, mask_index), partial_masks


def make_inputs(key, R, S, H, Hv, bq, bk, first, blind=True):
    """Scores near ±1; in one row of eight all of them lie far above 0, or far below. Not `blind`: no row is empty.

    All numbers of q and k are eighths of small integers: exact in bf16, too.
    """
    T, r = R * bq, rng(key)
    q, k = (np.round(8 * r.normal(size=(n, H))) / 8 for n in (T, S))
    k[:, 0], q[:, 0] = root(H), r.integers(-4, 5, T)
    q[3::16, 0], q[11::16, 0] = r.integers(90, 151, (2, T // 16)) * np.array([[1], [-1]])
    q[27::32, 0] = -400  # below any start that is merely small
    v = r.normal(0.5, 1, (S, Hv))
    mask = make_mask(T, S, bq, bk, first)
    if not blind:
        mask[~mask.any(axis=1), 3] = True
    return *(array(x, jnp.float32) for x in (q, k, v)), *listed(mask, bq, bk)


def scale(T=17152, S=16384, H=128, Hv=64, bq=256, bk=512, document=1500):
    *tables, partial_masks = packed(T, S, bq, bk, document)
    arrays = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((T, H), (S, H), (S, Hv)))
    return *arrays, find("active_tiles").solution(*tables), partial_masks


def kept(launch):
    """What the launch leaves for the backward pass beside o: a column lies in 128 lanes."""
    return (
        f"{min(moved(one) for one in launch.outputs) / 2**20:.1f} MiB kept beside o, in 128 lanes"
    )


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(R=7, S=384, H=64, Hv=32, bq=64, bk=128, first=0, blind=False)
    shapes = [
        (5, 512, 32, 64, 128, 128, 1),
        (7, 384, 8, 32, 64, 128, 3),
        (9, 256, 128, 16, 32, 128, 0),
        (6, 512, 32, 128, 64, 256, 4),
    ]
    return dict(
        zip(("R", "S", "H", "Hv", "bq", "bk", "first"), map(int, r.choice(shapes)), strict=True)
    )


PUZZLE = Puzzle(
    spec=attention_lse_spec,
    solution=attention_lse,
    results=("o", "lse"),
    inputs=make_inputs,
    cases=[
        dict(R=7, S=384, H=64, Hv=32, bq=64, bk=128, first=0, blind=False),
        dict(R=6, S=512, H=16, Hv=64, bq=256, bk=128, first=2),
    ],
    fresh=fresh,
    scale=scale,
    par=kept,
    tolerance=2e-4,
    waivers={"finite": "the lse of a row that sees nothing is minus infinity, and nothing else is"},
    hints=[
        "l is a sum of exponentials that were all divided by $e^m$. On paper, multiply by $e^m$ "
        "again and take the logarithm. A product's logarithm is a sum.",
        "`jnp.log` of a (bq, 1) block works in a kernel, and of 0 it is -inf. The output o is "
        "guarded against a sum of 0; does lse need a guard? A second output is a second entry "
        "in `out_specs` and in `out_shape`: a row of tiles has bq numbers, in a column, like m "
        "and l.",
        "One line stores the maximum plus a logarithm. The spec has a block of one column that "
        "goes by row, like that of o. The shape has one f32 column for all T rows.",
    ],
    explain="""exp(s - m) / l is exp(s - m - log l), so m + log l replaces both m and l. A row
    that attends to nothing has l = 0, and the logarithm of 0 is -inf, which is the right
    answer: the sum has no terms.""",
)
