"""Rung 2: a grid, and one block at a time."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## vector_add: a grid of blocks
#
# A large array does not fit into VMEM. So we cut it into **blocks**, and run the kernel once for
# each:
#
# * `grid=(n,)`: run it `n` times, one after another. Each run is a **grid step** and has a number,
#   `pl.program_id(0)`, from `0` to `n - 1`.
# * `pl.BlockSpec(block_shape, index_map)`: cut an array into blocks of `block_shape`. `index_map`
#   says which one a step gets. It counts *blocks*, not elements: with `lambda i: (i,)`, step 2 gets
#   block 2, `x[2048:3072]` in blocks of 1024.
#
# `in_specs` has a `BlockSpec` for each input, in the order of the Refs; `out_specs` has the
# output's.
#
# ![Four steps' worth of blocks: at step i, block i of x and of y is fetched and block i of the result is written.](diagrams/basics/vector_add.svg)
#
# Inside the kernel, `x_ref` **is** the block. So the kernel looks as if there were no others.
#
# Add two vectors, 1024 elements at a time.

# %%
def vector_add_spec(x: Float[Array, " N"], y: Float[Array, " N"]) -> Float[Array, " N"]:
    return x + y


# %%
def vector_add_kernel(x_ref, y_ref, o_ref):
    ### BEGIN SOLUTION
    o_ref[...] = x_ref[...] + y_ref[...]
    ### END SOLUTION


def vector_add(x: Float[Array, " N"], y: Float[Array, " N"]) -> Float[Array, " N"]:
    (N,) = x.shape
    bn = 1024
    return pl.pallas_call(
        vector_add_kernel,
        grid=(N // bn,),
        in_specs=[
            pl.BlockSpec((bn,), lambda i: (i,)),
            pl.BlockSpec((bn,), lambda i: (i,)),
        ],
        out_specs=pl.BlockSpec((bn,), lambda i: (i,)),
        out_shape=jax.ShapeDtypeStruct((N,), x.dtype),
        interpret=INTERPRET,
    )(x, y)


# %% [markdown]
# While one step computes, the next step's blocks are already on their way from HBM, and the
# previous step's results on their way back. `show` draws your launch, step by step: which block of
# each operand is fetched, reused and written. It draws wrong launches, too, and marks a
# block that is out of place: that is when it helps most. It does not judge what you compute.
#
# <details>
# <summary>More: why 1024, and why the blank in " N"</summary>
#
# The TPU's vector registers hold 8 × 128 numbers of 32 bits, and every version of JAX takes a
# one-dimensional block of whole registers. In a type of one axis, such as `Float[Array, " N"]`, the
# blank keeps linters from taking the letter for a variable.
#
# </details>

# %% active="ipynb"
# show(vector_add)

# %% [markdown]
# Why does the receipt say "bound by its steps"? A grid step takes time of its own, however little it
# moves, and blocks of 1,024 numbers make many. Later you choose larger ones.

# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, N):
    r = rng(key)
    return tuple(array(r.normal(size=N), jnp.float32) for _ in range(2))


def scale(N=16 * 2**20):
    return tuple(jax.ShapeDtypeStruct((N,), jnp.float32) for _ in range(2))


def fresh(r):
    return dict(N=1024 * int(r.integers(8, 16)))


PUZZLE = Puzzle(
    spec=vector_add_spec,
    solution=vector_add,
    inputs=make_inputs,
    cases=[dict(N=4096), dict(N=7168)],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # every element is needed once
    par=lambda launch: f"{counted(launch.steps, 'step')}, {launch.hbm_bytes / 2**20:.0f} MiB moved",
    hints=[
        "You do not need to know which block this is. The BlockSpecs have chosen it already.",
        "Read both input Refs with `[...]`; what you get has the shape of one block, (1024,).",
        "One line, as in add_ten: output Ref on the left, a sum of two values on the right.",
    ],
    explain="""The index maps choose the blocks, so the body needs no index at all. The pipeline runs
    it once for each block and moves the next block in while this one is computed.""",
    mistakes=[
        Mistake(
            "indexes the block again with the program id",
            old="o_ref[...] = x_ref[...] + y_ref[...]",
            new="rows = pl.ds(pl.program_id(0) * 1024, 1024)\n"
            "    o_ref[rows] = x_ref[rows] + y_ref[rows]",
            says="reaches outside `x_ref`",
            stage="memory",
        ),
        Mistake(
            "indexes the block with the program id",
            old="o_ref[...] = x_ref[...] + y_ref[...]",
            new="i = pl.program_id(0)\n    o_ref[i] = x_ref[i] + y_ref[i]",
            says="`x_ref` is the whole block, so an index picks one element of it; the rest stays garbage",
        ),
        Mistake(
            "adds x to itself",
            old="x_ref[...] + y_ref[...]",
            new="x_ref[...] + x_ref[...]",
            says="`y_ref` is never read",
        ),
        Mistake(
            "fills its output block in the first grid step only",
            old="    o_ref[...] = x_ref[...] + y_ref[...]",
            new="    @pl.when(pl.program_id(0) == 0)\n    def _():\n"
            "        o_ref[...] = x_ref[...] + y_ref[...]",
            says="every step has an output block of its own, which begins as garbage (NaN here): "
            "store to it in every step, and do not add to what is there",
        ),
        Mistake(
            "subtracts",
            old="x_ref[...] + y_ref[...]",
            new="x_ref[...] - y_ref[...]",
            says="the spec has a plus",
        ),
        Mistake(
            "multiplies",
            old="x_ref[...] + y_ref[...]",
            new="x_ref[...] * y_ref[...]",
            says="the spec has a plus",
        ),
        Mistake(
            "leaves garbage in its output",
            old="o_ref[...] = x_ref[...]",
            new="o_ref = x_ref[...]",
            says="nothing was stored in it, or something was added to what it held. "
            "`o_ref[...] = ...` fills the buffer; `o_ref = ...` only renames a Python variable, and "
            "`o_ref[...] += ...` adds to what was there before",
        ),
        Mistake(
            "fetches y's first block at every step",
            edits=(
                (
                    "lambda i: (i,)),\n        ],",
                    "lambda i: (0,)),\n        ],",
                ),
            ),
            says="an index map that ignores `i` always names the same block",
        ),
        Mistake(
            "cuts blocks of 512 elements",
            old="bn = 1024",
            new="bn = 512",
            says="a 1-D block is the whole array or a multiple of 1024",
            stage="tpu",
        ),
        Mistake(
            "takes the whole vector in one block",
            edits=(("bn = 1024", "bn = N"),),
            says="all of it as one block: cut it into smaller ones",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative("uses larger blocks", old="bn = 1024", new="bn = 1024 * (2 - N // 1024 % 2)"),
        Alternative(
            "walks the blocks from the last to the first",
            code="""
