"""Puzzle 16: the two products of a backward pass, without a transposed copy."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## matmul_gradients: two launches, and no transposed copy in HBM
#
# `jax.grad` stops at your `pallas_call`: you also write the backward pass. It takes two
# products with `g`, the gradient with respect to the result:
#
# ```text
# forward    o  (M × N)  =  a · b       sums over K
# backward   da (M × K)  =  g · bᵀ      sums over N
#            db (K × N)  =  aᵀ · g      sums over M
# ```
#
# The arrays stay as they are stored, and their blocks keep their shapes: (bm, bk) of `a`, (bk, bn)
# of `b`, (bm, bn) of `g`. Only the axis of the sum changes. That axis comes last in the grid, and
# the dot contracts it in both blocks.
#
# The kernel's `contract` has one axis for each input block: the axis to sum over. For each call,
# write `contract`, the grid and the input specs. You can check `da` before you write `db`.


# %%
def matmul_gradients_spec(
    a: Float[Array, "M K"], b: Float[Array, "K N"], g: Float[Array, "M N"]
) -> tuple[Float[Array, "M K"], Float[Array, "K N"]]:
    return jnp.dot(g, b.T), jnp.dot(a.T, g)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to tiled_matmul)
def matmul_gradients_kernel(x_ref, y_ref, o_ref, acc_ref, *, contract):
    step = pl.program_id(2)
    x_axis, y_axis = contract

    @pl.when(step == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jax.lax.dot_general(
        x_ref[...], y_ref[...], dimension_numbers=(((x_axis,), (y_axis,)), ((), ()))
    )

    @pl.when(step == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]


# %%
def matmul_gradients(
    a: Float[Array, "M K"], b: Float[Array, "K N"], g: Float[Array, "M N"]
) -> tuple[Float[Array, "M K"], Float[Array, "K N"]]:
    (M, K), (_, N) = a.shape, b.shape
    bm, bk, bn = 128, 128, 256
    da = pl.pallas_call(
        functools.partial(
            matmul_gradients_kernel,
            ### BEGIN SOLUTION
            contract=(1, 1),
            ### END SOLUTION
        ),
        ### BEGIN SOLUTION
        grid=(M // bm, K // bk, N // bn),
        in_specs=[
            pl.BlockSpec((bm, bn), lambda i, j, n: (i, n)),
            pl.BlockSpec((bk, bn), lambda i, j, n: (j, n)),
        ],
        ### END SOLUTION
        out_specs=pl.BlockSpec((bm, bk), lambda i, j, n: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, K), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bk), jnp.float32)],
        interpret=INTERPRET,
    )(g, b)
    db = pl.pallas_call(
        functools.partial(
            matmul_gradients_kernel,
            ### BEGIN SOLUTION
            contract=(0, 0),
            ### END SOLUTION
        ),
        ### BEGIN SOLUTION
        grid=(K // bk, N // bn, M // bm),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, m: (m, i)),
            pl.BlockSpec((bm, bn), lambda i, j, m: (m, j)),
        ],
        ### END SOLUTION
        out_specs=pl.BlockSpec((bk, bn), lambda i, j, m: (i, j)),
        out_shape=jax.ShapeDtypeStruct((K, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bk, bn), jnp.float32)],
        interpret=INTERPRET,
    )(a, g)
    return da, db


# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng


def make_inputs(key, M, K, N):
    r = rng(key)
    shapes = (M, K), (K, N), (M, N)
    return tuple(array(r.normal(size=shape), jnp.float32) for shape in shapes)


def scale(M=16384, K=2048, N=4096):
    shapes = (M, K), (K, N), (M, N)
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(M=256, K=384, N=512)
    M, K, N = [(128, 384, 512), (640, 128, 256), (128, 640, 256), (384, 256, 768)][r.integers(4)]
    return dict(M=M, K=K, N=N)


def audit(da: Launch, db: Launch, *, args) -> None:
    (M, K), N = args[0].shape, args[1].shape[1]
    for operand in (*da.inputs, *db.inputs):
        assert operand.shape not in ((K, M), (N, K), (N, M)), (
            f"`{operand.name}` has shape {operand.shape}, which no argument has: it was "
            "transposed in HBM. Fetch the blocks as they are stored, and contract the other axis"
        )
    done, needed = da.dot_flops + db.dot_flops, 4 * M * K * N
    assert done >= needed or da.unknown_loops or db.unknown_loops, (
        f"the dots do {done:,} FLOPs, but the two products need {needed:,}: only a dot runs "
        "on the matrix unit, sums and products by hand do not"
    )


PUZZLE = Puzzle(
    spec=matmul_gradients_spec,
    solution=matmul_gradients,
    inputs=make_inputs,
    cases=[dict(M=256, K=384, N=512), dict(M=384, K=128, N=512)],
    results=["da", "db"],
    fresh=fresh,
    scale=scale,
    par=lambda *launches: f"{sum(one.hbm_bytes_read for one in launches) / 2**30:.1f} GiB read",
    hints=[
        "Begin with each output. da has the axes M and K, so its launch sums over N. db has the "
        "axes K and N, so its launch sums over M.",
        "An index map returns an array's own block indices, in its own order: rows first. "
        "`contract` counts a block's axes from 0, rows first.",
        "da: a grid over M, K, N; both inputs move along N, their columns, so the columns of "
        "both are contracted. db: a grid over K, N, M; both inputs move along M, their rows.",
    ],
    explain="""A product's gradients contract other axes of the same arrays, so these stay in HBM as they
    are stored: index maps and dimension numbers say which axes meet. Each launch has the axis that it
    sums over last in its grid.""",
    audit=audit,
)
