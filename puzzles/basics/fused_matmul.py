"""Rung 14: an epilogue that costs no traffic."""

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
# matmul by itself. But it cannot look into your kernel: activated outside, the product may go to
# HBM, come back, and go out again. Whoever takes the matmul away from XLA owes it the rest.
#
# At the last k, the finished sum lies in VMEM. What you do to it *there*, before the store, moves no
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
# the bare matmul, and the reference fused kernel. The reads differ by 128 KiB, for the bias. Outside,
# bias and activation would read and write the product once more: 128 MiB beside the 576 MiB of the
# bare matmul, unless XLA finds room for the product in VMEM.

# %% active="ipynb"
# operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8192, 4096), (4096, 4096))]
# bias = jax.ShapeDtypeStruct((4096,), jnp.float32)
# blocks = dict(bm=1024, bk=512, bn=1024)
# receipt(functools.partial(find("matmul_bf16").solution, **blocks), *operands)
# receipt(functools.partial(find("fused_matmul").solution, **blocks), *operands, bias)

# %% tags=["author"]
import numpy as np

from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
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
    return *(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes), jax.ShapeDtypeStruct((N,), jnp.float32)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(M=256, K=2048, N=128)
    M, K, N = [(128, 3072, 384), (384, 1024, 128), (128, 1024, 640), (128, 4096, 256)][r.integers(4)]
    return dict(M=M, K=K, N=N)


def audit(launch: Launch, *, args) -> None:
    (M, K), N = args[0].shape, args[1].shape[1]
    product_by_dots(launch, M, K, N)
    narrow(launch)


_ADD = (
    "acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)"
)
_GELU = "o_ref[...] = jax.nn.gelu(x, approximate=True)"