def vector_add(x, y):
    n = x.shape[0] // 1024
    block = pl.BlockSpec((1024,), lambda i: (n - 1 - i,))
    return pl.pallas_call(
        vector_add_kernel,
        grid=(n,),
        in_specs=[block, block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=INTERPRET,
    )(x, y)
""",
        ),
        Alternative(
            "sums whatever inputs it gets, in a kernel from functools, under jit",
            code="""
import functools
import operator


def fold(*refs, op):
    *inputs, o_ref = refs
    o_ref[:] = functools.reduce(op, (ref[...] for ref in inputs))


@jax.jit
def vector_add(x, y):
    spec = pl.BlockSpec((1024,), lambda step: step)
    return pl.pallas_call(
        functools.partial(fold, op=operator.add),
        out_shape=x,
        grid_spec=pl.GridSpec(grid=(pl.cdiv(x.size, 1024),), in_specs=[spec] * 2, out_specs=spec),
        interpret=INTERPRET,
    )(x, y)
""",
        ),
        Alternative(
            "stacks the blocks on an axis that is squeezed away",
            code="""
def vector_add(x, y):
    stack = [v.reshape(-1, 8, 128) for v in (x, y)]
    spec = pl.BlockSpec((None, 8, 128), lambda i: (i, 0, 0))
    return pl.pallas_call(
        vector_add_kernel,
        grid=stack[0].shape[:1],
        in_specs=[spec, spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(stack[0].shape, x.dtype),
        interpret=INTERPRET,
    )(*stack).reshape(x.shape)
""",
        ),
        Alternative(
            "copies its blocks by hand",
            code="""
def vector_add(x, y):
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x_ref, y_ref, o_ref, xs, ys, arrived):
        here = pl.ds(pl.program_id(0) * 1024, 1024)
        copies = [
            pltpu.make_async_copy(source.at[here], target, arrived.at[n])
            for n, (source, target) in enumerate([(x_ref, xs), (y_ref, ys)])
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()
        o_ref[...] = xs[...] + ys[...]

    buffer = pltpu.VMEM((1024,), x.dtype)
    return pl.pallas_call(
        kernel,
        grid=(x.size // 1024,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
        out_specs=pl.BlockSpec((1024,), lambda i: (i,)),
        out_shape=x,
        scratch_shapes=[buffer, buffer, pltpu.SemaphoreType.DMA((2,))],
        interpret=INTERPRET,
    )(x, y)
""",
        ),
        Alternative(
            "copies x, then adds y to the output half by half",
            old="o_ref[...] = x_ref[...] + y_ref[...]",
            new="""o_ref[...] = x_ref[...]
    for start in (0, 512):
        half = slice(start, start + 512)
        o_ref[half] += y_ref[half]""",
        ),
        Alternative(
            "copies the blocks itself, the next while it adds this one",
            code="""
from jax.experimental.pallas import tpu as pltpu


def vector_add(x, y, bn=1024):
    n = x.size // bn

    def kernel(x_ref, y_ref, o_ref, xs, ys, out, sems):
        def slot(i):
            return jax.lax.rem(i, 2)

        def half(i):
            return pl.ds(pl.multiple_of(slot(i) * bn, bn), bn)

        def fetches(i):
            window = pl.ds(i * bn, bn)
            return [
                pltpu.make_async_copy(ref.at[window], two.at[half(i)], sems.at[slot(i), m])
                for m, (ref, two) in enumerate(((x_ref, xs), (y_ref, ys)))
            ]

        for copy in fetches(0):
            copy.start()

        @pl.loop(0, n)
        def _(i):
            @pl.when(i + 1 < n)
            def _():
                for copy in fetches(i + 1):
                    copy.start()

            for copy in fetches(i):
                copy.wait()
            out[...] = xs[half(i)] + ys[half(i)]
            pltpu.sync_copy(out, o_ref.at[pl.ds(i * bn, bn)])

    far = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        in_specs=[far, far],
        out_specs=far,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[
            pltpu.VMEM((2 * bn,), x.dtype),
            pltpu.VMEM((2 * bn,), x.dtype),
            pltpu.VMEM((bn,), x.dtype),
            pltpu.SemaphoreType.DMA((2, 2)),
        ],
        interpret=INTERPRET,
    )(x, y)
""",
        ),
    ],
)
