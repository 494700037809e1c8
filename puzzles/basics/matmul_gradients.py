"""Rung 16: the two products of a backward pass, without a transposed copy."""

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
# JAX does not differentiate a `pallas_call` like yours: you write the backward pass, too. With `g`,
# the gradient at the product, it is two products more:
#
# ```text
# forward    o  (M × N)  =  a · b       sums over K
# backward   da (M × K)  =  g · bᵀ      sums over N
#            db (K × N)  =  aᵀ · g      sums over M
# ```
#
# The arrays lie as they did, and so do their blocks: (bm, bk) of `a`, (bk, bn) of `b`, (bm, bn) of
# `g`. What changes is the axis that is summed over. It comes last in the grid, and the dot
# contracts it, wherever it lies in the two blocks.
#
# The kernel takes `contract`, two numbers: which axis of its first block is summed against which
# axis of its second. For each call, write `contract`, the grid and the input specs. You may
# check after the first.

# %%
def matmul_gradients_spec(
    a: Float[Array, "M K"], b: Float[Array, "K N"], g: Float[Array, "M N"]
) -> tuple[Float[Array, "M K"], Float[Array, "K N"]]:
    return jnp.dot(g, b.T), jnp.dot(a.T, g)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (spoils tiled_matmul)
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
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng


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
            f"`{operand.name}` has shape {operand.shape}, and no argument has: it was transposed in HBM. "
            "Fetch its blocks as they lie, and contract the other axis"
        )
    done, needed = da.dot_flops + db.dot_flops, 4 * M * K * N
    assert done >= needed or da.unknown_loops or db.unknown_loops, (
        f"the dots do {done:,} FLOPs, where the two products need {needed:,}: only a dot runs on the "
        "matrix unit, sums and products by hand do not"
    )


