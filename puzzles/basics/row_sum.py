"""Rung 7: a reduction over the grid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## row_sum: one output block, many steps
#
# A row of `x` spans several blocks, so its sum takes several steps. All name the same block of the
# output, whose index map ignores `j`.
#
# ![During the three steps of a row, x's blocks are fetched one by one while the output block stays in VMEM; it is written after the third.](diagrams/basics/row_sum.svg)
#
# While the index does not change, the output block **stays in VMEM**, and what one step wrote the
# next can read and add to. So you can accumulate in `o_ref`, if
#
# * the steps that share an output block are **consecutive**: you sum over the grid's last axis;
# * your kernel writes the first value: every `i` begins with a fresh block of garbage.
#
# `@pl.when(condition)` runs the function below it only where `condition` holds, here in the last row
# of steps:
#
# ```python
# i = pl.program_id(0)
#
# @pl.when(i == pl.num_programs(0) - 1)
# def _():
#     ...
# ```
#
# Read program ids at the top: inside `pl.when` or a loop, interpret mode has none. A Ref has
# a `.shape` and a `.dtype`, so `jnp.zeros_like(o_ref)` makes zeros to store.

# %%
def row_sum_spec(x: Float[Array, "M N"]) -> Float[Array, "M 1"]:
    return jnp.sum(x, axis=1, keepdims=True)


# %%
def row_sum_kernel(x_ref, o_ref):
    ### BEGIN SOLUTION
    @pl.when(pl.program_id(1) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)
    ### END SOLUTION


def row_sum(x: Float[Array, "M N"]) -> Float[Array, "M 1"]:
    M, N = x.shape
    bm, bn = 64, 128
    return pl.pallas_call(
        row_sum_kernel,
        grid=(M // bm, N // bn),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((bm, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((M, 1), x.dtype),
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# Watch the output block stay while `j` runs, and go back to HBM when `i` moves on.
#
# <details>
# <summary>More: why (M, 1), and loops in a body</summary>
#
# A sum along the rows of a block, with `keepdims=True`, leaves a column. An output of shape (M,)
# would need 1-D blocks, and a TPU cuts none of 64 elements out of a longer array.
#
# A Python `for` in a body is unrolled: its lines are there as often as it runs. A real loop is
# `jax.lax.fori_loop(0, n, body, init)`. With `x_ref[pl.ds(8 * c, 8), :]` it reads eight rows at a
# time: `pl.ds(start, size)` is a slice whose start may be known only when it runs.
#
# </details>

# %% active="ipynb"
# show(row_sum)

# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, M, N):
    return (array(rng(key).normal(0.5, 1, (M, N)), jnp.float32),)


_ZERO = """    @pl.when(pl.program_id(1) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)
"""


def scale(M=1024, N=262144):
    # Eight of these rows, with a second buffer, are more than 16 MiB.
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def fresh(r):
    return dict(M=64 * int(r.integers(1, 5)), N=128 * int(r.choice([5, 9])))


PUZZLE = Puzzle(
    spec=row_sum_spec,
    solution=row_sum,
    inputs=make_inputs,
    cases=[dict(M=128, N=384), dict(M=192, N=128)],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # x is needed once
    par=lambda launch: f"{counted(launch.outputs[0].transfers, 'block of sums')} in {counted(launch.steps, 'step')}",
    hints=[
        "What must hold before the first addition of each row of blocks? In which steps is that?",
        "`@pl.when(condition)` guards the start; `pl.program_id(1)` is j. `jnp.sum(x, axis=1, keepdims=True)` "
        "gives a column for one block.",
        "Two parts: under `pl.when`, store zeros in the output Ref; then, unguarded, add this "
        "block's column of sums to it with `+=`.",
    ],
    explain="""Steps that share an output block are consecutive, and the block stays in VMEM between
    them. Zeros at j = 0 separate each row of blocks from the one before.""",
    mistakes=[
        Mistake(
            "leaves garbage in its output",
            old=_ZERO,
            new="",
            says="one of these: the sum was added to before anybody set it to zero; it was never "
            "stored. A fresh output block holds garbage (NaN here)",
        ),
        Mistake(
            "keeps only the last block's sum",
            old=_ZERO,
            new="    o_ref[...] = jnp.zeros_like(o_ref)\n",
            says="one of these: zeros are stored at every step or at the last, and not at j = 0 alone; a step stores "
            "its sum by `=`, and does not add it by `+=`",
        ),
        Mistake(
            "stores each block's sum over the sum so far",
            old="o_ref[...] += jnp.sum",
            new="o_ref[...] = jnp.sum",
            says="a block's sum is added, by `o_ref[...] +=`",
        ),
        Mistake(
            "sets the sum to zero in the very first grid step only",
            old=_ZERO,
            new=_ZERO.replace("pl.program_id(1)", "pl.program_id(0) + pl.program_id(1)"),
            says="every row of blocks has a fresh output block, and each needs its zeros",
        ),
        Mistake(
            "asks the wrong program id",
            old=_ZERO,
            new=_ZERO.replace("program_id(1)", "program_id(0)"),
            says="axis 1 is the one you sum over; axis 0 says which rows",
        ),
        Mistake(
            "keeps the first block's sum only",
            old="    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)",
            new="    @pl.when(pl.program_id(1) == 0)\n    def _():\n"
            "        o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)",
            says="the addition stands under `pl.when` too",
        ),
        Mistake(
            "leaves out the first block's sum",
            old="    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)",
            new="    @pl.when(pl.program_id(1) > 0)\n    def _():\n"
            "        o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)",
            says="the step that stores zeros has a block to add, too",
        ),
        Mistake(
            "goes through a row in a loop of its own",
            old="o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)",
            new="o_ref[...] = sum(\n"
            "        jnp.sum(x_ref[...], axis=1, keepdims=True) for _ in range(pl.num_programs(1))\n    )",
            says="`x_ref` is one block at every turn, so each step sums the same block over and over, and "
            "the last step's stays; the grid is the loop",
        ),
        Mistake(
            "counts the first block twice",
            old="        o_ref[...] = jnp.zeros_like(o_ref)\n",
            new="        o_ref[...] = jnp.sum(x_ref[...], axis=1, keepdims=True)\n",
            says="the first step stores its sum and then adds it as well",
        ),
        Mistake(
            "sums the whole block into one number",
            old="jnp.sum(x_ref[...], axis=1, keepdims=True)",
            new="jnp.sum(x_ref[...], keepdims=True)",
            says="every row gets the total of its block: sum along axis 1 only",
        ),
        Mistake(
            "takes the mean of each block",
            old="jnp.sum(x_ref[...], axis=1, keepdims=True)",
            new="jnp.mean(x_ref[...], axis=1, keepdims=True)",
            says="the spec adds up, and divides by nothing",
        ),
        Mistake(
            "drops the axis it sums over",
            old="axis=1, keepdims=True)\n    ### END",
            new="axis=1)\n    ### END",
            says="This Ref takes a column, (64, 1)",
            stage="error",
        ),
        Mistake(
            "takes whole rows in one block",
            edits=(("bm, bn = 64, 128", "bm, bn = 64, N"),),
            says="`x_ref` takes 128 MiB, for blocks of (64, 262144)",
            stage="work",
        ),
        Mistake(
            "sums over the outermost grid axis",
            edits=(
                ("grid=(M // bm, N // bn)", "grid=(N // bn, M // bm)"),
                (_ZERO, _ZERO.replace("program_id(1)", "program_id(0)")),
                ("(bm, bn), lambda i, j: (i, j)", "(bm, bn), lambda j, i: (i, j)"),
                ("(bm, 1), lambda i, j: (i, 0)", "(bm, 1), lambda j, i: (i, 0)"),
            ),
            says="is visited again at grid step",
            stage="memory",
        ),
    ],
    alternatives=[
        Alternative(
            "stores at the first step and adds at the others",
            old=_ZERO + "\n    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)",
            new="""    part = jnp.sum(x_ref[...], axis=1, keepdims=True)

    @pl.when(pl.program_id(1) == 0)
    def _():
        o_ref[...] = part

    @pl.when(pl.program_id(1) > 0)
    def _():
        o_ref[...] += part""",
        ),
        Alternative(
            "chooses the start with jnp.where",
            old=_ZERO + "\n    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)",
            new="""    before = jnp.where(pl.program_id(1) == 0, 0.0, o_ref[...])
    o_ref[...] = before + x_ref[...].sum(axis=1, keepdims=True)""",
        ),
        Alternative("takes other blocks", old="bm, bn = 64, 128", new="bm, bn = 32, 128"),
        Alternative(
            "multiplies by a column of ones, under jit",
            code="""
