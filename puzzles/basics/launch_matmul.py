"""Puzzle 11: all of a matmul's call."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## launch_matmul: the whole call, for a transposed product
#
# Now the whole call is yours, for a product that comes up in every backward pass: `a.T @ b`. `a` is
# stored as `K` × `M`. Transposing it in HBM would cost a round trip of the whole matrix. Instead,
# we fetch its blocks as they are stored, and the kernel contracts their *first* axis:
# `jax.lax.dot_general` is `dot` with the axes named.
#
# You also write `out_shape`, and:
#
# * `scratch_shapes=[pltpu.VMEM(shape, dtype)]`, one entry for each scratch Ref.
# * `compiler_params=pltpu.CompilerParams(dimension_semantics=(...))`, one string for each grid
#   axis. `"parallel"` promises that the axis may be divided among cores or reordered. `"arbitrary"`
#   promises nothing, so the axis runs in order. Put parallel axes first: JAX's simulator of a TPU
#   insists on it.
#
# Which axes can go in any order?
#
# ![Three steps go down a column of blocks in both a and b, while the accumulator and one output block stay in VMEM.](diagrams/basics/launch_matmul.svg)


# %%
def launch_matmul_spec(a: Float[Array, "K M"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return jnp.dot(a.T, b)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to tiled_matmul)
def launch_matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jax.lax.dot_general(
        a_ref[...],
        b_ref[...],
        dimension_numbers=(((0,), (0,)), ((), ())),  # contract axis 0 of both
        preferred_element_type=jnp.float32,
    )

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]


# %%
def launch_matmul(a: Float[Array, "K M"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    (K, M), (_, N) = a.shape, b.shape
    bm, bk, bn = 128, 256, 512
    return pl.pallas_call(
        launch_matmul_kernel,
        ### BEGIN SOLUTION
        grid=(M // bm, N // bn, K // bk),
        in_specs=[
            pl.BlockSpec((bk, bm), lambda i, j, k: (k, i)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        ### END SOLUTION
        interpret=INTERPRET,
    )(a, b)


# %% [markdown]
# Is the transpose free, then? Not quite. The blocks are transposed on the chip, which costs
# no traffic but may cost time.
#
# And why promise anything? Some TPU chips (v4 and v5p) have two cores that can share the parallel
# axes of one kernel. If you promise too much, each core's accumulator holds only a part of a sum.
# If you promise nothing, one core idles.

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.basics._audits import counted, product_by_dots


def make_inputs(key, K, M, N):
    r = rng(key)
    return (
        array(r.normal(size=(K, M)), jnp.float32),
        array(r.normal(size=(K, N)), jnp.float32),
    )


def scale(K=16384, M=8192, N=4096):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((K, M), (K, N)))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(K=1024, M=384, N=1024)
    K, M, N = [(256, 128, 1536), (768, 128, 512), (1280, 384, 512), (256, 640, 1024)][r.integers(4)]
    return dict(K=K, M=M, N=N)


def audit(launch: Launch, *, args) -> None:
    (K, M), N = args[0].shape, args[1].shape[1]
    product_by_dots(launch, M, K, N)
    semantics = launch.dimension_semantics
    assert semantics is not None, (
        "the launch promises nothing about its axes: pass "
        "compiler_params=pltpu.CompilerParams(dimension_semantics=...)"
    )
    words = tuple(str(s).split(".")[-1].lower() for s in semantics)
    assert words == ("parallel", "parallel", "arbitrary"), (
        f"dimension_semantics is {words}: the output blocks, axes 0 and 1, do not depend on each "
        "other and can be shared out among cores; the steps along k have to stay in order"
    )


PUZZLE = Puzzle(
    spec=launch_matmul_spec,
    solution=launch_matmul,
    inputs=make_inputs,
    cases=[dict(K=1024, M=384, N=1024), dict(K=768, M=256, N=512)],
    fresh=fresh,
    scale=scale,
    par=lambda launch: (
        f"{launch.hbm_bytes_read / 2**30:.1f} GiB read in {counted(launch.all_steps, 'step')}"
    ),
    hints=[
        "Begin with the output: step (i, j, k) works on block (i, j). Which block of `a`, "
        "stored as K × M, does it need?",
        "Seven keywords: grid, in_specs, out_specs, out_shape, scratch_shapes, "
        "compiler_params, and the given interpret. The kernel reads k from grid axis 2.",
        "`a`'s block has bk rows and bm columns and its map returns k first. The scratch is an "
        "f32 VMEM buffer of the output block's shape. Two axes are parallel, one is arbitrary.",
    ],
    explain="""Storing `a` transposed changes its BlockSpec and the axis that the kernel contracts,
    nothing else. Output blocks are independent, so i and j are parallel; k carries the accumulator
    from step to step, so it stays in order.""",
    audit=audit,
)
