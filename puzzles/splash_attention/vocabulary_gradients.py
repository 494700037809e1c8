"""Puzzle 26: the gradients of the last layer, without its logits."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## vocabulary_gradients: the weights, minus one
#
# How does a token's loss, $\log \sum_v e^{s_v} - s_{\text{label}}$, change with one of its logits? The first term gives the weight of the
# word, as in every softmax. The second gives -1, for one word only:
#
# $$ds_v = \big(e^{s_v - \text{lse}} - [\,v = \text{label}\,]\big)\; g$$
#
# `g` is the gradient that reaches the token's loss: 1/T for a mean, and 0 for a token that does not count. From `lse` you get the block's
# weights again, in any order of blocks. Two products follow, and each sums over a different axis:
#
# ```text
#            dx = ds · wᵀ                            dw = xᵀ · ds
#
#        w₀     w₁     w₂                        w₀     w₁     w₂
#  x₀    ds  →  ds  →  ds  ──→ dx₀          x₀   ds     ds     ds
#  x₁    ds  →  ds  →  ds  ──→ dx₁               ↓      ↓      ↓
#                                           x₁   ds     ds     ds
#                                                ↓      ↓      ↓
#                                               dw₀    dw₁    dw₂
# ```
#
# An output block stays in VMEM only while its steps follow each other. So there are two launches, and both compute `ds`. Write
# `slopes`, and in each kernel add the step's product to `acc_ref`. The dots take the dtype of x and w, and return f32.


# %%
def vocabulary_gradients_spec(
    x: Float[Array, "T D"],
    w: Float[Array, "D V"],
    labels: Int[Array, "T 1"],
    lse: Float[Array, "T 1"],
    g: Float[Array, "T 1"],
) -> tuple[Float[Array, "T D"], Float[Array, "D V"]]:
    del lse  # JAX differentiates the plain loss by itself
    return jax.vjp(lambda x, w: find("vocabulary_loss").spec(x, w, labels)[0], x, w)[1](g)


# %%
def slopes(j, x_ref, w_ref, labels_ref, lse_ref, g_ref):
    """Return ds in f32, (bt, bv): the gradient of the logits in block j of the words."""
    ### BEGIN SOLUTION
    s = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)
    p = jnp.exp(s - lse_ref[...])
    word = j * s.shape[1] + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
    return jnp.where(word == labels_ref[...], p - 1.0, p) * g_ref[...]
    ### END SOLUTION


def vocabulary_dx_kernel(x_ref, w_ref, labels_ref, lse_ref, g_ref, dx_ref, acc_ref):
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    ### BEGIN SOLUTION
    ds = slopes(j, x_ref, w_ref, labels_ref, lse_ref, g_ref).astype(w_ref.dtype)
    acc_ref[...] += jax.lax.dot_general(
        ds, w_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    ### END SOLUTION

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        dx_ref[...] = acc_ref[...].astype(dx_ref.dtype)


def vocabulary_dw_kernel(x_ref, w_ref, labels_ref, lse_ref, g_ref, dw_ref, acc_ref):
    i = pl.program_id(1)

    @pl.when(i == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    ### BEGIN SOLUTION
    j = pl.program_id(0)
    ds = slopes(j, x_ref, w_ref, labels_ref, lse_ref, g_ref).astype(x_ref.dtype)
    acc_ref[...] += jax.lax.dot_general(
        x_ref[...], ds, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    ### END SOLUTION

    @pl.when(i == pl.num_programs(1) - 1)
    def _():
        dw_ref[...] = acc_ref[...].astype(dw_ref.dtype)


def vocabulary_gradients(
    x: Float[Array, "T D"],
    w: Float[Array, "D V"],
    labels: Int[Array, "T 1"],
    lse: Float[Array, "T 1"],
    g: Float[Array, "T 1"],
    *,
    bt: int = 128,
    bv: int = 256,
) -> tuple[Float[Array, "T D"], Float[Array, "D V"]]:
    (T, D), V = x.shape, w.shape[1]
    assert T % bt == 0 and V % bv == 0, "blocks must divide tokens and words evenly"

    def launch(kernel, grid, tokens, words, of_tokens):
        column = pl.BlockSpec((bt, 1), lambda *step: (tokens(*step), 0))
        x_spec = pl.BlockSpec((bt, D), lambda *step: (tokens(*step), 0))
        w_spec = pl.BlockSpec((D, bv), lambda *step: (0, words(*step)))
        like, spec = (x, x_spec) if of_tokens else (w, w_spec)
        return pl.pallas_call(
            kernel,
            grid=grid,
            in_specs=[x_spec, w_spec, column, column, column],
            out_specs=spec,
            out_shape=jax.ShapeDtypeStruct(like.shape, like.dtype),
            scratch_shapes=[pltpu.VMEM(spec.block_shape, jnp.float32)],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
            interpret=INTERPRET,
        )(x, w, labels, lse, g)

    I, J = T // bt, V // bv  # blocks of tokens, and of words
    dx = launch(vocabulary_dx_kernel, (I, J), lambda i, j: i, lambda i, j: j, of_tokens=True)
    dw = launch(vocabulary_dw_kernel, (J, I), lambda j, i: i, lambda j, i: j, of_tokens=False)
    return dx, dw


# %% [markdown]
# **The loss as a function that trains.** One `jax.custom_vjp` joins both puzzles. Below, its gradients of the mean loss are compared with plain JAX's.

# %% active="ipynb"
# from puzzles import checked
#
# (forward, whose), (backward, others) = map(checked, ("vocabulary_loss", "vocabulary_gradients"))
#
#
# @jax.custom_vjp
# def losses(x, w, labels):
#     return forward(x, w, labels)[0]
#
#
# def with_lse(x, w, labels):
#     loss, lse = forward(x, w, labels)
#     return loss, (x, w, labels, lse)
#
#
# def pull_back(kept, g):
#     return *backward(*kept, g), None  # no gradient of the labels
#
#
# losses.defvjp(with_lse, pull_back)
# r = np.random.default_rng(0)
# x, w = (jnp.asarray(r.normal(size=s), jnp.float32) for s in ((256, 64), (64, 1024)))
# labels = jnp.asarray(r.integers(0, 1024, (256, 1)), jnp.int32)
# plain = find("vocabulary_loss").spec
# ours = jax.grad(lambda x, w: losses(x, w, labels).mean(), (0, 1))(x, w)
# theirs = jax.grad(lambda x, w: plain(x, w, labels)[0].mean(), (0, 1))(x, w)
# for name, one, other in zip(("dx", "dw"), ours, theirs):
#     print(f"{name}: off by {float(jnp.abs(one - other).max() / jnp.abs(other).max()):.0e} of plain JAX's largest number")
# print(f"vocabulary_loss: {whose}, vocabulary_gradients: {others}")

# %% [markdown]
# **What it costs.** Stored logits would need three products for a training step. Without them it is five: the loss one, `dx` and `dw` two
# each. That is two thirds more work for the last layer, but its largest array is never stored.
#
# <details><summary>More: four products</summary>
#
# tokamax's backward pass is one launch, which takes both products from a single `ds`. The two outputs cannot both stay in VMEM.
# So `emit_pipeline` fetches their blocks from HBM again, and writes them back. `BufferedRef.input_output` asks for that.
#
# </details>

# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng
from puzzles.splash_attention import attention_dq, vocabulary_loss


def make_inputs(key, T, D, V, bt=128, bv=256, bf16=False):
    """Of a quarter of the tokens, all logits lie near 95, or near -95. The shift is spread over all D terms.

    The first tokens have labels in the first and the last column of each block; a few g are 0.
    """
    r, dtype = rng(key), jnp.bfloat16 if bf16 else jnp.float32
    x, w = r.normal(size=(T, D)), r.normal(size=(D, V)) * 2 / D**0.5
    w += 10 / D - w.mean(axis=0)  # a row of nines gives 90 for every word
    x[1::8] += r.uniform(9, 10, x[1::8, :1].shape)
    x[5::8] -= r.uniform(9, 10, x[5::8, :1].shape)
    labels = r.integers(0, V, (T, 1))
    edges = np.concatenate([np.arange(0, V, bv), np.arange(bv - 1, V, bv)])[: T // 2]
    labels[: len(edges), 0] = edges
    x, w = array(x, dtype), array(w, dtype)
    logits = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    top = logits.max(axis=1, keepdims=True)
    lse = top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    g = r.normal(size=(T, 1))
    g[6::16] = 0
    return x, w, array(labels, jnp.int32), array(lse, jnp.float32), array(g, jnp.float32)


def scale(T=8192, D=1024, V=128_256):
    column = jax.ShapeDtypeStruct((T, 1), jnp.float32)
    return *vocabulary_loss.scale(T, D, V), column, column


def products(*launches):
    """The number of products of T × D × V terms."""
    (T, D), V = launches[0].inputs[0].shape, launches[0].inputs[1].shape[1]
    return (
        f"{sum(one.dot_flops for one in launches) / (2 * T * D * V):g} products of x's and w's size"
    )


def audit(dx: Launch, dw: Launch, *, args) -> None:
    for launch in (dx, dw):
        attention_dq.audit(launch, args=args)


PUZZLE = Puzzle(
    spec=vocabulary_gradients_spec,
    solution=vocabulary_gradients,
    results=("dx", "dw"),
    inputs=make_inputs,
    cases=[
        dict(T=256, D=64, V=768),
        dict(T=96, D=128, V=640, bt=32, bv=128, bf16=True),
        dict(T=32, D=16, V=17 * 128, bt=32, bv=128),
    ],
    fresh=vocabulary_loss.fresh,
    scale=scale,
    par=products,
    tolerance={"float32": 2e-4, "bfloat16": 3e-2},
    hints=[
        "`slopes` follows the formula from left to right: the logits of the block, a weight by one "
        "exponential of a difference, 1 less for the label's word, times g. In which launch is j "
        "the outer axis?",
        "The comparison of `vocabulary_loss` says where the label is. `jax.lax.dot_general` "
        "contracts the last axes of ds and w for dx, and the first axes of x and ds for dw. "
        "`.astype` before the dot that takes ds.",
        "Four lines in `slopes`: a dot, an exponential, the words' numbers, and a `where` times g. "
        "In each kernel two statements: ds, cast to the dtype of x and w; and a dot with an f32 "
        "result, added to `acc_ref`.",
    ],
    explain="""lse turns every block's logits into finished weights, so the blocks may come in any
    order: by rows for dx, by columns for dw. The label takes 1 from one weight, and the
    slopes of a token add up to 0.""",
    audit=audit,
)
