"""Puzzle 25: the loss of a large vocabulary, without its logits."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## vocabulary_loss: logits are scores
#
# The last layer multiplies a token's D numbers by a matrix with V columns, one per word of the vocabulary. The V results are its
# **logits**. The loss needs their logsumexp, and the logit of the right word, the **label**:
#
# $$s = x\,w \qquad\qquad \text{loss}_t = \text{lse}_t - s_{t,\,\text{label}_t}$$
#
# Llama 3's vocabulary has 128,256 words. For 8192 tokens the logits take 3.9 GiB in f32, and the loss needs two numbers per token. The
# online softmax never asked whether its scores come from keys or from words:
#
# ```text
#                  w₀              w₁              w₂        bv words each
#
#    x₀      s = x₀w₀   ──→  s = x₀w₁   ──→  s = x₀w₂
#            m, l            m, l            m, l        ──→  lse = ?
#    picked  0               0 + s[label]    … + 0       ──→  loss = ?
# ```
#
# ![Three blocks of words pass by one block of tokens; loss and lse are stored after the last.](diagrams/splash_attention/vocabulary_loss.svg)
#
# Each label may be in a different block and column. Don't index: a comparison finds it.
#
# The update of m and l is given. Write the block's logits, in f32; add the label's logit to `picked_ref`, a column; and store
# both results.


# %%
def vocabulary_loss_spec(
    x: Float[Array, "T D"], w: Float[Array, "D V"], labels: Int[Array, "T 1"]
) -> tuple[Float[Array, "T 1"], Float[Array, "T 1"]]:
    logits = jnp.dot(x.astype(jnp.float32), w.astype(jnp.float32))
    loss = -jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), labels, axis=1)
    return loss, jax.nn.logsumexp(logits, axis=1, keepdims=True)


# %%
from puzzles.splash_attention.flash_attention import spread


def vocabulary_loss_kernel(
    x_ref, w_ref, labels_ref, loss_ref, lse_ref, m_ref, l_ref, picked_ref
):  # fmt: skip
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        picked_ref[...] = jnp.zeros_like(picked_ref)

    ### BEGIN SOLUTION
    s = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)
    word = j * s.shape[1] + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
    mine = jnp.where(word == labels_ref[...], s, 0.0)
    picked_ref[...] += jnp.sum(mine, axis=1, keepdims=True)
    ### END SOLUTION

    m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
    alpha = jnp.exp(m_ref[...] - m_new)
    p = jnp.exp(s - spread(m_new, s))
    l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    m_ref[...] = m_new

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        m, l = m_ref[:, :1], l_ref[:, :1]
        ### BEGIN SOLUTION
        lse = m + jnp.log(l)
        loss_ref[...] = lse - picked_ref[...]
        lse_ref[...] = lse
        ### END SOLUTION


def vocabulary_loss(
    x: Float[Array, "T D"],
    w: Float[Array, "D V"],
    labels: Int[Array, "T 1"],
    *,
    bt: int = 128,
    bv: int = 256,
) -> tuple[Float[Array, "T 1"], Float[Array, "T 1"]]:
    (T, D), V = x.shape, w.shape[1]
    assert T % bt == 0 and V % bv == 0, "blocks must divide tokens and words evenly"
    column = pl.BlockSpec((bt, 1), lambda i, j: (i, 0))
    return pl.pallas_call(
        vocabulary_loss_kernel,
        grid=(T // bt, V // bv),
        in_specs=[
            pl.BlockSpec((bt, D), lambda i, j: (i, 0)),
            pl.BlockSpec((D, bv), lambda i, j: (0, j)),
            column,
        ],
        out_specs=(column, column),
        out_shape=(jax.ShapeDtypeStruct((T, 1), jnp.float32),) * 2,
        scratch_shapes=[
            pltpu.VMEM((bt, 128), jnp.float32),
            pltpu.VMEM((bt, 128), jnp.float32),
            pltpu.VMEM((bt, 1), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(x, w, labels)


# %% [markdown]
# What is saved is memory, not traffic. Every block of tokens reads all of `w` again, and small blocks move far more bytes than the
# logits have. The first line is XLA's plan for the spec.

# %% active="ipynb"
# puzzle = find("vocabulary_loss")
# T, D, V = 8192, 4096, 128_256
# x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((T, D), (D, V)))
# labels = jax.ShapeDtypeStruct((T, 1), jnp.int32)
# plan = jax.jit(puzzle.spec).lower(x, w, labels).compile().memory_analysis()
# print(f"the spec: {plan.temp_size_in_bytes / 2**30:.1f} GiB of temporary arrays")
# print("   bt    bv   VMEM MiB   HBM GiB   FLOP/byte (a v5e computes 240 FLOPs while it reads one byte)")
# for bt, bv in [(128, 256), (256, 256), (512, 256), (1024, 256)]:
#     (launch,) = trace(functools.partial(puzzle.solution, bt=bt, bv=bv), x, w, labels)
#     moved = launch.hbm_bytes
#     print(f"{bt:5}{bv:6}{launch.vmem_bytes / 2**20:11.1f}{moved / 2**30:10.1f}{launch.dot_flops / moved:12.0f}")

# %% [markdown]
# <details><summary>More: who computes it like this</summary>
#
# [Cut Cross-Entropy](https://arxiv.org/abs/2411.09009) (2024) brought this loss to GPUs. For TPUs, tokamax has
# `linear_softmax_cross_entropy_loss`. Its kernel keeps an lse per token in place of m and l, and merges it with the lse of each
# block, as `merge_attention` does. It multiplies the logits by a one-hot block, and cuts D as well.
#
# </details>

# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array, rng


def make_inputs(key, T, D, V, bt=128, bv=256, bf16=False):
    """Logits of some units; all logits of some rows lie far above 0 or far below it, and they rise or fall with V.

    The first rows have labels in the first and the last column of each block.
    """
    r, dtype = rng(key), jnp.bfloat16 if bf16 else jnp.float32
    x, w = r.normal(size=(T, D)), r.normal(size=(D, V)) * 2 / D**0.5
    x[:, 0], w[0] = 0, 1
    x[1::8, 0], x[5::8, 0] = r.integers(90, 151, (2, T // 8)) * np.array([[1], [-1]])
    x[:, 1], w[1] = r.integers(-1, 2, T), np.linspace(-6, 6, V)
    labels = r.integers(0, V, T)
    edges = np.concatenate([np.arange(0, V, bv), np.arange(bv - 1, V, bv)])[: T // 2]
    labels[: len(edges)] = edges
    return array(x, dtype), array(w, dtype), array(labels[:, None], jnp.int32)


def scale(T=8192, D=1024, V=128_256):
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((T, D), (D, V)))
    return x, w, jax.ShapeDtypeStruct((T, 1), jnp.int32)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=256, D=64, V=768)
    T, D, V = r.choice([(128, 32, 1280), (384, 128, 512), (256, 256, 256)])
    return dict(T=int(T), D=int(D), V=int(V))


def par(launch):
    """How often w is read, beside the size of the logits."""
    x, w = launch.inputs[:2]
    often = w.hbm_bytes / (np.prod(w.shape) * np.dtype(w.dtype).itemsize)
    logits = 4 * x.shape[0] * w.shape[1]
    return f"w is read {often:g} times; {logits / 2**20:,.0f} MiB of logits are never stored"


PUZZLE = Puzzle(
    spec=vocabulary_loss_spec,
    solution=vocabulary_loss,
    results=("loss", "lse"),
    inputs=make_inputs,
    cases=[
        dict(T=256, D=64, V=768),
        dict(T=96, D=128, V=640, bt=32, bv=128, bf16=True),
        dict(T=32, D=16, V=17 * 128, bt=32, bv=128),
    ],
    fresh=fresh,
    scale=scale,
    par=par,
    tolerance=2e-4,
    hints=[
        "Number the words of the block as in the whole vocabulary. In the block that has a token's "
        "label, one number in its row is equal to it; in all other blocks, none is. What do you "
        "add if none is equal?",
        "Block j begins with word j · bv. `jax.lax.broadcasted_iota` counts columns; compared with "
        "`labels_ref[...]`, (bt, 1), it gives (bt, bv) answers. `jnp.where` keeps one logit or "
        "none of a row, and a sum makes a column of it.",
        "Four lines: one dot with an f32 result, named s; the words' numbers; a `where` with 0 for "
        "other words; its row sums, added to `picked_ref`. At the end, lse is the maximum plus a "
        "logarithm, and the loss is lse minus the label's logit.",
    ],
    explain="""A block of logits lives in VMEM for one grid step, and leaves two statistics and at
    most one logit per token. The zero of all other words makes the sum of a row an exact copy of the
    label's logit.""",
)