PUZZLE = Puzzle(
    spec=fused_matmul_spec,
    solution=fused_matmul,
    inputs=make_inputs,
    cases=[dict(M=256, K=2048, N=128), dict(M=256, K=1024, N=768, bm=64, bk=512, bn=384)],
    fresh=fresh,
    scale=scale,
    par=lambda launch: f"{launch.transcendentals:,} tanhs, {launch.hbm_bytes_written / 2**20:.0f} MiB written",
    hints=[
        "When is the sum complete, and still in VMEM? That is where bias and activation belong.",
        "`bias_ref[...]` is a row, (1, bn), and broadcasts against the accumulator. "
        "`jax.nn.gelu(x, approximate=True)` is the tanh form.",
        "One line in each gap: add the bias to the accumulator's value; then activate, convert and store.",
    ],
    explain="""At the last k the complete sum is in VMEM, so bias and activation cost arithmetic but
    no traffic. Both come before the one rounding to bf16.""",
    mistakes=[
        Mistake(
            "activates the accumulator at every k step",
            edits=(
                (_ADD, f"{_ADD}\n    acc_ref[...] = jax.nn.gelu(acc_ref[...], approximate=True)"),
                (_GELU, "o_ref[...] = x"),
            ),
            says="an activation is not linear: it needs the complete sum, and only once",
        ),
        Mistake(
            "activates every block product",
            edits=(
                (_ADD, _ADD.replace("+= jnp", "+= jax.nn.gelu(jnp") + ", approximate=True)"),
                (_GELU, "o_ref[...] = x"),
            ),
            says="an activation is not linear: the sum of activated parts is not the activated sum",
        ),
        Mistake(
            "rounds the sum before it adds the bias",
            old="x = acc_ref[...] + bias_ref[...]",
            new="x = acc_ref[...].astype(jnp.bfloat16) + bias_ref[...].astype(jnp.bfloat16)",
            says="bias_ref[...].astype(jnp.bfloat16)` computes in bfloat16",
            stage="work",
        ),
        Mistake(
            "finishes in the output Ref",
            edits=(
                (
                    "x = acc_ref[...] + bias_ref[...]",
                    "o_ref[...] = acc_ref[...].astype(o_ref.dtype)\n"
                    "        o_ref[...] = (o_ref[...] + bias_ref[...]).astype(o_ref.dtype)",
                ),
                (_GELU, _GELU.replace("(x,", "(o_ref[...].astype(jnp.float32),")),
            ),
            says="reads back what was rounded to bfloat16 when it was stored, and computes with it",
            stage="work",
        ),
        Mistake(
            "adds the bias at every k step",
            edits=(
                (_ADD, f"{_ADD} + bias_ref[...]"),
                ("x = acc_ref[...] + bias_ref[...]", "x = acc_ref[...]"),
            ),
            says="the bias is in the sum once for every K block",
        ),
        Mistake(
            "adds the bias at every k step and once more at the end",
            old=_ADD,
            new=f"{_ADD} + bias_ref[...]",
            says="the bias is in the sum once for every K block, and then again: add it at the last k "
            "alone",
        ),
        Mistake(
            "subtracts the bias",
            old="acc_ref[...] + bias_ref[...]",
            new="acc_ref[...] - bias_ref[...]",
            says="the spec adds it",
        ),
        Mistake(
            "adds the bias after the activation",
            edits=(
                ("x = acc_ref[...] + bias_ref[...]", "x = acc_ref[...]"),
                (
                    f"{_GELU}.astype",
                    "o_ref[...] = (jax.nn.gelu(x, approximate=True) + bias_ref[...]).astype",
                ),
            ),
            says="the spec activates the sum with the bias in it",
        ),
        Mistake(
            "forgets the bias",
            old="x = acc_ref[...] + bias_ref[...]",
            new="x = acc_ref[...]",
            says="what is stored does not have the bias in it: add `bias_ref[...]` before the activation",
        ),
        Mistake(
            "forgets the activation",
            old=_GELU,
            new="o_ref[...] = x",
            says="the sum is stored as it is, negative numbers and all",
        ),
        Mistake(
            "uses ReLU",
            old=_GELU,
            new="o_ref[...] = jax.nn.relu(x)",
            says="GELU is smooth and slightly negative left of zero",
        ),
        Mistake(
            "adds the bias twice",
            old="x = acc_ref[...] + bias_ref[...]",
            new="x = acc_ref[...] + 2 * bias_ref[...]",
            says="the bias belongs to the sum once",
        ),
        Mistake(
            "stores into the accumulator instead of the output",
            old=f"{_GELU}.astype(o_ref.dtype)",
            new="acc_ref[...] = jax.nn.gelu(x, approximate=True)",
            says="every number is garbage (NaN here), by one of these: the result stays in scratch, which "
            "never leaves the chip; it is added to what the output held, by `+=`",
        ),
        Mistake(
            "rounds the sum before it activates",
            old=_GELU,
            new=_GELU.replace("(x,", "(x.astype(o_ref.dtype),"),
            says="jax.nn.gelu(x.astype(o_ref.dtype), approximate=True).astype(o_ref.dtype)` computes in bfloat16",
            stage="work",
        ),
        Mistake(
            "activates the sum and the bias apart",
            old=f"{_GELU}.astype",
            new="o_ref[...] = (jax.nn.gelu(acc_ref[...]) + jax.nn.gelu(bias_ref[...])).astype",
            says="an activation is not linear: add first, activate once",
        ),
        Mistake(
            "activates twice",
            old=_GELU,
            new=_GELU.replace("(x,", "(jax.nn.gelu(x, approximate=True),"),
            says="the spec activates once",
        ),
        Mistake(
            "adds the bias down the rows",
            old="x = acc_ref[...] + bias_ref[...]",
            new="x = acc_ref[...] + bias_ref[...].reshape(-1, 1)",
            says="every column has a bias of its own: as a row, `bias_ref[...]` broadcasts down by itself",
        ),
        Mistake(
            "adds one number of the bias everywhere",
            old="x = acc_ref[...] + bias_ref[...]",
            new="x = acc_ref[...] + bias_ref[0, 0]",
            says="`bias_ref[0, 0]` is one number; `bias_ref[...]` has one for each column",
        ),
        Mistake(
            "multiplies by the bias",
            old="x = acc_ref[...] + bias_ref[...]",
            new="x = acc_ref[...] * bias_ref[...]",
            says="the spec adds the bias",
        ),
        Mistake(
            "uses the quick GELU",
            old=_GELU,
            new="o_ref[...] = (x * jax.nn.sigmoid(1.702 * x))",
            says="x · sigmoid(1.702 x) is up to 0.02 away from the spec's `jax.nn.gelu(x, approximate=True)`",
        ),
        Mistake(
            "uses SiLU",
            old=_GELU,
            new="o_ref[...] = jax.nn.silu(x)",
            says="the spec wants `jax.nn.gelu(x, approximate=True)`",
        ),
        Mistake(
            "activates the sum and the bias at every k step",
            edits=(
                (_ADD, f"{_ADD} + bias_ref[...]\n    acc_ref[...] = jax.nn.gelu(acc_ref[...])"),
                (_GELU, "o_ref[...] = acc_ref[...]"),
            ),
            says="an activation is not linear: it needs the complete sum, with the bias in it once, and "
            "that is there at the last k",
        ),
        Mistake(
            "multiplies in f32",
            old=_ADD,
            new=_ADD.replace("a_ref[...]", "a_ref[...].astype(jnp.float32)").replace(
                "b_ref[...]", "b_ref[...].astype(jnp.float32)"
            ),
            says="leave the blocks in bf16",
            stage="work",
        ),
        Mistake(
            "takes all of K in one block",
            old="grid=(M // bm, N // bn, K // bk)",
            new="grid=(M // bm, N // bn, K // (bk := K))",
            says="for blocks of (128, 16384): take smaller ones",
            stage="work",
        ),
        Mistake(
            "takes the same block of the bias for every column",
            old="lambda i, j, k: (0, j)",
            new="lambda i, j, k: (0, 0)",
            says="`bias` is cut into blocks along N, and its index map ignores j",
        ),
        Mistake(
            "activates outside the kernel",
            edits=(
                (_GELU, "o_ref[...] = x"),
                ("    return pl.pallas_call(", "    x = pl.pallas_call("),
                (
                    ")(a, b, bias.reshape(1, N))",
                    ")(a, b, bias.reshape(1, N))\n    return jax.nn.gelu(x, approximate=True)",
                ),
            ),
            says="works on the data outside the kernel",
            stage="pallas",
        ),
        Mistake(
            "uses the exact GELU",
            old="approximate=True).astype(o_ref",
            new="approximate=False).astype(o_ref",
            says="the tanh form of GELU lowers: `jax.nn.gelu(x)`",
            stage="tpu",
        ),
        Mistake(
            "activates at every k step and keeps only the last",
            edits=(
                (
                    "    @pl.when(k == pl.num_programs(2) - 1)\n    def _():\n",
                    "    if True:\n",
                ),
            ),
            says="compute each of them once",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative(
            "starts the accumulator with the bias",
            edits=(
                (
                    "acc_ref[...] = jnp.zeros_like(acc_ref)",
                    "acc_ref[...] = jnp.broadcast_to(bias_ref[...], acc_ref.shape)",
                ),
                ("x = acc_ref[...] + bias_ref[...]", "x = acc_ref[...]"),
            ),
        ),
        Alternative(
            "writes the tanh form out",
            old=_GELU,
            new="o_ref[...] = (0.5 * x * (1 + jnp.tanh(0.7978845608 * (x + 0.044715 * x**3))))",
        ),
        Alternative(
            "takes other blocks",
            edits=(("bm: int = 128", "bm: int = 64"), ("bk: int = 256", "bk: int = 512")),
        ),
        Alternative(
            "builds its kernel and its epilogue from parts, under jit",
            code="""
def first(axis):
    return pl.program_id(axis) == 0


def last(axis):
    return pl.program_id(axis) == pl.num_programs(axis) - 1


def activate(x):
    return x * jax.nn.sigmoid(1.5957691216 * x * (1 + 0.044715 * x * x))


def accumulate(a_ref, b_ref, bias_ref, o_ref, acc_ref, *, epilogue, axis):
    product = jax.lax.dot_general(
        a_ref[...], b_ref[...], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    acc_ref[...] = product + jnp.where(first(axis), jnp.zeros_like(product), acc_ref[...])

    @pl.when(last(axis))
    def finish():
        o_ref[...] = epilogue(acc_ref[...] + bias_ref[0, :][None]).astype(jnp.bfloat16)


def fused_matmul_kernel(*refs):
    accumulate(*refs, epilogue=activate, axis=2)


fused_matmul = jax.jit(fused_matmul)
""",
        ),
    ],
    audit=audit,
)
