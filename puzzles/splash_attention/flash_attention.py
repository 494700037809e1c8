"""Puzzle 5: the same kernel, another grid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET, find

# %% [markdown]
# ## flash_attention: the body does not change
#
# How do you handle all blocks of queries? Unfold the kernel below: **it is `attention_one_block`'s**, except that m
# and l are 128 lanes wide. It never asked which queries it holds. So give the grid a real first axis:
#
# ```text
#                 k₀ v₀     k₁ v₁     k₂ v₂
#  i = 0   q₀    (0, 0) →  (0, 1) →  (0, 2)  → o₀
#  i = 1   q₁    (1, 0) →  (1, 1) →  (1, 2)  → o₁        → time runs along the rows
# ```
#
# A single set of scratch serves the blocks of queries one after the other. Which lines of the kernel make that safe?
#
# ![For one block of queries, the blocks of k and v are fetched one after another; the output is written after the last, and the next block of queries begins with the first keys again.](diagrams/splash_attention/flash_attention.svg)
#
# This time you write everything around the kernel:
#
# * the grid, the specs, the output's shape; a block has `bq` queries or `bk` keys;
# * the scratch, in this order, in f32, for **one** block of queries: m and l, each number in **128 lanes**, and acc;
# * `dimension_semantics` in `compiler_params`, one entry for each axis of the grid. Which axis may be divided
#   among cores? Along which does a step need the scratch of the step before it?
#
# <details><summary>More: why 128 lanes</summary>
#
# A vector register holds 8 × 128 f32 numbers, and a column fills one of its 128 lanes. To subtract the column m from a block of
# scores, a TPU copies that lane into all others, in every step. If m is in all lanes, `spread` only repeats its registers.
#
# </details>


# %%
def flash_attention_spec(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    return find("attention").solution(q, k, v)


def spread(x, like):
    """Repeat x, (rows, 128) with equal lanes, to the width of `like`. Return a column as it is."""
    n = like.shape[1]
    return x if x.shape[1] == 1 else jnp.tile(x, (1, pl.cdiv(n, 128)))[:, :n]


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to attention_one_block)
def flash_attention_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    last_axes = (((1,), (1,)), ((), ()))  # q @ k.T
    s = jax.lax.dot_general(q_ref[...], k_ref[...], last_axes, preferred_element_type=jnp.float32)
    s *= q_ref.shape[-1] ** -0.5

    m_old = m_ref[...]
    m_new = jnp.maximum(m_old, jnp.max(s, axis=1, keepdims=True))
    p = jnp.exp(s - spread(m_new, s))
    alpha = jnp.exp(m_old - m_new)

    m_ref[...] = m_new
    l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
    acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[:, :1]


# %%
def flash_attention(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    *,
    bq: int = 64,
    bk: int = 128,
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    return pl.pallas_call(
        flash_attention_kernel,
        ### BEGIN SOLUTION
        grid=(T // bq, S // bk),
        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
        ],
        out_specs=pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        ### END SOLUTION
        interpret=INTERPRET,
    )(q, k, v)


# %% [markdown]
# Is it worth it? For 8192 queries and keys, the matrix of scores takes 256 MiB in f32. Plain attention
# would write it, read it, write the weights and read those. Flash attention reads the queries once, and
# all keys and values **once for every block of queries**. So `bq` decides the traffic, and small blocks
# move as many bytes as plain attention does.
#
# The limit is VMEM. It holds the blocks and the scratch. With large blocks, the body's intermediates count as well: `s` and
# `p` have bq × bk numbers each. The table below shows the reference. The blocks in its last row do not fit into the
# 16 MiB that a v5e gives a kernel by default. Try other blocks.
#
# And the 128 lanes? With m and l as columns, the numbers are the same, but the kernel may take longer. By libtpu's estimate for
# v5e it takes 1.4 times as many cycles in blocks of 512 × 512, and 1.8 times as many in blocks of 1024 × 512. JAX's kernels
# keep m and l in 128 lanes, and so do yours from here on.

# %% active="ipynb"
# flash = find("flash_attention").solution
# q = k = v = jax.ShapeDtypeStruct((8192, 128), jnp.float32)
# print("   bq    bk   steps  HBM MiB   VMEM MiB: blocks and scratch   s and p")
# for bq, bk in [(64, 128), (256, 256), (512, 512), (1024, 512), (2048, 1024)]:
#     (launch,) = trace(functools.partial(flash, bq=bq, bk=bk), q, k, v)
#     vmem, body, hbm = (x / 2**20 for x in (launch.vmem_bytes, 2 * 4 * bq * bk, launch.hbm_bytes))
#     print(f"{bq:5}{bk:6}{launch.steps:8}{hbm:9.0f}{vmem:31.1f}{body:10.1f}")
# print(f"  plain, scores and weights:{4 * 4 * 8192**2 / 2**20:.0f}")

# %% tags=["author"]
from puzzles import Launch, Puzzle
from puzzles.splash_attention.attention import make_inputs
from puzzles.splash_attention.attention_one_block import fetches


def scale(T=8192, S=16384, H=128):
    return tuple(jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=192, S=640, H=64, large=bool(r.integers(2)))
    T, S, H = r.choice([(64, 1152, 128), (576, 128, 32), (320, 256, 8)])
    return dict(T=int(T), S=int(S), H=int(H), large=bool(r.integers(2)))


def lanes(launch):
    """The headline metric of attention_one_block, and in how many lanes m is."""
    return f"{fetches(launch)}; m in {launch.scratch[0].shape[-1]} of 128 lanes"


def audit(launch: Launch) -> None:
    narrow = [o.name for o in launch.scratch if str(o.dtype) != "float32"]
    assert not narrow, f"`{narrow[0]}` is {launch.scratch[-1].dtype}: keep m, l and acc in float32"
    semantics = launch.dimension_semantics
    assert semantics is not None, (
        "the launch promises nothing about its axes: pass "
        "compiler_params=pltpu.CompilerParams(dimension_semantics=...)"
    )
    assert len(launch.grid) == 2, (
        f"the grid is {launch.grid}, and this puzzle needs two axes: blocks of queries, and "
        "for each of them the blocks of keys"
    )
    assert semantics == ("parallel", "arbitrary"), (
        f"dimension_semantics is {semantics}: blocks of queries do not depend on each other, "
        "so axis 0 can be shared out among cores; the steps along the keys have to stay in "
        "order"
    )


PUZZLE = Puzzle(
    spec=flash_attention_spec,
    solution=flash_attention,
    inputs=make_inputs,
    cases=[
        dict(T=192, S=640, H=64),
        dict(T=128, S=1024, H=256, large=True, bq=32, bk=512),
    ],  # unequal numbers of blocks
    fresh=fresh,
    scale=scale,
    par=lanes,
    tolerance=2e-4,
    hints=[
        "Step (i, j) combines block i of the queries with block j of the keys and values. Which "
        "operands does i move, which does j?",
        "Six keywords: grid, in_specs, out_specs, out_shape, scratch_shapes, compiler_params. "
        "Copy the call of attention_one_block and change everything that depends on i. The "
        "kernel reads j from axis 1.",
        "The grid counts T in blocks of bq, then S in blocks of bk. The maps of queries and "
        "output return i, those of keys and values j. The scratch is three f32 shapes in VMEM: "
        "two of bq rows and 128 lanes, and a block like the output's. In `dimension_semantics`, i "
        "is free and j is in order.",
    ],
    explain="""The kernel starts its scratch at every j = 0, so each block of queries starts
    with a fresh set and the body does not change. This is also why i is parallel: nothing
    passes from one i to the next.""",
    audit=audit,
)
