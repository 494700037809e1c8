"""Puzzle 12: bf16 in, bf16 out, f32 in between."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, BFloat16

from puzzles import INTERPRET

# %% [markdown]
# ## matmul_bf16: narrow in, narrow out, wide in between
#
# The TPU's matrix unit multiplies **bf16** numbers and adds the products in **f32**. bf16 takes
# half the bytes of f32 and has the same range, but only 8 bits of precision: between 256 and 512,
# neighbouring bf16 numbers are 2 apart. A running sum needs more: add 0.5 to 256 in bf16, and you
# still have 256.
#
# So store and move bf16, but accumulate f32. `preferred_element_type=jnp.float32` asks a dot for an
# f32 result, and the accumulator is f32. Rounding happens **once**, at the end.
#
# The kernel is `tiled_matmul`'s, but for two lines. Write them.


# %%
def matmul_bf16_spec(
    a: BFloat16[Array, "M K"], b: BFloat16[Array, "K N"]
) -> BFloat16[Array, "M N"]:
    product = jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32))
    return product.astype(jnp.bfloat16)


# %%
def matmul_bf16_kernel(a_ref, b_ref, o_ref, acc_ref):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    ### BEGIN SOLUTION
    acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)
    ### END SOLUTION

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        ### BEGIN SOLUTION
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)
        ### END SOLUTION


def matmul_bf16(
    a: BFloat16[Array, "M K"],
    b: BFloat16[Array, "K N"],
    *,
    bm: int = 128,
    bk: int = 256,
    bn: int = 128,
) -> BFloat16[Array, "M N"]:
    (M, K), (_, N) = a.shape, b.shape
    return pl.pallas_call(
        matmul_bf16_kernel,
        grid=(M // bm, N // bn, K // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), a.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=INTERPRET,
    )(a, b)


# %% [markdown]
# Narrow numbers are packed: two rows of bf16, or four of int8, fill the space of one row of f32.
# So a block of 8 rows takes half the VMEM in bf16. In HBM, int8 arrays with a multiple of 32 rows are
# stored in tiles of 32 rows. The TPU compiler of JAX 0.10 and 0.11 cannot cut such a tile: give
# the block a multiple of 32 rows, or all rows.

# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng
from puzzles.basics._audits import counted, narrow, product_by_dots


def make_inputs(key, M, K, N):
    # Half of the terms are shifted up and half down: the sum climbs to 64 or 96 and comes back to
    # numbers so small that a sum that starts at one is noticed, too.
    r = rng(key)
    a = (r.normal(size=(M, K)) + np.where(np.arange(K) < K // 2, 2, -2)) / 64
    b = r.normal(2, 1, (K, N))
    return array(a, jnp.bfloat16), array(b, jnp.bfloat16)


def scale(M=4096, K=16384, N=2048):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((M, K), (K, N)))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(M=128, K=2048, N=256)
    M, K, N = [(128, 4096, 128), (384, 1024, 128), (128, 1024, 640), (128, 2048, 384)][
        r.integers(4)
    ]
    return dict(M=M, K=K, N=N)


def audit(launch: Launch, *, args) -> None:
    (M, K), N = args[0].shape, args[1].shape[1]
    product_by_dots(launch, M, K, N)
    narrow(launch)


PUZZLE = Puzzle(
    picture=False,  # tiled_matmul's, unchanged: what is new is a dtype
    spec=matmul_bf16_spec,
    solution=matmul_bf16,
    inputs=make_inputs,
    cases=[
        dict(M=128, K=2048, N=256),
        dict(M=256, K=3072, N=512, bm=64, bk=512, bn=256),
    ],
    fresh=fresh,
    scale=scale,
    par=lambda launch: (
        f"{launch.hbm_bytes_read / 2**30:.1f} GiB read in {counted(launch.all_steps, 'step')}"
    ),
    hints=[
        "It is tiled_matmul, but two places decide the precision: what a dot returns, and when the "
        "sum is rounded.",
        "`preferred_element_type=jnp.float32` makes the dot of two bf16 blocks return f32. "
        "`.astype(o_ref.dtype)` rounds.",
        "First gap: add a block product, asked for in f32, to the accumulator. Second gap: "
        "convert the accumulator, and store it.",
    ],
    explain="""The matrix unit multiplies bf16 and sums in f32, so f32 accumulation costs nothing
    extra in the dots. Rounding once, at the store, loses no more than the output type has to.""",
    audit=audit,
)
