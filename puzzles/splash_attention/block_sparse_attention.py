"""Puzzle 13: one kernel for every mask, steered by tables in SMEM."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## block_sparse_attention: a kernel that reads its orders
#
# At step (i, j) the kernel looks up a kind: 0, skip; 1, mask with the block's pattern; 2, use the scores as they are.
#
# The data that decides which blocks are fetched must be there before the first fetch.
# **Scalar prefetch** does that: the first operands of the call are copied completely into SMEM, the memory of the scalar
# unit, before the grid starts. A `pltpu.PrefetchScalarGridSpec`, passed as `grid_spec=`, sets how many:
# `num_scalar_prefetch=2`. These operands reach:
#
# * the **kernel**, as its first two refs, to be read one number at a time;
# * every **index map**, after `i` and `j`. So a map can look up *which pattern* block (i, j) needs.
#
# ```text
#    SMEM   mask_index_ref   0 0 0 1 0 0 0 2 ...      HBM   partial_masks  (P, bq, bk)
#                                  │                               ┌────┐┌────┐┌────┐
#           mask_map(i, j, ...) ───┘ = (1, 0, 0) ────────────────→ │ 0  ││ 1  ││ 2  │
#                                                                  └────┘└────┘└────┘
# ```
#
# In SMEM a 2-D array has its rows padded to a multiple of 128 numbers. So both tables are passed flat, row by row. `pl.num_programs(1)` is
# J, the number of columns.
#
# Fill in the kernel's look-up, the condition `needed`, the mask, and the index map of the patterns.


# %%
def block_sparse_attention_spec(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    block_mask: Int[np.ndarray, "I J"],
    mask_index: Int[np.ndarray, "I J"],
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> Float[Array, "T H"]:
    kinds = block_mask[:, :, None, None]
    blocks = np.where(kinds == 1, partial_masks[mask_index], kinds == 2)  # (I, J, bq, bk)
    mask = blocks.swapaxes(1, 2).reshape(len(q), len(k))
    scores = jnp.where(mask, jnp.dot(q, k.T) / q.shape[1] ** 0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=1)
    return jnp.dot(jnp.where(mask, weights, 0.0), v)  # a row of NaNs becomes a row of zeros


# %%
from puzzles.splash_attention.flash_attention import spread


def block_sparse_attention_kernel(
    block_mask_ref, mask_index_ref, q_ref, k_ref, v_ref, mask_ref, o_ref, m_ref, l_ref, acc_ref
):
    i, j = pl.program_id(0), pl.program_id(1)
    # kind: the number in the table; needed: is there work?
    ### BEGIN SOLUTION
    kind = block_mask_ref[i * pl.num_programs(1) + j]
    needed = kind > 0
    ### END SOLUTION

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(needed)
    def _():
        s = jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        s *= q_ref.shape[1] ** -0.5
        ### BEGIN SOLUTION
        mask = mask_ref[...] | (kind == 2)
        s = jnp.where(mask, s, -jnp.inf)
        ### END SOLUTION
        m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp(s - spread(m_new, s))
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        l = l_ref[:, :1]
        o_ref[...] = acc_ref[...] / jnp.where(l == 0.0, 1.0, l)


def block_sparse_attention(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    block_mask: Int[np.ndarray, "I J"],
    mask_index: Int[np.ndarray, "I J"],
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> Float[Array, "T H"]:
    (T, H), (I, J), (_, bq, bk) = q.shape, block_mask.shape, partial_masks.shape

    def mask_map(i, j, block_mask_ref, mask_index_ref):
        ### BEGIN SOLUTION
        return mask_index_ref[i * J + j], 0, 0
        ### END SOLUTION

    return pl.pallas_call(
        block_sparse_attention_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(I, J),
            in_specs=[
                pl.BlockSpec((bq, H), lambda i, j, *tables: (i, 0)),
                pl.BlockSpec((bk, H), lambda i, j, *tables: (j, 0)),
                pl.BlockSpec((bk, H), lambda i, j, *tables: (j, 0)),
                pl.BlockSpec((None, bq, bk), mask_map),
            ],
            out_specs=pl.BlockSpec((bq, H), lambda i, j, *tables: (i, 0)),
            scratch_shapes=[
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, H), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(block_mask.reshape(-1), mask_index.reshape(-1), q, k, v, partial_masks)


# %% [markdown]
# One kernel, any mask. How much does it save? The dots are those that the mask needs,
# and not one more. But the grid still has a step for each block of scores, and each step fetches keys
# and values, needed or not. Index maps that repeat the last needed block, as in `causal_prefetch`,
# would save the fetches. The next puzzles do better: they save the steps themselves.

# %% active="ipynb"
# t, s = np.arange(2048)[:, None], np.arange(2048)[None, :]
# masks = {
#     "causal": s <= t,
#     "window of 300, both sides": abs(t - s) < 300,
#     "seven documents": t // 300 == s // 300,
# }
# x = jax.ShapeDtypeStruct((2048, 128), jnp.float32)
# print("mask                        grid steps   with dots   blocks of k fetched")
# for name, mask in masks.items():
#     tables = find("classify_blocks").solution(mask, 128, 128)
#     (launch,) = trace(find("block_sparse_attention").solution, x, x, x, *tables)
#     busy = (launch.dots[0].executed > 0).sum()
#     print(f"{name:27}{launch.steps:11}{busy:12}{launch.inputs[1].transfers:22}")

# %% tags=["author"]
import functools

from puzzles import Puzzle, array, rng
from puzzles.splash_attention.attention import root
from puzzles.splash_attention.causal_attention import dots
from puzzles.splash_attention.classify_blocks import classify_blocks, make_mask


def draw(r, mask, H):
    """q, k, v for any mask, all exact in f32 even where a dot rounds to bf16.

    q and k are eighths of small integers. Every other query is 32 times
    larger than the rest; of those, every other one loves a key that the mask hides from it: its
    score, about 32 √H, would be the row's maximum by far. Where q[t, 0] is far below 0, so are all of
    the row's scores; a few have scores up to ±2^21 or more, alike or hundreds apart.
    """
    T, S = mask.shape
    q, k = (np.round(8 * r.normal(size=(n, H))) / 8 for n in (T, S))
    for t in range(1, T, 4):
        hidden = np.flatnonzero(~mask[t])
        if hidden.size:
            k[r.choice(hidden)] = q[t]
    q[1::2] *= 32
    k[:, 0] = root(H)  # every other of the small queries lies far above 0, or far below
    q[::4, 0] = r.integers(-150, 151, len(q[::4]))
    for n, (size, column) in enumerate(((2**21, 0), (-(2**21), 0), (2**21, 1))):
        q[8 * n + 8 :: 32] = 0
        q[8 * n + 8 :: 32, column] = size
    v = r.normal(0.5, 1, (S, H))
    return tuple(array(x, jnp.float32) for x in (q, k, v))


def make_inputs(key, T, S, H, bq, bk, kind):
    r = rng(key)
    mask = make_mask(r, kind, T, S, bq, bk)
    if kind == "blocks":
        mask[2 * bq : 3 * bq] = True  # a row of full blocks
    kinds, index, patterns = classify_blocks(mask, bq, bk)
    anything = r.integers(len(patterns), size=index.shape)
    return (
        *draw(r, mask, H),
        kinds,
        np.where(kinds == 1, index, anything).astype(np.int32),
        patterns,
    )


@functools.cache
def packed(T, S, bq, bk, document):
    """Tables of a causal mask within documents, as `classify_blocks` would make them of the dense
    one.
    """
    block_mask, mask_index = np.zeros((2, T // bq, S // bk), np.int32)
    numbers = {}
    for i, j in np.argwhere(block_mask == 0):
        if j * bk >= (i + 1) * bq or (j + 1) * bk <= i * bq // document * document:
            continue  # in the future, or in documents before
        row, col = i * bq + np.arange(bq)[:, None], j * bk + np.arange(bk)
        seen = (col <= row) & (row // document == col // document)
        block_mask[i, j] = int(seen.any()) + int(seen.all())
        if block_mask[i, j] == 1:
            mask_index[i, j] = numbers.setdefault(seen.tobytes(), len(numbers))
    patterns = [np.frombuffer(pattern, bool).reshape(bq, bk) for pattern in numbers]
    return block_mask, mask_index, np.stack(patterns)


def scale(T=17152, S=16384, H=128, bq=256, bk=512, document=1500):
    arrays = (jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))
    return *arrays, *packed(T, S, bq, bk, document)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=640, S=320, H=16, bq=128, bk=64, kind="blocks")
    shapes = [
        (320, 256, 128, 64, 128, "causal"),
        (256, 384, 32, 128, 128, "window"),
        (192, 1024, 8, 64, 128, "documents"),
        (512, 320, 32, 64, 64, "blocks"),
        (128, 256, 128, 64, 128, "whole blocks"),
    ]
    return dict(
        zip(("T", "S", "H", "bq", "bk", "kind"), shapes[r.integers(len(shapes))], strict=True)
    )


PUZZLE = Puzzle(
    spec=block_sparse_attention_spec,
    solution=block_sparse_attention,
    inputs=make_inputs,
    cases=[
        dict(T=640, S=320, H=16, bq=128, bk=64, kind="blocks"),
        dict(T=256, S=128, H=64, bq=64, bk=128, kind="documents"),
        dict(T=512, S=320, H=16, bq=128, bk=64, kind="random"),  # 20 patterns
    ],
    fresh=fresh,
    scale=scale,
    par=dots,
    slack={"outside": 4.0},  # patterns of 32-bit numbers, for those of bytes
    tolerance=2e-4,
    hints=[
        "One number from a table decides whether a block is computed, and whether its pattern "
        "counts. Where in a flat table does row i begin?",
        "`ref[n]` reads one number from SMEM, in the kernel and in an index map; "
        "`pl.num_programs(1)` is the number of columns of the table. A scalar condition and a "
        "block of booleans broadcast: `|` and `&` between them work. In Python `|` binds "
        "tighter than a comparison: use parentheses.",
        "Kernel: the kind is number i · J + j of the table; the block is needed if the kind is "
        "not 0; a score counts if the pattern says so or the kind is 2, and is -inf otherwise. "
        "Map: look up the number of the pattern, at the same place in the other table; then two "
        "zeros.",
    ],
    explain="""The kernel's branches and the patterns' index map both read tables in SMEM. So
    the mask is data, and one kernel serves all masks. A full block ignores the pattern that
    happens to be in VMEM; a skipped block ignores everything.""",
)
