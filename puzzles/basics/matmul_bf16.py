"""Rung 12: bf16 in, bf16 out, f32 in between."""

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
# neighbouring bf16 numbers are 2 apart. For one product that is fine. For a running sum it is not. Add
# 0.5 to 256 in bf16 and you have 256.
#
# So: bf16 for what is stored and moved, f32 for what is accumulated. Each step asks the matrix unit for
# an f32 result, and the scratch accumulator is f32. Rounding happens **once**, at the end.
#
# Here the scratch accumulator of `tiled_matmul` earns its keep: now the sum has another type than the
# output.
#
# The call is given. `K` is large in these cases, and the terms cancel: the running sum is far larger
# than the result, as may happen to any sum of signed numbers.

# %%
def matmul_bf16_spec(a: BFloat16[Array, "M K"], b: BFloat16[Array, "K N"]) -> BFloat16[Array, "M N"]:
    product = jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32))
    return product.astype(jnp.bfloat16)


# %%
def matmul_bf16_kernel(a_ref, b_ref, o_ref, acc_ref):
    ### BEGIN SOLUTION
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
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


# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, rng
from puzzles.basics._audits import narrow, product_by_dots


def make_inputs(key, M, K, N):
    # Half of the terms are shifted up and half down: the sum climbs to 64 or 96 and comes back to
    # numbers so small that a sum that starts at one is noticed, too.
    r = rng(key)
    shift = jnp.where(jnp.arange(K) < K // 2, 2.0, -2.0)
    a = (jnp.asarray(r.normal(size=(M, K)), jnp.float32) + shift) / 64
    b = jnp.asarray(r.normal(2, 1, (K, N)), jnp.float32)
    return a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)


def scale(M=4096, K=16384, N=2048):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((M, K), (K, N)))


def fresh(r):
    M, K, N = [(128, 4096, 128), (384, 1024, 128), (128, 1024, 640), (128, 2048, 384)][r.integers(4)]
    return dict(M=M, K=K, N=N)


def audit(launch: Launch, *, args) -> None:
    (M, K), N = args[0].shape, args[1].shape[1]
    product_by_dots(launch, M, K, N)
    narrow(launch)


_DOT = "jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)"
_ZERO = """    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

"""

