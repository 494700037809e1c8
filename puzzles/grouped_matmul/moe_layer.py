"""Puzzle 12: a mixture of experts that trains."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from puzzles import find

# %% [markdown]
# ## moe_layer: route, sort, multiply, unsort
#
# A mixture-of-experts layer, as in
# [Mixtral](https://arxiv.org/abs/2401.04088), sends each token to its `top_k` best experts and adds
# up their outputs, weighted by the **softmax over the chosen logits**. An expert is a SwiGLU:
# `down(silu(gate(x)) * up(x))`.
#
# A token and one of its experts make a **slot**: slot `n` has token `n // top_k`. An expert's slots
# must be adjacent:
#
# ```text
# top_k = 2, three tokens         slot         0  1  2  3  4  5
#                                 token        0  0  1  1  2  2
# route                           expert       2  0  2  1  0  2
# sort: slots by expert           order        1  4  3  0  2  5
# gather their tokens             rows of x    0  2  1  0  1  2
#                                 groups      [ 0  ][1][   2   ]     group_sizes = 2, 1, 3
# three grouped matmuls           one for each projection, for all experts at once
# unsort: row of each slot        inverse      3  0  4  2  1  5
# weighted sum over a token's slots
# ```
#
# No token is dropped, and no expert is padded to the size of the largest.
#
# **And it trains.** JAX does not differentiate a `pallas_call` like this.
# [`jax.custom_vjp`](https://docs.jax.dev/en/latest/_autosummary/jax.custom_vjp.html) takes a rule:
# the arrays to save in the forward pass, and how to get from `dy`, the gradient of the result, to
# the gradients of the operands. You have a kernel for each.
#
# Write that rule, the routing, and the way back from slots to tokens. Weigh and sum with `*` and
# `jnp.sum`, since matrix products belong in the kernels. The check compares the result and all five
# gradients with a dense mixture.


# %%
def moe_layer_spec(
    x: Float[Array, "M D"],
    router_logits: Float[Array, "M E"],
    w_gate: Float[Array, "E D F"],
    w_up: Float[Array, "E D F"],
    w_down: Float[Array, "E F D"],
    top_k: int,
) -> Float[Array, "M D"]:
    _, experts = jax.lax.top_k(router_logits, top_k)  # the first of equal logits wins
    chosen = jnp.any(experts[:, :, None] == jnp.arange(router_logits.shape[1]), axis=1)
    weights = jax.nn.softmax(jnp.where(chosen, router_logits, -jnp.inf), axis=1)
    hidden = jax.nn.silu(jnp.einsum("md,edf->mef", x, w_gate)) * jnp.einsum("md,edf->mef", x, w_up)
    return jnp.einsum("me,mef,efd->md", weights, hidden, w_down)


# %%
@jax.custom_vjp
def grouped(lhs, rhs, group_sizes):
    return find("grouped_matmul").solution(lhs, rhs, group_sizes)


def grouped_forward(lhs, rhs, group_sizes):
    return grouped(lhs, rhs, group_sizes), (lhs, rhs, group_sizes)  # the result; arrays to save


def grouped_backward(saved, dy):
    lhs, rhs, group_sizes = saved
    # returns the gradients of lhs and rhs, and None: integers have none
    ### BEGIN SOLUTION
    d_lhs = find("grouped_matmul_transposed").solution(dy, rhs, group_sizes)
    d_rhs = find("grouped_outer").solution(lhs, dy, group_sizes)
    return d_lhs, d_rhs, None
    ### END SOLUTION


grouped.defvjp(grouped_forward, grouped_backward)


def route(x, router_logits, top_k):
    # returns the tokens of all slots, sorted by expert, (M * top_k, D); the weights, (M, top_k);
    # the order of the slots; and how many rows each expert gets, (E,)
    ### BEGIN SOLUTION
    logits, experts = jax.lax.top_k(router_logits, top_k)
    weights = jax.nn.softmax(logits, axis=1)
    experts = experts.reshape(-1)
    order = jnp.argsort(experts)
    rows = x[order // top_k]
    group_sizes = jnp.bincount(experts, length=router_logits.shape[1])
    return rows, weights, order, group_sizes
    ### END SOLUTION


def moe_layer(
    x: Float[Array, "M D"],
    router_logits: Float[Array, "M E"],
    w_gate: Float[Array, "E D F"],
    w_up: Float[Array, "E D F"],
    w_down: Float[Array, "E F D"],
    top_k: int,
) -> Float[Array, "M D"]:
    M, D = x.shape
    rows, weights, order, group_sizes = route(x, router_logits, top_k)
    hidden = jax.nn.silu(grouped(rows, w_gate, group_sizes)) * grouped(rows, w_up, group_sizes)
    out = grouped(hidden, w_down, group_sizes)
    # back to the order of the slots, and their weighted sum for each token
    ### BEGIN SOLUTION
    slots = out[jnp.argsort(order)].reshape(M, top_k, D)
    return jnp.sum(weights[:, :, None] * slots, axis=1)
    ### END SOLUTION


# %% [markdown]
# What does a training step cost? Below are the nine launches of the reference's
# training step, at the shapes of a layer of Mixtral 8x7B (8 experts, top 2, 4096 × 14336) and 8192
# tokens. Weights and tokens are shapes only. The router's logits are data, since the grid depends
# on them. Run it again with another `key`: the sizes of the groups change, the program does not.

# %% active="ipynb"
# key, bf16 = jax.random.key(0), jnp.bfloat16
# M, D, F, E, top_k = 8192, 4096, 14336, 8, 2
# x = jax.ShapeDtypeStruct((M, D), bf16)
# w_in, w_out = (jax.ShapeDtypeStruct(s, bf16) for s in [(E, D, F), (E, F, D)])
# logits = jax.random.normal(key, (M, E), bf16)
#
#
# def step(x, logits, *weights):
#     layer = functools.partial(find("moe_layer").solution, top_k=top_k)
#     y, pullback = jax.vjp(layer, x, logits, *weights)
#     return pullback(y)
#
#
# launches = trace(step, x, logits, w_in, w_in, w_out)
# print(f"{'':10}{'':36}{'grid':>16}  TFLOP  GiB moved by the kernel  FLOP/byte")
# for n, one in enumerate(launches):
#     way = "forward" if n < 3 else "backward"
#     numbers = f"{one.dot_flops / 1e12:7.2f}{one.hbm_bytes / 2**30:25.1f}{one.intensity:11.0f}"
#     print(f"{way:10}{one.name:36}{one.grid!s:>16}{numbers}")
# total = sum(one.dot_flops for one in launches) / 1e12
# dense = 9 * 2 * M * D * F * E / 1e12
# print(f"{total:.1f} TFLOP; the slots alone need {dense * top_k / E:.1f}, a dense mixture {dense:.1f}")

# %% [markdown]
# **The kernels are not the whole cost.** Before each launch XLA fills its output with zeros, as many bytes
# as the result has: 0.44 GiB for the up-projection, 0.88 GiB for the gradient of a projection.
# The gather of the tokens, the unsort and the scatter-add of the backward pass are not in the table
# either.
#
# In the last line, the difference between the first two numbers is the cost of tiles that groups
# share: here a visit computes the whole tile. With smaller tiles, fewer rows are computed twice.
# But if K is cut, each fetch of weights then serves fewer rows.
#
# **And without groups?** With a fixed *capacity* each expert gets room for equally many slots, say 1.25
# times the mean: slots beyond it are dropped, and unused room is padding. Here some experts are more
# popular than others.

# %% active="ipynb"
# liked = logits.astype(jnp.float32) + jnp.linspace(0, 2, E)
# sizes = np.bincount(np.ravel(jax.lax.top_k(liked, top_k)[1]), minlength=E)
# slots, capacity = M * top_k, int(1.25 * M * top_k / E)
# dropped, padded = np.maximum(sizes - capacity, 0).sum(), np.maximum(capacity - sizes, 0).sum()
# visits = find("tile_metadata").solution(jnp.asarray(sizes), slots, 512)[2]
# print("slots of each expert", sizes)
# print(f"capacity {capacity}: {dropped / slots:.0%} dropped, {padded / slots:.0%} padding")
# print(f"groups: none dropped, {int(visits) * 512 / slots - 1:.0%} computed for tiles that groups share")

# %% [markdown]
# **The layer trains.** Look back at the ideas that carried you. A few prefetched
# integers in SMEM control a kernel. Index maps read them, and so decide which blocks are fetched.
# The grid is a flat list of the work. A mask cleans up tiles that a boundary cuts. Work that is not
# needed is never visited, so it needs no mask. The splash ladder does the same, in
# `splash_attention.ipynb` from `classify_blocks` on: there a mask makes the list, here a router
# does.
#
# In production there are, as of 2026:
#
# * [Megablox](https://github.com/jax-ml/jax/tree/main/jax/experimental/pallas/ops/tpu/megablox), in JAX itself. `gmm` is
#   `grouped_matmul`, transposed or not, with the same list of visits, but with garbage in unassigned rows. `tgmm`, given lhs
#   transposed, is `grouped_outer`, but also visits empty groups. Megablox adds `group_offset`: if the **experts are
#   sharded** over chips, each chip goes through the visits to its own experts only. `local_experts`, later,
#   does the same.
# * [tokamax](https://github.com/openxla/tokamax/tree/main/tokamax/_src/ops/ragged_dot), with two kernels for
#   TPUs. The default continues Megablox, with **quantised** weights and activations, and with tables of
#   tuned tile sizes. The other, `gmm_v2`, makes its list inside the kernel and gives each group its own
#   tiles, which begin where the group does. So hardly any row is computed twice, and at a group's
#   end only a part of the tile is computed. To run it, pass `implementation="mosaic_tpu_v2"`, from release
#   0.0.13 on.
# * [`jax.lax.ragged_dot`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_dot.html)
#   takes the same arguments, and XLA compiles it. The reference kernels are tested against it. Try
#   it first; a cell at the end of this notebook times it and your kernel on a TPU.
# * [MegaBlocks](https://arxiv.org/abs/2211.15841) is the paper that began this, on GPUs: no token
#   dropped, and no expert padded beyond its last block.
#
# <details><summary>More: other routers</summary>
#
# Some routers take the softmax over all experts before they choose, or use a sigmoid instead. A router
# is often computed in f32 while everything else is bf16, and trained with a second loss that favours equal
# loads. All of this is plain JAX around the same three products.
#
# </details>

# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng


def make_inputs(key, M, D, F, E, top_k, favourite=None, shunned=None):
    r = rng(key)
    logits = 2 * r.normal(size=(M, E)) + 100 * r.choice([-1, 1], (M, 1))
    if favourite is not None:
        logits[:, favourite] += 5  # and no more: its weight would be 1, and all gradients noise
    if shunned is not None:
        logits[:, shunned] -= 50
    shapes = ((E, D, F), (E, D, F), (E, F, D))
    weights = [r.normal(size=shape) / shape[1] ** 0.5 for shape in shapes]
    arrays = (r.normal(size=(M, D)), logits, *weights)
    return (*(array(a, jnp.float32) for a in arrays), top_k)


def observe(fn):
    """The layer's result, and its gradients for a cotangent that is nobody's operand."""

    def with_gradients(x, router_logits, w_gate, w_up, w_down, top_k):
        layer = functools.partial(fn, top_k=top_k)
        y, pullback = jax.vjp(layer, x, router_logits, w_gate, w_up, w_down)
        return y, *pullback(x * x - 1)

    return with_gradients


def scale(M=2700, D=2048, F=1408, E=64, top_k=6):  # DeepSeek-V2 Lite's experts
    shapes = ((M, D), (E, D, F), (E, D, F), (E, F, D))
    x, w_gate, w_up, w_down = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    logits = np.random.default_rng(0).normal(size=(M, E)) - np.arange(E) / 16
    return x, array(logits, jnp.bfloat16), w_gate, w_up, w_down, top_k


def par(*launches: Launch) -> str:
    """How many launches there are, and how many of their steps multiply."""
    steps = sum(launch.steps for launch in launches)
    ran = sum(int(dot.executed.sum()) for launch in launches for dot in launch.dots)
    return f"{len(launches)} launches, dots in {ran:,} of {steps:,} steps"


def fresh(r):
    # the slots of the case, whose kernels are compiled by now, and another router; or other sizes
    if r.integers(4) == 0:
        return dict(M=5, D=48, F=72, E=144, top_k=2)
    router = (dict(favourite=1), dict(favourite=3), dict(shunned=0))
    top_k = int(r.choice((2, 4)))
    return dict(M=192 // top_k, D=128, F=72, E=5, top_k=top_k, **router[r.integers(len(router))])


def audit(
    one: Launch, two: Launch, three: Launch, four: Launch, five: Launch,
    six: Launch, seven: Launch, eight: Launch, nine: Launch,
) -> None:  # fmt: skip
    """Three projections and the two gradients of each: nine launches."""


# Plain JAX may route, weigh and sum, forwards and backwards; it may not multiply matrices.
_OUTSIDE = [
    "top_k", "sort", "gather", "scatter", "scatter-add", "exp", "log", "logistic", "neg", "sign",
    "abs", "mul", "add", "add_any", "sub", "div", "max", "min", "integer_pow", "select_n",
    "reduce_sum", "reduce_max", "concatenate", "stack", "rev",
]  # fmt: skip

PUZZLE = Puzzle(
    spec=moe_layer_spec,
    solution=moe_layer,
    inputs=make_inputs,
    cases=[
        dict(M=64, D=128, F=72, E=5, top_k=3, shunned=2),
    ],
    observe=observe,
    results=[
        "the result",
        *(f"the gradient of {x}" for x in ("x", "router_logits", "w_gate", "w_up", "w_down")),
    ],
    outside=_OUTSIDE,
    slack=dict(outside=1.04),  # of what all nine launches get, some list of tokens more
    tolerance=1e-4,
    hints=[
        "Backward: which puzzle's kernel multiplies rows by transposed weights, which one sums "
        "outer products of rows? Routing: flatten the chosen experts to one number per slot; "
        "everything else follows from sorting those numbers. Way back: which row of `out` does "
        "slot n have?",
        "`jax.lax.top_k(array, k)` returns values and indices. `jnp.argsort` gives the order of "
        "a sort and, applied to an order, its inverse. `jnp.bincount(..., length=E)` counts "
        "with a static length.",
        "Backward: two calls of `find(...).solution`. Routing: top_k, softmax of its values, "
        "flat experts, their order, their counts, rows of x by slot // top_k. Back: rows of out "
        "by the inverse of the order, reshaped to M × top_k × D, times the weights, summed.",
    ],
    explain="""Sorting the slots by expert turns routing into three grouped matmuls. In the
    reference, the inverse of the same order puts the outputs back. JAX differentiates all of
    this except the kernels, and for those the rule uses two earlier puzzles: rows times
    transposed weights, and outer products summed by group.""",
    waivers={
        "blocks": "no kernel is written here, and the puzzles of those that are called have such "
        "cases",
    },
    audit=audit,
    scale=scale,
    par=par,
    fresh=fresh,
)