def row_sum_kernel(x_ref, o_ref):
    ones = jnp.ones((x_ref.shape[1], 1), jnp.float32)
    part = jax.lax.dot_general(
        x_ref[...],
        ones,
        (((1,), (0,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    jax.lax.cond(
        pl.program_id(1) == 0,
        lambda: o_ref.__setitem__(..., part),
        lambda: o_ref.__setitem__(..., o_ref[...] + part),
    )


row_sum = jax.jit(row_sum)
""",
        ),
        Alternative(
            "copies the blocks of its rows itself, one ahead",
            code="""
from jax.experimental.pallas import tpu as pltpu


def row_sum(x, bm=64, bn=128):
    (M, N) = x.shape
    n = N // bn

    def kernel(x_ref, o_ref, buffers, sems):
        i = pl.program_id(0)

        def fetch(j, slot):
            block = x_ref.at[pl.ds(i * bm, bm), pl.ds(j * bn, bn)]
            return pltpu.make_async_copy(block, buffers.at[slot], sems.at[slot])

        fetch(0, 0).start()
        o_ref[...] = jnp.zeros_like(o_ref)

        def add(j, _):
            slot = jax.lax.rem(j, 2)

            @pl.when(j + 1 < n)
            def _():
                fetch(j + 1, 1 - slot).start()

            fetch(j, slot).wait()
            o_ref[...] += jnp.sum(buffers[slot], axis=1, keepdims=True)
            return 0

        jax.lax.fori_loop(0, n, add, 0)

    return pl.pallas_call(
        kernel,
        grid=(M // bm,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((bm, 1), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((M, 1), x.dtype),
        scratch_shapes=[pltpu.VMEM((2, bm, bn), x.dtype), pltpu.SemaphoreType.DMA((2,))],
        interpret=INTERPRET,
    )(x)
""",
        ),
        Alternative(
            "lets a pipeline inside the kernel fetch the blocks",
            code="""
from jax.experimental.pallas import tpu as pltpu


def row_sum(x, bm=64, bn=128):
    M, N = x.shape

    def kernel(x_ref, o_ref):
        i = pl.program_id(0)

        def add(block_ref):
            o_ref[...] += jnp.sum(block_ref[...], axis=1, keepdims=True)

        o_ref[...] = jnp.zeros_like(o_ref)
        pltpu.emit_pipeline(
            add,
            grid=(N // bn,),
            in_specs=[pl.BlockSpec((bm, bn), lambda j: (i, j))],
        )(x_ref)

    return pl.pallas_call(
        kernel,
        grid=(M // bm,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((bm, 1), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((M, 1), x.dtype),
        interpret=INTERPRET,
    )(x)
""",
        ),
    ],
)
