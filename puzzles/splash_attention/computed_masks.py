"""Puzzle 16: a mask that is a formula, computed where it is needed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## computed_masks: a rule instead of patterns
#
# `splash_attention` fetches stored patterns for its partial tiles. If the mask is a formula, as in `causal_attention`, that is a
# waste: the kernel can compute it from row and column numbers. So let the mask be a **rule**, a function of both:
#
# ```text
#   rule = lambda row, column: (column <= row) & (row - column < 100)
#
#   list   rows 3  cols 2  kind 1        in HBM:  q  k  v      (no patterns)
#            │       │
#            ▼       ▼
#   row    = 3 · bq + 0 … bq-1
#   column = 2 · bk + 0 … bk-1    ──→    rule(row, column)  ──→  -inf where False
# ```
#
# The list is still made before the launch, by calling the rule block by block. No array of T × S numbers is ever made.
#
# In the kernel of `splash_attention`, fill in the mask of a tile. Which tile is it? A step has only `t`, and the rule
# needs row and column numbers in the whole sequence.

# %%
# row or column numbers in the sequence: (bq, bk), or a shape that broadcasts to it
Numbers = Int[Array, "bq bk"]
from collections.abc import Callable

Rule = Callable[[Numbers, Numbers], Bool[Array, "bq bk"]]


def computed_masks_spec(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    tiles: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    rule: Rule,
    *,
    bq: int = 128,
    bk: int = 128,
) -> Float[Array, "T H"]:
    del tiles, bq, bk  # a matter of speed, not of numbers
    seen = rule(*np.indices((len(q), len(k)), np.int32))
    scores = jnp.where(seen, jnp.dot(q, k.T) / q.shape[1] ** 0.5, -jnp.inf)
    return jnp.dot(jnp.where(seen, jax.nn.softmax(scores, axis=1), 0.0), v)


def tiles_of_rule(rule: Rule, T: int, S: int, bq: int, bk: int) -> tuple[np.ndarray, ...]:
    """The flat list for a rule, which is called block by block."""
    block_mask = np.zeros((T // bq, S // bk), np.int32)
    i, j = np.indices((bq, bk), np.int32)
    for r, c in np.ndindex(block_mask.shape):
        seen = rule(r * bq + i, c * bk + j)
        block_mask[r, c] = int(seen.any()) + int(seen.all())
    return find("active_tiles").solution(block_mask, np.zeros_like(block_mask))


# %%
from puzzles.splash_attention.flash_attention import spread


def computed_masks_kernel(
    rows_ref, cols_ref, flags_ref, q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref, *, rule
):
    t = pl.program_id(0)
    flags = flags_ref[t]
    kind = flags & 3
    (bq, H), bk = q_ref.shape, k_ref.shape[0]

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
        s *= H**-0.5
        ### BEGIN SOLUTION
        row = rows_ref[t] * bq + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        column = cols_ref[t] * bk + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        s = jnp.where(rule(row, column), s, -jnp.inf)
        ### END SOLUTION
        m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp(s - spread(m_new, s))
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(flags & 8 != 0)
    def _():
        l = l_ref[:, :1]
        o_ref[...] = acc_ref[...] / jnp.where(l == 0.0, 1.0, l)


def computed_masks(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    tiles: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    rule: Rule,
    *,
    bq: int = 128,
    bk: int = 128,
) -> Float[Array, "T H"]:
    T, H = q.shape
    rows, cols, _, flags = tiles
    return pl.pallas_call(
        functools.partial(computed_masks_kernel, rule=rule),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(len(rows),),
            in_specs=[
                pl.BlockSpec((bq, H), lambda t, rows, cols, flags: (rows[t], 0)),
                pl.BlockSpec((bk, H), lambda t, rows, cols, flags: (cols[t], 0)),
                pl.BlockSpec((bk, H), lambda t, rows, cols, flags: (cols[t], 0)),
            ],
            out_specs=pl.BlockSpec((bq, H), lambda t, rows, cols, flags: (rows[t], 0)),
            scratch_shapes=[
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, H), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=INTERPRET,
    )(rows, cols, flags, q, k, v)


# %% [markdown]
# What is it worth? The table compares the references of `splash_attention` and of this puzzle, on a window of 1024 keys, for
# 4096 tokens. JAX's SplashAttention computes a `CausalMask`, `ChunkedCausalMask` or `LocalMask` in the same way, if all heads
# share it. It stores other masks as patterns.

# %% active="ipynb"
# T, H, b = 4096, 128, 512
# rule = lambda row, column: (column <= row) & (row - column < 1024)
# kinds, index, patterns = find("classify_blocks").solution(rule(*np.indices((T, T), np.int32)), b, b)
# tiles, listed = tiles_of_rule(rule, T, T, b, b), find("active_tiles").solution(kinds, index)
# x = jax.ShapeDtypeStruct((T, H), jnp.float32)
# (stored,) = trace(lambda *x: find("splash_attention").solution(*x, listed, patterns), x, x, x)
# (computed,) = trace(lambda *x: find("computed_masks").solution(*x, tiles, rule, bq=b, bk=b), x, x, x)
# for name, launch in (("stored", stored), ("computed", computed)):
#     read, vmem = launch.hbm_bytes_read / 2**20, launch.vmem_bytes / 2**20
#     print(f"{name:10}{launch.steps:4} steps{read:7.1f} MiB read, blocks in VMEM{vmem:6.2f} MiB")

# %% tags=["author"]
from puzzles import Puzzle, rng
from puzzles.splash_attention.block_sparse_attention import draw
from puzzles.splash_attention.causal_attention import dots


def window(row, column):
    return (column <= row) & (row - column < 100)


def late(row, column):
    """The first rows see nothing, and neither does every 32nd."""
    return (column <= row) & (row >= 80) & (row & 31 != 7)


def dilated(row, column):
    return ((row - column) & 3 == 0) & (column < row + 70)


def prefix(row, column):
    return (column <= row) | (column < 90)


RULES = dict(window=window, late=late, dilated=dilated, prefix=prefix)


def make_inputs(key, T, S, H, bq, bk, rule):
    rule = RULES[rule]
    q, k, v = draw(rng(key), rule(*np.indices((T, S))), H)
    return q, k, v, tiles_of_rule(rule, T, S, bq, bk), rule


def observe(fn):
    """The function with the blocks of the case: bk is 256 beside a bq of 64, else 128."""

    def run(q, k, v, tiles, rule):
        bq = len(q) // (int(tiles[0][-1]) + 1)
        return fn(q, k, v, tiles, rule, bq=bq, bk=256 if bq == 64 else 128)

    return run


@functools.cache
def long_list(T, S, bq, bk):
    return tiles_of_rule(window, T, S, bq, bk)


def scale(T=4096, S=3072, H=128, bq=256, bk=128):
    arrays = (jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))
    return *arrays, long_list(T, S, bq, bk), window


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=384, S=512, H=16, bq=128, bk=128, rule="window")
    shapes = [
        (192, 256, 32, 64, 256, "late"),
        (192, 512, 8, 64, 256, "prefix"),
        (512, 384, 32, 256, 128, "dilated"),
        (256, 512, 128, 64, 256, "window"),
    ]
    return dict(
        zip(("T", "S", "H", "bq", "bk", "rule"), shapes[r.integers(len(shapes))], strict=True)
    )


PUZZLE = Puzzle(
    spec=computed_masks_spec,
    solution=computed_masks,
    inputs=make_inputs,
    observe=observe,
    cases=[
        dict(T=384, S=512, H=16, bq=128, bk=128, rule="window"),  # as `show` draws it
        dict(T=320, S=512, H=64, bq=64, bk=256, rule="late"),
        dict(
            T=1152, S=1024, H=16, bq=128, bk=128, rule="prefix"
        ),  # many tiles, most of them full; the last row has no other,
        dict(T=17 * 128, S=17 * 128, H=16, bq=128, bk=128, rule="window"),
    ],
    fresh=fresh,
    scale=scale,
    par=dots,
    tolerance=2e-4,
    waivers={"constant": "the list's masks are not read: a rule has no patterns"},
    hints=[
        "In causal_attention i and j gave the position of a block. Where do you find it here?",
        "`rows_ref[t]` and `cols_ref[t]` are numbers of blocks; `jax.lax.broadcasted_iota` "
        "numbers the elements inside a block. `rule` works on whole blocks of traced numbers.",
        "Three lines: the rows' numbers, from the row of blocks and bq; the columns', from the "
        "column of blocks and bk; the scores if the rule says True, -inf otherwise.",
    ],
    explain="""A formula needs only row and column numbers, so partial tiles fetch no pattern.
    In a full tile the rule is True throughout and changes nothing. JAX's SplashAttention
    computes a causal or local mask in the same way, if all heads share it.""",
)
