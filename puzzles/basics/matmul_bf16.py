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
# neighbouring bf16 numbers are 2 apart. For a running sum that is too few: add 0.5 to 256 in bf16
# and you have 256.
#
# So store and move bf16, but accumulate f32. `preferred_element_type=jnp.float32` asks a dot for an
# f32 result, and the accumulator is f32. Rounding happens **once**, at the end.
#
# Two lines of `tiled_matmul`'s kernel are yours.

# %%
def matmul_bf16_spec(a: BFloat16[Array, "M K"], b: BFloat16[Array, "K N"]) -> BFloat16[Array, "M N"]:
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
# Narrow numbers are packed: two rows of bf16, or four of int8, share the words of one row of f32. So
# a block of 8 rows takes half the VMEM in bf16. An int8 array whose rows divide by 32 lies in HBM in
# tiles of 32 rows, and a block cannot cut one: take a multiple of 32, or the whole axis.

# %% tags=["author"]
import numpy as np

from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
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
    M, K, N = [(128, 4096, 128), (384, 1024, 128), (128, 1024, 640), (128, 2048, 384)][r.integers(4)]
    return dict(M=M, K=K, N=N)


def audit(launch: Launch, *, args) -> None:
    (M, K), N = args[0].shape, args[1].shape[1]
    product_by_dots(launch, M, K, N)
    narrow(launch)


_DOT = "jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)"
_ADD = f"    acc_ref[...] += {_DOT}\n"
_STORE = "o_ref[...] = acc_ref[...].astype(o_ref.dtype)"

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
    par=lambda launch: f"{launch.hbm_bytes_read / 2**30:.1f} GiB read in {counted(launch.steps, 'step')}",
    hints=[
        "It is tiled_matmul, but two places decide the precision: what a dot returns, and when the "
        "sum is rounded.",
        "`preferred_element_type=jnp.float32` makes the dot of two bf16 blocks return f32. "
        "`.astype(o_ref.dtype)` rounds.",
        "First gap: add a block product, asked for in f32, to the accumulator. Second gap: convert the "
        "accumulator, and store it.",
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
            "lets the dot return bf16",
            old=", preferred_element_type=jnp.float32",
            new="",
            says="the dot of two bf16 blocks is rounded to bf16 unless you ask for f32, by "
            "`preferred_element_type=jnp.float32`; no cast gets back what it has lost",
        ),
        Mistake(
            "rounds the running sum at every step",
            old=_ADD,
            new="    total = acc_ref[...] + " + _DOT + "\n"
            "    acc_ref[...] = total.astype(jnp.bfloat16).astype(jnp.float32)\n",
            says="an f32 accumulator that is cast to bf16 at every step is a bf16 one: round once, at the "
            "store",
        ),
        Mistake(
            "rounds the sum before the last block is added",
            edits=(
                (
                    _ADD,
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
            says="What is stored must have the Ref's dtype",
            stage="error",
        ),
        Mistake(
            "adds the sum to what the output held",
            old=_STORE,
            new=_STORE.replace("=", "+="),
            says="every number is garbage (NaN here): an output block holds garbage until it is written, "
            "so store with `=`",
        ),
        Mistake(
            "keeps the last K block's product only",
            old="acc_ref[...] += jnp.dot",
            new="acc_ref[...] = jnp.dot",
            says="every step stores its own product over the sum so far: add, by `+=`",
        ),
        Mistake(
            "keeps the first K block's product only",
            old=_ADD,
            new=f"    @pl.when(k == 0)\n    def _():\n    {_ADD}",
            says="the product is added at k = 0 alone: add at every step",
        ),
        Mistake(
            "counts the last K block twice",
            old=_STORE,
            new=_STORE.replace("acc_ref[...]", f"(acc_ref[...] + {_DOT})"),
            says="at the last k its product is in the accumulator already: store what is there",
        ),
        Mistake(
            "swaps the factors",
            old="jnp.dot(a_ref[...], b_ref[...]",
            new="jnp.dot(b_ref[...], a_ref[...]",
            says="what is stored must have the shape of the output block",
            stage="error",
        ),
        Mistake(
            "contracts the columns of both",
            old=_DOT,
            new="jax.lax.dot_general(a_ref[...], b_ref[...], (((1,), (1,)), ((), ())), "
            "preferred_element_type=jnp.float32)",
            says="The axes that are summed over must be equally long",
            stage="error",
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
            old=_ADD,
            new=f"{_ADD}    o_ref[...] = acc_ref[...].astype(jnp.bfloat16)\n",
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
