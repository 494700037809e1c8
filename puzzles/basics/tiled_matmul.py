"""Puzzle 10: a blocked matmul with an accumulator in scratch."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## tiled_matmul: a grid of three axes
#
# Large matrices do not fit into VMEM, but *blocks* of them do. One block of a product is a sum over
# `k`:
#
# $$C_{ij} = \sum_k A_{ik} B_{kj}$$
#
# The grid has `k` innermost. So the steps of one output block follow one another, and their running
# sum can stay on the chip, in **scratch** (`scratch_shapes`): a VMEM buffer, `acc_ref`, that
# belongs to no array, and lives from the first grid step to the last. Like an output, it holds
# garbage until you write to it, and it is *not* cleared between output blocks.
#
# ![Three steps go along a row of a's blocks and down a column of b's, while the accumulator and one output block stay in VMEM; the output is written after the third.](diagrams/basics/tiled_matmul.svg)
#
# Each step does at most three things: at the first `k`, zero the accumulator; always, add one block
# product, by `jnp.dot`; at the last `k`, store.


# %%
def tiled_matmul_spec(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return jnp.dot(a, b)


# %%
def tiled_matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    ### BEGIN SOLUTION
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(a_ref[...], b_ref[...])

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]

    ### END SOLUTION


def tiled_matmul(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    (M, K), (_, N) = a.shape, b.shape
    bm, bk, bn = 64, 128, 256
    return pl.pallas_call(
        tiled_matmul_kernel,
        grid=(M // bm, N // bn, K // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        interpret=INTERPRET,
    )(a, b)


# %% [markdown]
# `show` goes through the grid step by step. Which blocks are fetched again, and how often?
#
# One thing differs on a TPU: by default, a dot there rounds f32 operands to bf16. A CPU does not.
# `precision=jax.lax.Precision.HIGHEST` keeps f32, at the price of several passes of the matrix
# unit. (`choose_blocks`, at the end of this part, explains the receipt's FLOPs and roofline.)

# %% active="ipynb"
# show(tiled_matmul)

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.basics._audits import counted, product_by_dots


def make_inputs(key, M, K, N):
    r = rng(key)
    return (
        array(r.normal(size=(M, K)), jnp.float32),
        array(r.normal(size=(K, N)), jnp.float32),
    )


def scale(M=2048, K=16384, N=4096):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(M=128, K=384, N=512)
    M, K, N = [(64, 512, 1024), (64, 1152, 512), (320, 128, 1024), (320, 640, 512)][r.integers(4)]
    return dict(M=M, K=K, N=N)


def audit(launch: Launch, *, args) -> None:
    (M, K), N = args[0].shape, args[1].shape[1]
    product_by_dots(launch, M, K, N)


PUZZLE = Puzzle(
    spec=tiled_matmul_spec,
    solution=tiled_matmul,
    inputs=make_inputs,
    cases=[
        dict(M=128, K=384, N=512),
        dict(M=192, K=128, N=512),
        dict(M=64, K=17 * 128, N=256),
    ],
    fresh=fresh,
    scale=scale,
    par=lambda launch: (
        f"{launch.hbm_bytes_read / 2**30:.1f} GiB read in {counted(launch.all_steps, 'step')}"
    ),
    hints=[
        "An output block is finished only at the last k. What has to happen once before the first "
        "product, at every step, and once after the last one?",
        "`pl.program_id(2)` is k, `pl.num_programs(2)` is how many there are. "
        "`@pl.when(condition)` guards the function below it.",
        "Three parts: zero the accumulator under one `pl.when`; add a block product to it, "
        "unguarded; store it under another `pl.when`.",
    ],
    explain="""With k innermost, all steps of one output block are consecutive, so one accumulator is
    enough for all blocks. Zeros at the first k separate each from the one before; the reference stores
    at the last k, so it writes only finished sums.""",
    audit=audit,
)