PUZZLE = Puzzle(
    picture=False,  # tiled_matmul's, unchanged: what is new is a dtype
    spec=matmul_bf16_spec,
    solution=matmul_bf16,
    inputs=make_inputs,
    cases=[dict(M=128, K=2048, N=256), dict(M=256, K=3072, N=128)],
    roundings=1,
    fresh=fresh,
    scale=scale,
    par=lambda launch: f"{launch.hbm_bytes_read / 2**30:.1f} GiB read in {launch.steps:,} steps",
    hints=[
        "It is tiled_matmul, but two places decide the precision: what a dot returns, and when the "
        "sum is rounded.",
        "`preferred_element_type=jnp.float32` makes the dot of two bf16 blocks return f32. "
        "`.astype(o_ref.dtype)` rounds.",
        "The same three parts as before: zero, add a product that was asked for in f32, and a store "
        "that converts the accumulator.",
    ],
    explain="""The matrix unit multiplies bf16 and sums in f32, so f32 accumulation costs nothing
    extra in the dots. Rounding once, at the store, loses no more than the output type has to.""",
    mistakes=[
        Mistake(
            "keeps the running sum in bf16",
            edits=(
                ("pltpu.VMEM((bm, bn), jnp.float32)", "pltpu.VMEM((bm, bn), jnp.bfloat16)"),
                (_DOT, f"{_DOT}.astype(jnp.bfloat16)"),
            ),
            says="each addition rounds a sum that grows to 64 and more to 8 bits, to a multiple of "
            "1/8, 1/4 or 1/2, and the result is only about 2",
        ),
        Mistake(
            "rounds every block product to bf16",
            old=_DOT,
            new=f"{_DOT}.astype(jnp.bfloat16)",
            says="an f32 accumulator cannot get back what the product has lost",
        ),
        Mistake(
            "rounds the sum before the last block is added",
            edits=(
                (
                    f"    acc_ref[...] += {_DOT}\n",
                    f"    product = {_DOT}\n"
                    "    last = k == pl.num_programs(2) - 1\n"
                    "    before = acc_ref[...]\n"
                    "    rounded = before.astype(o_ref.dtype).astype(jnp.float32)\n"
                    "    acc_ref[...] = jnp.where(last, rounded, before) + product\n",
                ),
            ),
            says="one rounding belongs at the store, and this is another one before the last addition",
        ),
        Mistake(
            "multiplies in f32",
            old=_DOT,
            new="jnp.dot(a_ref[...].astype(jnp.float32), b_ref[...].astype(jnp.float32), "
            "preferred_element_type=jnp.float32)",
            says="leave the blocks in bf16",
            stage="work",
        ),
        Mistake(
            "stores the f32 sum as it is",
            old="acc_ref[...].astype(o_ref.dtype)",
            new="acc_ref[...]",
            says="dtype",
            stage="error",
        ),
        Mistake(
            "leaves garbage in the accumulator or in the output",
            old=_ZERO,
            new="",
            says="every number is garbage (NaN here): either the accumulator was not zeroed at k = 0, "
            "which nobody does for you, or nothing was stored at the last k, num_programs - 1. k is "
            "`pl.program_id(2)`",
        ),
        Mistake(
            "keeps the last K block's product only",
            old=_ZERO,
            new="    acc_ref[...] = jnp.zeros_like(acc_ref)\n",
            says="something sets the sum back after the first k. Zeros belong to k = 0 alone, and "
            "every step adds, by `+=`",
        ),
        Mistake(
            "stores one step early",
            old="pl.num_programs(2) - 1)",
            new="pl.num_programs(2) - 2)",
            says="the last K block's product is not in the result",
        ),
        Mistake(
            "keeps the first K block's product only",
            old="k == pl.num_programs(2) - 1",
            new="k == 0",
            says="either the product is added at k = 0 alone, or the sum is stored there. Add at every "
            "step, and store at the last k, num_programs - 1",
        ),
        Mistake(
            "zeroes the accumulator where j is 0",
            old="pl.when(k == 0)",
            new="pl.when(pl.program_id(1) == 0)",
            says="k is program id 2: the first column of output blocks starts over at every step, and "
            "the others add to what was there",
        ),
        Mistake(
            "zeroes the accumulator in the very first grid step only",
            old="pl.when(k == 0)",
            new="pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0) & (k == 0))",
            says="scratch keeps the sum of the output block before: each (i, j) needs its own zero",
        ),
        Mistake(
            "rounds outside of the kernel",
            edits=(
                (
                    "jax.ShapeDtypeStruct((M, N), a.dtype)",
                    "jax.ShapeDtypeStruct((M, N), jnp.float32)",
                ),
                (")(a, b)", ")(a, b).astype(a.dtype)"),
            ),
            says="the kernel writes float32",
            stage="work",
        ),
        Mistake(
            "returns f32",
            edits=(
                ("jax.ShapeDtypeStruct((M, N), a.dtype)", "jax.ShapeDtypeStruct((M, N), jnp.float32)"),
            ),
            says="wrong dtype: expected bfloat16, got float32",
        ),
        Mistake(
            "takes all of K in one block",
            old="grid=(M // bm, N // bn, K // bk)",
            new="grid=(M // bm, N // bn, K // (bk := K))",
            says="for blocks of (128, 16384): take smaller ones",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative(
            "stores at every step",
            old="    @pl.when(k == pl.num_programs(2) - 1)\n    def _():\n"
            "        o_ref[...] = acc_ref[...].astype(o_ref.dtype)\n",
            new="    o_ref[...] = acc_ref[...].astype(jnp.bfloat16)\n",
        ),
        Alternative(
            "uses matmul and dot_general's own argument",
            old=_DOT,
            new="jax.lax.dot_general(a_ref[...], b_ref[...], (((1,), (0,)), ((), ())), "
            "preferred_element_type=jnp.float32)",
        ),
        Alternative("takes other blocks", old="bk: int = 256", new="bk: int = 512"),
        Alternative(
            "sums in another order",
            edits=(
                ("lambda i, j, k: (i, k)", "lambda i, j, k: (i, K // bk - 1 - k)"),
                ("lambda i, j, k: (k, j)", "lambda i, j, k: (K // bk - 1 - k, j)"),
            ),
        ),
        Alternative(
            "chooses by jnp.where, in a kernel from a factory",
            code="""
def make_kernel(out, total=jnp.float32):
    def kernel(a_ref, b_ref, o_ref, acc_ref):
        product = jax.lax.dot(a_ref[...], b_ref[...], preferred_element_type=total)
        done = jnp.where(pl.program_id(2) > 0, acc_ref[...] + product, product)
        acc_ref[...] = done
        jax.lax.cond(
            pl.program_id(2) == pl.num_programs(2) - 1,
            lambda: o_ref.__setitem__(..., done.astype(out)),
            lambda: None,
        )

    return kernel


matmul_bf16_kernel = make_kernel(jnp.bfloat16)
matmul_bf16 = jax.jit(matmul_bf16, static_argnames=("bm", "bk", "bn"))
""",
        ),
    ],
    audit=audit,
)
