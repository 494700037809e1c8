"""Rung 10: a blocked matmul with an accumulator in scratch."""

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
# Three axes, one after another. Look at what is fetched again, and how often.
#
# One thing differs on a TPU: by default, a dot there rounds f32 factors to bf16. A CPU does not.
# `precision=jax.lax.Precision.HIGHEST` keeps f32, at the price of several passes. (What the receipt
# says of FLOPs and the roof, `choose_blocks` explains, at the end of this part.)

# %% active="ipynb"
# show(tiled_matmul)

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
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


_ZERO = """    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

"""
_STORE = """    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]
"""
_DOT = "jnp.dot(a_ref[...], b_ref[...])"

PUZZLE = Puzzle(
    spec=tiled_matmul_spec,
    solution=tiled_matmul,
    inputs=make_inputs,
    cases=[dict(M=128, K=384, N=512), dict(M=192, K=128, N=512)],
    fresh=fresh,
    scale=scale,
    par=lambda launch: f"{launch.hbm_bytes_read / 2**30:.1f} GiB read in {counted(launch.steps, 'step')}",
    hints=[
        "An output block is finished only at the last k. What has to happen once before the first "
        "product, at every step, and once after the last one?",
        "`pl.program_id(2)` is k, `pl.num_programs(2)` is how many there are. `@pl.when(condition)` "
        "guards the function below it.",
        "Three parts: zero the accumulator under one `pl.when`; add a block product to it, "
        "unguarded; store it under another `pl.when`.",
    ],
    explain="""With k innermost, all steps of one output block are consecutive, so one accumulator is
    enough for all blocks. Zeros at the first k separate each from the one before; the reference stores
    at the last k, so it writes only finished sums.""",
    mistakes=[
        Mistake(
            "leaves garbage in the accumulator or in the output",
            old=_ZERO,
            new="",
            says="every number is garbage (NaN here), by one of these: the accumulator was not zeroed at "
            "k = 0, which nobody does for you; nothing was stored at the last k, num_programs - 1; the "
            "sum was added to what the output held, by `+=`. k is `pl.program_id(2)`",
        ),
        Mistake(
            "keeps the last K block's product only",
            old=_ZERO,
            new="    acc_ref[...] = jnp.zeros_like(acc_ref)\n",
            says="one of these: zeros are stored at every k, and not at k = 0 alone; a product is stored "
            "by `=`, and not added by `acc_ref[...] +=`",
        ),
        Mistake(
            "stores at a k that never comes",
            old="pl.num_programs(2) - 1)",
            new="pl.num_programs(2))",
            says="k runs from 0 to `pl.num_programs(2) - 1`, so nothing is stored in the output",
        ),
        Mistake(
            "never stores its sum",
            old=_STORE,
            new="",
            says="the accumulator is scratch, and the output gets what is stored in `o_ref`: at the last "
            "k, that is to be the sum",
        ),
        Mistake(
            "stores each product over the sum",
            old="acc_ref[...] += ",
            new="acc_ref[...] = ",
            says="a product is added to the accumulator, by `acc_ref[...] +=`",
        ),
        Mistake(
            "zeroes the accumulator in the very first grid step only",
            old="pl.when(k == 0)",
            new="pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0) & (k == 0))",
            says="scratch keeps the sum of the output block before: each (i, j) needs its own zero",
        ),
        Mistake(
            "zeroes the accumulator where i is 0",
            old="pl.when(k == 0)",
            new="pl.when(pl.program_id(0) == 0)",
            says="k is program id 2: the first row of output blocks starts over at every step, and the "
            "others add to what was there",
        ),
        Mistake(
            "zeroes the accumulator where j is 0",
            old="pl.when(k == 0)",
            new="pl.when(pl.program_id(1) == 0)",
            says="k is program id 2: the first column of output blocks starts over at every step, and "
            "the others add to what was there",
        ),
        Mistake(
            "zeroes the accumulator after a store only",
            edits=(
                (_ZERO, ""),
                (_STORE, f"{_STORE}        acc_ref[...] = jnp.zeros_like(acc_ref)\n"),
            ),
            says="the first output block adds to garbage (NaN here), since nobody has zeroed the "
            "scratch before the first step; zero it at k = 0",
        ),
        Mistake(
            "keeps the first K block's product only",
            old="k == pl.num_programs(2) - 1",
            new="k == 0",
            says="either the product is added at k = 0 alone, or the sum is stored there. Add at every "
            "step, and store at the last k, num_programs - 1",
        ),
        Mistake(
            "leaves out the first K block's product",
            old=f"    acc_ref[...] += {_DOT}\n",
            new=f"    @pl.when(k > 0)\n    def _():\n        acc_ref[...] += {_DOT}\n",
            says="the step that zeroes the accumulator has a product to add, too: zero first, then add, "
            "at k = 0 as at every other k",
        ),
        Mistake(
            "has the last k of one case written into it",
            old="pl.num_programs(2) - 1)",
            new="2)",
            says="k = 2 is the last one where there are three blocks of K; ask "
            "`pl.num_programs(2) - 1`",
        ),
        Mistake(
            "multiplies in bf16",
            old=_DOT,
            new="jnp.dot(a_ref[...].astype(jnp.bfloat16), b_ref[...].astype(jnp.bfloat16), "
            "preferred_element_type=jnp.float32)",
            says="the cast rounds every factor to 8 bits, on every machine: leave the blocks as they come",
        ),
        Mistake(
            "stores one step early",
            old="pl.num_programs(2) - 1)",
            new="pl.num_programs(2) - 2)",
            says="the last K block's product is not in the result; the last k is "
            "`pl.num_programs(2) - 1`",
        ),
        Mistake(
            "swaps the factors",
            old="jnp.dot(a_ref[...], b_ref[...]",
            new="jnp.dot(b_ref[...], a_ref[...]",
            says="The axes that are summed over must be equally long",
            stage="error",
        ),
        Mistake(
            "multiplies element by element",
            old=_DOT,
            new="a_ref[...] * b_ref[...]",
            says="`*` multiplies element by element. A product of matrices is `jnp.dot(x, y)`.",
            stage="error",
        ),
        Mistake(
            "swaps the index map of `b`",
            old="lambda i, j, k: (k, j)",
            new="lambda i, j, k: (j, k)",
            says="`b` is K × N: its row of blocks is k, its column of blocks is j",
        ),
        Mistake(
            "rounds every block product to bf16",
            old=_DOT,
            new="jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.bfloat16)",
            says="`preferred_element_type` is the type of the dot's result: leave it f32",
        ),
        Mistake(
            "takes all of K in one block",
            old="bm, bk, bn = 64, 128, 256",
            new="bm, bk, bn = 64, K, 256",
            says="for blocks of (16384, 256): take smaller ones",
            stage="work",
        ),
        Mistake(
            "makes partial products in the kernel and adds them up outside",
            code="""
def tiled_matmul(a, b):
    (M, K), (_, N) = a.shape, b.shape
    parts = pl.pallas_call(
        lambda a_ref, b_ref, o_ref: o_ref.__setitem__(..., jnp.dot(a_ref[...], b_ref[...])),
        grid=(M // 128, N // 128, K // 128),
        in_specs=[
            pl.BlockSpec((128, 128), lambda i, j, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((None, 128, 128), lambda i, j, k: (k, i, j)),
        out_shape=jax.ShapeDtypeStruct((K // 128, M, N), jnp.float32),
        interpret=INTERPRET,
    )(a, b)
    return parts.sum(axis=0)
""",
            says="works on the data outside the kernel",
            stage="pallas",
        ),
        Mistake(
            "puts k outermost",
            edits=(
                ("grid=(M // bm, N // bn, K // bk)", "grid=(K // bk, M // bm, N // bn)"),
                ("lambda i, j, k: (i, k)", "lambda k, i, j: (i, k)"),
                ("lambda i, j, k: (k, j)", "lambda k, i, j: (k, j)"),
                ("lambda i, j, k: (i, j)", "lambda k, i, j: (i, j)"),
                ("k = pl.program_id(2)", "k = pl.program_id(0)"),
                (_ZERO, "    @pl.when(k == 0)\n    def _():\n        o_ref[...] = jnp.zeros_like(o_ref)\n\n"),
                (f"    acc_ref[...] += {_DOT}\n\n{_STORE}", f"    o_ref[...] += {_DOT}\n"),
            ),
            says="is visited again at grid step",
            stage="memory",
        ),
    ],
    alternatives=[
        Alternative("stores at every step", old=_STORE, new="    o_ref[...] = acc_ref[...]\n"),
        Alternative(
            "accumulates in o_ref",
            code="""
def tiled_matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)
""",
        ),
        Alternative(
            "stores the first product instead of zeroing",
            code="""
def tiled_matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    product = jax.lax.dot_general(
        a_ref[...], b_ref[...], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    first = pl.program_id(2) == 0

    @pl.when(first)
    def _():
        acc_ref[...] = product

    @pl.when(jnp.logical_not(first))
    def _():
        acc_ref[...] += product

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]
""",
        ),
        Alternative(
            "walks the output blocks column by column",
            edits=(
                ("grid=(M // bm, N // bn, K // bk)", "grid=(N // bn, M // bm, K // bk)"),
                ("lambda i, j, k: (i, k)", "lambda j, i, k: (i, k)"),
                ("lambda i, j, k: (k, j)", "lambda j, i, k: (k, j)"),
                ("lambda i, j, k: (i, j)", "lambda j, i, k: (i, j)"),
            ),
        ),
        Alternative(
            "takes other blocks",
            old="bm, bk, bn = 64, 128, 256",
            new="bm, bk, bn = 32, 128, N",
        ),
        Alternative(
            "chooses the start with jnp.where, under jit",
            code="""
def tiled_matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    before = jnp.where(pl.program_id(2) == 0, 0.0, acc_ref[...])
    o_ref[...] = acc_ref[...] = before + a_ref[...] @ b_ref[...]


tiled_matmul = jax.jit(tiled_matmul)
""",
        ),
        Alternative(
            "adds up a block's two halves in a helper",
            code="""
def half(a_ref, b_ref, n):
    rows = pl.ds(n * (b_ref.shape[0] // 2), b_ref.shape[0] // 2)
    return jnp.matmul(a_ref[:, rows], b_ref[rows], preferred_element_type=jnp.float32)


def tiled_matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    pl.when(pl.program_id(2) == 0)(lambda: acc_ref.__setitem__(..., jnp.zeros(acc_ref.shape)))
    for n in range(2):
        acc_ref[:, :] += half(a_ref, b_ref, n)
    pl.when(pl.program_id(2) + 1 == pl.num_programs(2))(
        lambda: o_ref.__setitem__(..., acc_ref[...])
    )
""",
        ),
        Alternative(
            "lets a pipeline inside one step walk the blocks",
            code="""
def tiled_matmul(a, b, bm=64, bk=128, bn=256):
    (M, K), (_, N) = a.shape, b.shape

    def kernel(a_ref, b_ref, o_ref, acc_ref):
        pipeline = pltpu.emit_pipeline(
            lambda a_ref, b_ref, o_ref: tiled_matmul_kernel(a_ref, b_ref, o_ref, acc_ref),
            grid=(M // bm, N // bn, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            ],
            out_specs=[pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))],
        )
        pipeline(a_ref, b_ref, o_ref)

    far = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        in_specs=[far, far],
        out_specs=far,
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        interpret=INTERPRET,
    )(a, b)
""",
        ),
        Alternative(
            "copies the blocks of a and b itself",
            code="""
def tiled_matmul(a, b, bm=64, bk=128, bn=256):
    (M, K), N = a.shape, b.shape[1]

    def kernel(a_ref, b_ref, o_ref, a_buf, b_buf, acc_ref, sems):
        i, j = pl.program_id(0), pl.program_id(1)
        acc_ref[...] = jnp.zeros_like(acc_ref)

        def add(k, _):
            copies = [
                pltpu.make_async_copy(
                    a_ref.at[pl.ds(i * bm, bm), pl.ds(k * bk, bk)], a_buf, sems.at[0]
                ),
                pltpu.make_async_copy(
                    b_ref.at[pl.ds(k * bk, bk), pl.ds(j * bn, bn)], b_buf, sems.at[1]
                ),
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()
            acc_ref[...] += jnp.dot(a_buf[...], b_buf[...])
            return 0

        jax.lax.fori_loop(0, K // bk, add, 0)
        o_ref[...] = acc_ref[...]

    far = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        grid=(M // bm, N // bn),
        in_specs=[far, far],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), a.dtype),
        scratch_shapes=[
            pltpu.VMEM((bm, bk), a.dtype),
            pltpu.VMEM((bk, bn), b.dtype),
            pltpu.VMEM((bm, bn), jnp.float32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        interpret=INTERPRET,
    )(a, b)
""",
        ),
    ],
    audit=audit,
)
