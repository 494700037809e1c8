"""Puzzle 14: an epilogue that costs no traffic."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, BFloat16, Float

from puzzles import INTERPRET

# %% [markdown]
# ## fused_matmul: finish the job while it is in VMEM
#
# Here is a layer: `gelu(a @ b + bias)`. In plain JAX, XLA **fuses** bias and activation into its
# matmul by itself. But it cannot look into your kernel: if you add and activate outside, the
# product may go to HBM, come back, and go out again. So a kernel that replaces XLA's matmul should
# finish the layer.
#
# At the last k, the finished sum is in VMEM. Any work on it *there*, before the store, moves no
# bytes except the bias. But an activation is not linear: it has to see the **complete** sum, with
# the bias in it **once**.
#
# ![The bias block is fetched once for an output block and reused at every k; the output is written after the last k.](diagrams/basics/fused_matmul.svg)
#
# Use `jax.nn.gelu(x, approximate=True)`: the exact form needs `erfc`, which Pallas has no TPU
# lowering for. The bias arrives as a row, `(1, bn)`.


# %%
def fused_matmul_spec(
    a: BFloat16[Array, "M K"], b: BFloat16[Array, "K N"], bias: Float[Array, " N"]
) -> BFloat16[Array, "M N"]:
    x = jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32)) + bias
    return jax.nn.gelu(x, approximate=True).astype(jnp.bfloat16)


# %%
def fused_matmul_kernel(a_ref, b_ref, bias_ref, o_ref, acc_ref):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        # The complete sum, with the bias in it: call it x.
        ### BEGIN SOLUTION
        x = acc_ref[...] + bias_ref[...]
        ### END SOLUTION
        # Activate x, and store it in bf16.
        ### BEGIN SOLUTION
        o_ref[...] = jax.nn.gelu(x, approximate=True).astype(o_ref.dtype)
        ### END SOLUTION


def fused_matmul(
    a: BFloat16[Array, "M K"],
    b: BFloat16[Array, "K N"],
    bias: Float[Array, " N"],
    *,
    bm: int = 128,
    bk: int = 256,
    bn: int = 128,
) -> BFloat16[Array, "M N"]:
    (M, K), (_, N) = a.shape, b.shape
    return pl.pallas_call(
        fused_matmul_kernel,
        grid=(M // bm, N // bn, K // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            pl.BlockSpec((1, bn), lambda i, j, k: (0, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), a.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=INTERPRET,
    )(a, b, bias.reshape(1, N))


# %% [markdown]
# What does it save? Here are two receipts for a layer of 8192 tokens, 4096 → 4096, in large blocks:
# the bare matmul, and the reference fused kernel. The reads differ by 128 KiB, for the bias.
# Outside the kernel, bias and activation would read and write the product once more: 128 MiB on top
# of the 576 MiB of the bare matmul, unless XLA finds room for the product in VMEM.

# %% active="ipynb"
# operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8192, 4096), (4096, 4096))]
# bias = jax.ShapeDtypeStruct((4096,), jnp.float32)
# blocks = dict(bm=1024, bk=512, bn=1024)
# receipt(functools.partial(find("matmul_bf16").solution, **blocks), *operands)
# receipt(functools.partial(find("fused_matmul").solution, **blocks), *operands, bias)

# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng
from puzzles.basics._audits import narrow, product_by_dots


def make_inputs(key, M, K, N):
    # As in matmul_bf16, the sum runs far away from the result and back: above zero, then below.
    r = rng(key)
    quarter = np.arange(K) // (K // 4)
    a = (r.normal(size=(M, K)) + np.where((quarter == 0) | (quarter == 3), 2, -2)) / 64
    b, bias = r.normal(2, 1, (K, N)), r.normal(size=N)
    bias[5::64], bias[37::64] = 12, -12  # an exponential of such a number overflows
    return array(a, jnp.bfloat16), array(b, jnp.bfloat16), array(bias, jnp.float32)


def scale(M=4096, K=16384, N=2048):
    shapes = [(M, K), (K, N)]
    return *(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes), jax.ShapeDtypeStruct(
        (N,), jnp.float32
    )


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(M=256, K=2048, N=128)
    M, K, N = [(128, 3072, 384), (384, 1024, 128), (128, 1024, 640), (128, 4096, 256)][
        r.integers(4)
    ]
    return dict(M=M, K=K, N=N)


def audit(launch: Launch, *, args) -> None:
    (M, K), N = args[0].shape, args[1].shape[1]
    product_by_dots(launch, M, K, N)
    narrow(launch)


PUZZLE = Puzzle(
    spec=fused_matmul_spec,
    solution=fused_matmul,
    inputs=make_inputs,
    cases=[dict(M=256, K=2048, N=128), dict(M=256, K=1024, N=768, bm=64, bk=512, bn=384)],
    fresh=fresh,
    scale=scale,
    par=lambda launch: (
        f"{launch.transcendentals:,} tanhs, {launch.hbm_bytes_written / 2**20:.0f} MiB written"
    ),
    hints=[
        "When is the sum complete, and still in VMEM? That is where bias and activation belong.",
        "`bias_ref[...]` is a row, (1, bn), and broadcasts against the accumulator. "
        "`jax.nn.gelu(x, approximate=True)` is the tanh form.",
        "One line in each gap: add the bias to the accumulator's value; then activate, convert "
        "and store.",
    ],
    explain="""At the last k the complete sum is in VMEM, so bias and activation cost arithmetic but
    no traffic. Both come before the one rounding to bf16.""",
    audit=audit,
)
