"""Puzzle 19: two partial attentions are one."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# %% [markdown]
# ## merge_attention: two halves are one
#
# Cut the keys in two, wherever you like, and attend to each part separately, on two cores or two chips. Each part gives an
# o, divided by its own sum, and an lse. What would attention to all keys have given?
#
# ```text
#                  keys of part 1      keys of part 2            all keys
#               ┌───────────────────┬───────────────────┐      ┌───────────┐
#      queries  │  o₁ (T, Hv)       │  o₂ (T, Hv)       │  ──→ │ o (T, Hv) │
#               │  lse₁ (T, 1)      │  lse₂ (T, 1)      │      │ lse (T, 1)│
#               └───────────────────┴───────────────────┘      └───────────┘
# ```
#
# Undo the division: $e^{\text{lse}_1}$ is the sum of part 1's exponentials, and $e^{\text{lse}_1} o_1$ is the sum of its values, each
# multiplied by its exponential. Sums of parts add up:
#
# $$e^{\text{lse}} = e^{\text{lse}_1} + e^{\text{lse}_2} \qquad\qquad
#   o = \frac{e^{\text{lse}_1} o_1 + e^{\text{lse}_2} o_2}{e^{\text{lse}_1} + e^{\text{lse}_2}}$$
#
# Two obstacles are left. At an lse of 100 this overflows: shift both parts by the same number. Which? And
# a row may attend to nothing in one part (its lse there is -inf) or in both: then return zeros and -inf.
#
# Five lines of plain JAX. Leading axes (`*B`) are allowed.


# %%
def merge_attention_spec(
    o1: Float[Array, "*B T Hv"],
    lse1: Float[Array, "*B T 1"],
    o2: Float[Array, "*B T Hv"],
    lse2: Float[Array, "*B T 1"],
) -> tuple[Float[Array, "*B T Hv"], Float[Array, "*B T 1"]]:
    o1, lse1, o2, lse2 = (np.asarray(x, np.float64) for x in (o1, lse1, o2, lse2))
    sum1, sum2 = np.exp(lse1), np.exp(lse2)  # the formulas as written: float64 has room for them
    total = sum1 + sum2
    o = (sum1 * o1 + sum2 * o2) / np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):  # the logarithm of 0 is intended
        return o.astype(np.float32), np.log(total).astype(np.float32)


# %%
def merge_attention(
    o1: Float[Array, "*B T Hv"],
    lse1: Float[Array, "*B T 1"],
    o2: Float[Array, "*B T Hv"],
    lse2: Float[Array, "*B T 1"],
) -> tuple[Float[Array, "*B T Hv"], Float[Array, "*B T 1"]]:
    ### BEGIN SOLUTION
    m = jnp.maximum(jnp.maximum(lse1, lse2), -1e30)  # finite, whatever a row sees
    w1, w2 = jnp.exp(lse1 - m), jnp.exp(lse2 - m)
    l = w1 + w2
    o = (w1 * o1 + w2 * o2) / jnp.where(l == 0.0, 1.0, l)
    return o, m + jnp.log(l)
    ### END SOLUTION


# %% [markdown]
# ### Two uses of it
#
# **One sequence on many chips.** In [ring attention](https://arxiv.org/abs/2310.01889) every chip keeps its queries, and the keys and
# values go round. In each turn a chip attends to the share of the keys that it has, and merges. While it computes, it passes this share on
# and receives the next one: a chip needs room for two shares, never for all.
#
# ```text
#             turn 0     turn 1     turn 2     turn 3
#    chip 0   k₀ v₀ ◣    k₃ v₃ ·    k₂ v₂ ·    k₁ v₁ ·       ◣ partial, ■ full, · empty:
#    chip 1   k₁ v₁ ◣    k₀ v₀ ■    k₃ v₃ ·    k₂ v₂ ·       a causal mask
#    chip 2   k₂ v₂ ◣    k₁ v₁ ■    k₀ v₀ ■    k₃ v₃ ·
#    chip 3   k₃ v₃ ◣    k₂ v₂ ■    k₁ v₁ ■    k₀ v₀ ■
# ```
#
# Below, a Python loop stands for the chips. It calls the references of `attention_lse` and `merge_attention`. The first row of
# the picture shows a problem: with a causal mask, chip 0 waits for three turns out of four. [Striped
# attention](https://arxiv.org/abs/2311.09431) deals the tokens out in turn, so that all chips have about the same amount of
# work.

# %% active="ipynb"
# attend, merge = (jax.jit(find(name).solution) for name in ("attention_lse", "merge_attention"))
# chips, n, H = 4, 128, 64
# q, k, v = np.random.default_rng(0).normal(size=(3, chips, n, H)).astype(np.float32)  # a share for each chip
# mask = np.tri(chips * n, dtype=bool).reshape(chips, n, chips, n)
#
# def part(chip, there):  # the queries of one chip, and keys that have come from another
#     block_mask, mask_index, patterns = find("classify_blocks").solution(mask[chip, :, there], n, n)
#     tiles = find("active_tiles").solution(block_mask, mask_index)
#     return attend(q[chip], k[there], v[there], tiles, patterns)
#
# out = []
# for chip in range(chips):
#     o, lse = part(chip, chip)
#     for turn in range(1, chips):
#         o, lse = merge(o, lse, *part(chip, (chip - turn) % chips))
#     out.append(o)
#
# def whole(q, k, v, mask):  # with all scores in memory
#     p = np.where(mask, np.exp(q @ k.T / H**0.5), 0.0)
#     return p @ v / p.sum(axis=1, keepdims=True)
#
# all_of_it = whole(*(x.reshape(-1, H) for x in (q, k, v)), mask.reshape(chips * n, -1))
# print(f"o of all chips differs from the whole by at most {abs(np.concatenate(out) - all_of_it).max():.0e}")
# print(f"a share of q, k and v: {3 * q[0].nbytes:,} bytes; in a turn {2 * q[0].nbytes:,} leave, and as many arrive; all scores: {all_of_it.shape[0]**2 * 4:,}")
# print("scores that each chip needs:", *mask.sum(axis=(1, 2, 3)))

# %% [markdown]
# **One query, many keys.** When a model decodes, it has one new query and all the keys so far. There is only one row of tiles,
# walked step by step. Cut the keys into independent parts, and merge at the end, here in pairs:
# split-K, or [Flash-Decoding](https://crfm.stanford.edu/2023/10/12/flashdecoding.html). `jax.vmap` puts the parts on a grid axis of their own,
# and `*B` merges all pairs of a round at the same time.

# %% active="ipynb"
# parts, S = 4, 4096
# q = np.random.default_rng(1).normal(size=(8, H)).astype(np.float32)  # eight queries: TPU tiles have 8 rows
# k, v = np.random.default_rng(2).normal(size=(2, S, H)).astype(np.float32)
# full = np.full((1, S // parts // 128), 2, np.int32)  # a row of full tiles, the same for each part
# tiles, patterns = find("active_tiles").solution(full, 0 * full), np.ones((1, 8, 128), bool)
# split = jax.vmap(lambda k, v: attend(q, k, v, tiles, patterns))
# o, lse = split(k.reshape(parts, -1, H), v.reshape(parts, -1, H))
# steps, rounds = len(tiles[0]), 0
# while len(o) > 1:
#     o, lse = merge(o[::2], lse[::2], o[1::2], lse[1::2])
#     rounds += 1
# print(f"whole: {parts * steps} steps, one after another; split: {parts} times {steps}, for cores to share, and {rounds} rounds of merges")
# print(f"o differs from the whole by at most {abs(o[0] - whole(q, k, v, True)).max():.0e}")

# %% [markdown]
# <details><summary>More: attention sinks</summary>
#
# A softmax must spend all of its weight, even if no key deserves it ([Xiao et al., 2023](https://arxiv.org/abs/2309.17453)). In
# [gpt-oss](https://arxiv.org/abs/2508.10925) (2025) a **sink** is a learned score, one per head, that takes part in the sum and has no
# value. So the weights of the keys sum to less than 1. Your function adds it in one line, without another look at q, k or v: a sink
# is a part of its own, whose lse is the sink and whose o is zeros.
#
# ```python
# o, lse = merge_attention(o, lse, jnp.zeros_like(o), jnp.full_like(lse, sink))
# ```
#
# JAX's SplashAttention also takes `sinks`. There, m starts at the sink and l at 1: the sink is merged before the first tile, with the same result.
# A row that attends to nothing still gives zeros, and its lse is the sink.
#
# </details>

# %% tags=["author"]
from puzzles import Puzzle, array, rng


def make_inputs(key, B, T, Hv):
    """Pairs of parts: alike, far apart, far above 0 and far below, and each of them
    empty, or both.
    """
    r = rng(key)
    shape = (*B, T, 1)
    base = r.integers(-3, 4, shape).astype(float)
    base[..., 1::8, :] = r.integers(200, 601, base[..., 1::8, :].shape)
    base[..., 5::8, :] = r.integers(-700, -199, base[..., 5::8, :].shape)
    lse1, lse2 = (base + r.normal(0, 1.5, shape) for _ in range(2))
    lse2[..., 3::16, :] += 40
    lse2[..., 11::16, :] += 120
    lse1[..., 4::16, :] += 6.5
    lse2[..., 12::16, :] += 6.5
    lse1[..., 2::8, :] = -np.inf
    lse2[..., 6::8, :] = -np.inf
    lse2[..., 10::16, :] += 100  # beside an empty part, too, exp alone is lost
    lse1[..., 14::16, :] -= 120
    for lse in (lse1, lse2):
        lse[..., 7::16, :] = -np.inf
    parts = []
    for lse in (lse1, lse2):
        o = np.where(np.isinf(lse), 0.0, r.normal(0.5, 1, (*B, T, Hv)))
        parts += [array(o, jnp.float32), array(lse, jnp.float32)]
    return tuple(parts)


def fresh(r):
    shapes = [((), 40, 96), ((3,), 24, 16), ((2, 2), 32, 8), ((5,), 16, 128)]
    return dict(zip(("B", "T", "Hv"), shapes[r.integers(len(shapes))], strict=True))


PUZZLE = Puzzle(
    spec=merge_attention_spec,
    solution=merge_attention,
    results=("o", "lse"),
    inputs=make_inputs,
    cases=[dict(B=(), T=48, Hv=64), dict(B=(2, 3), T=32, Hv=16)],
    fresh=fresh,
    tolerance=2e-4,  # through logaddexp, exponents of 600 lose digits
    kernel=False,
    jit=True,
    hints=[
        "It is the online softmax again: lse1 and lse2 take the place of the maxima of two "
        "blocks. Shift both by the larger one, row by row. What if both are -inf?",
        "Take `jnp.maximum` of the two columns, and of the result and a large negative finite "
        "number. Then -inf minus -inf cannot happen. `jnp.exp` of -inf is 0, `jnp.log` of 0 is "
        "-inf, and `jnp.where` prevents 0 / 0 in the division.",
        "Five lines: the finite maximum of the two; the weights of the parts, two exponentials; "
        "their sum; the weighted mean of the outputs, with the sum guarded; and return that "
        "mean, with the maximum plus the logarithm of the sum.",
    ],
    explain="""o and lse are the acc, m and l of a block in another form, so merging two parts
    is one step of the online softmax. It does not matter in which order parts are merged, or
    where. So they can be computed far from each other.""",
)