_G_DA = "pl.BlockSpec((bm, bn), lambda i, j, n: (i, n))"
_B_DA = "pl.BlockSpec((bk, bn), lambda i, j, n: (j, n))"
_A_DB = "pl.BlockSpec((bm, bk), lambda i, j, m: (m, i))"
_G_DB = "pl.BlockSpec((bm, bn), lambda i, j, m: (m, j))"

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
        "Begin with each output. da's blocks are counted along M and K, so N is summed over, last. "
        "db's are counted along K and N, so M is.",
        "An index map returns an array's own block indices, in its own order: rows first. `contract` "
        "counts a block's axes from 0, rows first.",
        "da: a grid over M, K, N; both inputs move along N, their columns, so the columns of both are "
        "contracted. db: a grid over K, N, M; both inputs move along M, their rows.",
    ],
    explain="""A product's gradients contract other axes of the same arrays, so these stay in HBM as
    they lie: index maps and dimension numbers say which axes meet. Each launch has the axis that it sums
    over last in its grid.""",
    mistakes=[
        Mistake(
            "transposes b in HBM for da",
            edits=(
                ("contract=(1, 1)", "contract=(1, 0)"),
                (_B_DA, "pl.BlockSpec((bn, bk), lambda i, j, n: (n, j))"),
                (")(g, b)", ")(g, b.T)"),
            ),
            says="`y_ref` has shape (512, 384), and no argument has",
            stage="work",
        ),
        Mistake(
            "transposes a in HBM for db",
            edits=(
                ("contract=(0, 0)", "contract=(1, 0)"),
                (_A_DB, "pl.BlockSpec((bk, bm), lambda i, j, m: (i, m))"),
                (")(a, g)", ")(a.T, g)"),
            ),
            says="`x_ref` has shape (384, 256), and no argument has",
            stage="work",
        ),
        Mistake(
            "contracts da as the forward pass does",
            old="contract=(1, 1)",
            new="contract=(1, 0)",
            says="The axes that are summed over must be equally long",
            stage="error",
        ),
        Mistake(
            "contracts db as the forward pass does",
            old="contract=(0, 0)",
            new="contract=(1, 0)",
            says="db sums over M, which runs down the rows of both `a` and `g`: contract axis 0 of both",
        ),
        Mistake(
            "walks g along its rows for db",
            old=_G_DB,
            new="pl.BlockSpec((bm, bn), lambda i, j, m: (j, m))",
            says="db needs block (m, j) of `g`: its columns are db's, and its rows are summed over",
        ),
        Mistake(
            "contracts the columns of both for db",
            old="contract=(0, 0)",
            new="contract=(1, 1)",
            says="The axes that are summed over must be equally long",
            stage="error",
        ),
        Mistake(
            "walks b as the forward pass does",
            old=_B_DA,
            new="pl.BlockSpec((bk, bn), lambda i, j, n: (n, j))",
            says="da needs block (j, n) of `b`: its rows are da's columns, and its columns are summed over",
        ),
        Mistake(
            "walks g down its rows for da",
            old=_G_DA,
            new="pl.BlockSpec((bm, bn), lambda i, j, n: (n, i))",
            says="da needs block (i, n) of `g`: its rows are da's, and its columns are summed over",
        ),
        Mistake(
            "walks a along its rows for db",
            old=_A_DB,
            new="pl.BlockSpec((bm, bk), lambda i, j, m: (i, m))",
            says="db needs block (m, i) of `a`: its columns are db's rows, and its rows are summed over",
        ),
        Mistake(
            "takes the first rows of g at every step",
            old=_G_DB,
            new="pl.BlockSpec((bm, bn), lambda i, j, m: (0, j))",
            says="for db, `g`'s index map ignores the axis that is summed over",
        ),
        Mistake(
            "sums da one block short",
            old="grid=(M // bm, K // bk, N // bn)",
            new="grid=(M // bm, K // bk, N // bn - 1)",
            says="the last block of N is missing from every sum of da",
        ),
        Mistake(
            "sums db one block short",
            old="grid=(K // bk, N // bn, M // bm)",
            new="grid=(K // bk, N // bn, M // bm - 1)",
            says="the last block of M is missing from every sum of db",
        ),
        Mistake(
            "counts the axes of da as the forward pass does",
            old="grid=(M // bm, K // bk, N // bn)",
            new="grid=(M // bm, N // bn, K // bk)",
            says="da's columns are counted along K, and N comes last: it is summed over",
        ),
        Mistake(
            "gives the gradients in the other order",
            old="return da, db",
            new="return db, da",
            says="The results come in another order than the spec's",
        ),
        Mistake(
            "takes all of M in one block",
            old="bm, bk, bn = 128, 128, 256",
            new="bm, bk, bn = M, 128, 256",
            says="take smaller ones",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative(
            "walks da column by column",
            edits=(
                ("grid=(M // bm, K // bk, N // bn)", "grid=(K // bk, M // bm, N // bn)"),
                (_G_DA, "pl.BlockSpec((bm, bn), lambda j, i, n: (i, n))"),
                (_B_DA, "pl.BlockSpec((bk, bn), lambda j, i, n: (j, n))"),
                (
                    "out_specs=pl.BlockSpec((bm, bk), lambda i, j, n: (i, j))",
                    "out_specs=pl.BlockSpec((bm, bk), lambda j, i, n: (i, j))",
                ),
            ),
        ),
        Alternative("takes other blocks", old="bm, bk, bn = 128, 128, 256", new="bm, bk, bn = 128, 128, 128"),
        Alternative(
            "makes both launches in one helper, under jit",
            code="""
def product(x, y, contract, blocks):
    shape = [x.shape[1 - contract[0]], y.shape[1 - contract[1]], x.shape[contract[0]]]

    def spec(axis, which):
        index = (lambda *at: (at[2], at[which])) if axis == 0 else (lambda *at: (at[which], at[2]))
        sizes = (blocks[2], blocks[which]) if axis == 0 else (blocks[which], blocks[2])
        return pl.BlockSpec(sizes, index)

    return pl.pallas_call(
        functools.partial(matmul_gradients_kernel, contract=contract),
        grid=tuple(s // b for s, b in zip(shape, blocks)),
        in_specs=[spec(contract[0], 0), spec(contract[1], 1)],
        out_specs=pl.BlockSpec(blocks[:2], lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct(shape[:2], x.dtype),
        scratch_shapes=[pltpu.VMEM(blocks[:2], jnp.float32)],
        interpret=INTERPRET,
    )(x, y)


@jax.jit
def matmul_gradients(a, b, g):
    da = product(g, b, (1, 1), (128, 128, 256))
    return da, product(a, g, (0, 0), (128, 256, 128))
""",
        ),
    ],
    audit=audit,
)
