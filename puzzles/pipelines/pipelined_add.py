"""Rung 6: the pipeline as a function."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## pipelined_add: the pipeline as a function
#
# Slots, prologue, prefetch, waits: it is the same plan every time, so Pallas has a function for it.
# `pltpu.emit_pipeline` takes a grid and specs, as `pallas_call` does, and is called **inside** a kernel,
# on refs that stay in HBM:
#
# ```text
# pallas_call          one kernel, x_ref, y_ref, o_ref in HBM
#   emit_pipeline      a grid of its own; for each step
#     fetch              blocks of x_ref and y_ref  ->  slots in VMEM
#     add_blocks         (x_block, y_block, o_block)
#     send               slot of o_block            ->  o_ref
# ```
#
# `emit_pipeline(body, grid=…, in_specs=[…], out_specs=[…])` copies nothing yet. It returns a function.
# Call that with the refs, inputs first: now the grid runs, with two slots for each operand. Inputs come
# one step ahead, outputs leave while the next step runs, and a block whose index stays is not moved.
#
# Inside `body`, the refs are blocks in VMEM. So an ordinary kernel body fits, unchanged.

# %%
def pipelined_add_spec(x: Float[Array, "M N"], y: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return x + y


# %%
def add_blocks(x_block, y_block, o_block):
    o_block[...] = x_block[...] + y_block[...]


def pipelined_add_kernel(x_ref, y_ref, o_ref):
    M, N = x_ref.shape
    bm, bn = 64, 128
    # Emit a pipeline over blocks of (bm, bn), and run it on the three refs.
    ### BEGIN SOLUTION
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    pipeline = pltpu.emit_pipeline(
        add_blocks, grid=(M // bm, N // bn), in_specs=[block, block], out_specs=[block]
    )
    pipeline(x_ref, y_ref, o_ref)
    ### END SOLUTION


def pipelined_add(x: Float[Array, "M N"], y: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        pipelined_add_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=INTERPRET,
    )(x, y)


# %% [markdown]
# The reference's copies in flight at each wait are those of a pipeline: never one alone, but at the
# very end.

# %% active="ipynb"
# x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
# receipt(pipelined_add, x, x)

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.pipelines._audits import in_hbm, overlapped


def make_inputs(key, M, N):
    x, y = rng(key).normal(size=(2, M, N))
    return array(x, jnp.float32), array(y, jnp.float32)


def audit(launch: Launch) -> None:
    in_hbm(launch)
    for one in launch.inputs:
        one_block = one.portion == one.shape and one.shape[0] > 64  # 64 rows may come at once
        assert not one_block, (
            f"all of {one.name.removesuffix('_ref')} comes as one block: cut it, there is nothing to overlap"
        )
    overlapped(launch)


def scale(M=512, N=512):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),) * 2


_BLOCK = "    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))\n"
_RUN = "    pipeline(x_ref, y_ref, o_ref)\n"
_ANY = "pl.BlockSpec(memory_space=pl.ANY)"

PUZZLE = Puzzle(
    spec=pipelined_add_spec,
    solution=pipelined_add,
    inputs=make_inputs,
    cases=[dict(M=192, N=256), dict(M=64, N=384)],
    fresh=lambda r: dict(M=192, N=256) if r.integers(4) else dict(M=64 * int(r.integers(2, 5)), N=128),
    hints=[
        "Which grid and which blocks would you give to `pallas_call` for this sum? The same go here.",
        "`pltpu.emit_pipeline(body, grid=…, in_specs=[…], out_specs=[…])` returns a function of the refs; "
        "`pl.BlockSpec(shape, index_map)` is what it always was.",
        "Three statements: one BlockSpec that serves all three operands; emit the pipeline over a grid of "
        "two axes; call it with both inputs and the output.",
    ],
    explain="""`emit_pipeline` fetches, calls the body on blocks, and sends, with two slots for
    each operand. What it returns is a value of the kernel: a kernel can run several, one after the
    other, or one whose grid it has just computed.""",
    mistakes=[
        Mistake(
            "emits the pipeline and never runs it",
            old=_RUN,
            new="",
            says="nothing was written (NaN here): `emit_pipeline` only returns a function; call it with "
            "the refs. Or the body returns a sum and stores none; or a block of the output is read, as by "
            "`+=`, before anything is stored in it",
        ),
        Mistake(
            "adds where the arrays lie",
            edits=(
                (_BLOCK, ""),
                (
                    """    pipeline = pltpu.emit_pipeline(
        add_blocks, grid=(M // bm, N // bn), in_specs=[block, block], out_specs=[block]
    )
""",
                    "",
                ),
                (_RUN, "    o_ref[...] = x_ref[...] + y_ref[...]\n"),
            ),
            says="stays in HBM (`memory_space=pl.ANY`), and a kernel cannot index that",
            stage="memory",
        ),
        Mistake(
            "gives x twice",
            old="pipeline(x_ref, y_ref, o_ref)",
            new="pipeline(x_ref, x_ref, o_ref)",
            says="y is never read: the pipeline was called with x in both places",
        ),
        Mistake(
            "has a grid that ends one row of blocks early",
            old="grid=(M // bm, N // bn)",
            new="grid=(max(1, M // bm - 1), N // bn)",
            says="the last row of blocks is missing: the grid has M // bm of them",
        ),
        Mistake(
            "has one axis of the grid only",
            old="grid=(M // bm, N // bn)",
            new="grid=(M // bm, 1)",
            says="only the first column of blocks is written: the grid has N // bn of them",
        ),
        Mistake(
            "names the axes in another order in its maps than in its grid",
            old="lambda i, j: (i, j)",
            new="lambda i, j: (j, i)",
            says="the grid counts blocks of M first, and the maps blocks of N first, so some blocks are beyond the "
            "edge and others are never visited (NaN there)",
        ),
        Mistake(
            "counts the blocks of N first in its grid",
            old="grid=(M // bm, N // bn)",
            new="grid=(N // bn, M // bm)",
            says="the grid counts blocks of N first, and the maps take its first number for i, which counts "
            "blocks of M",
        ),
        Mistake(
            "calls the pipeline without the output",
            old="pipeline(x_ref, y_ref, o_ref)",
            new="pipeline(x_ref, y_ref)",
            says="A pipeline has a spec for each of its Refs, inputs in `in_specs` and outputs in",
            stage="error",
        ),
        Mistake(
            "counts elements in its maps",
            old="lambda i, j: (i, j)",
            new="lambda i, j: (i * bm, j * bn)",
            says="a map gives the numbers of blocks, (i, j), and not where their first element lies",
        ),
        Mistake(
            "writes every block of a row to the same place",
            edits=(
                (
                    "in_specs=[block, block], out_specs=[block]",
                    "in_specs=[block, block],\n        out_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, 0))]",
                ),
            ),
            says="all blocks of a row went to the first column's place: the output's map returns (i, j)",
        ),
        Mistake(
            "reads y in another order",
            edits=(
                (
                    "in_specs=[block, block]",
                    "in_specs=[block, pl.BlockSpec((bm, bn), lambda i, j: (i, N // bn - 1 - j))]",
                ),
            ),
            says="y's blocks come in reversed order along a row: all three maps return (i, j)",
        ),
        Mistake(
            "subtracts",
            old="x_block[...] + y_block[...]",
            new="x_block[...] - y_block[...]",
            says="this is the difference",
        ),
        Mistake(
            "takes all of x and y as one block",
            old="bm, bn = 64, 128",
            new="bm, bn = M, N",
            says="all of x comes as one block",
            stage="work",
        ),
        Mistake(
            "takes all of y as one block",
            edits=(
                ("in_specs=[block, block]", "in_specs=[block, pl.BlockSpec((M, N), lambda i, j: (0, 0))]"),
                (
                    "o_block[...] = x_block[...] + y_block[...]",
                    "at = pl.ds(pl.program_id(0) * 64, 64), pl.ds(pl.program_id(1) * 128, 128)\n"
                    "    o_block[...] = x_block[...] + y_block[at]",
                ),
            ),
            says="all of y comes as one block",
            stage="work",
        ),
        Mistake(
            "turns the overlap of copies and work off",
            old='in_specs=[block, block], out_specs=[block]',
            new='in_specs=[block, block], out_specs=[block], no_pipelining=True',
            says="at 6 of 6 waits for a copy from `x_ref`, the kernel has computed nothing since that copy started",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative("takes other blocks", old="bm, bn = 64, 128", new="bm, bn = 32, 128"),
        Alternative(
            "walks whole rows, and computes in a closure",
            edits=(
                (_BLOCK, "    block = pl.BlockSpec((8, N), lambda i: (i, 0))\n"),
                ("grid=(M // bm, N // bn)", "grid=(M // 8,)"),
            ),
        ),
        Alternative(
            "walks columns first",
            edits=(
                ("lambda i, j: (i, j))\n    pipeline", "lambda j, i: (i, j))\n    pipeline"),
                ("grid=(M // bm, N // bn)", "grid=(N // bn, M // bm)"),
            ),
        ),
        Alternative(
            "numbers the blocks along one axis",
            edits=(
                (_BLOCK, _BLOCK.replace("i, j: (i, j)", "t: (t // (N // bn), t % (N // bn))")),
                ("grid=(M // bm, N // bn)", "grid=(M // bm * (N // bn),)"),
            ),
        ),
        Alternative(
            "copies by hand, with two slots",
            code="""
def pipelined_add(x, y):
    M, N = x.shape
    n = M // 64

    def kernel(x_ref, y_ref, o_ref, x_slots, y_slots, o_slots, sems):
        def copies(i):
            slot, rows = i % 2, pl.ds(i * 64, 64)
            pairs = ((x_ref.at[rows], x_slots.at[slot]), (y_ref.at[rows], y_slots.at[slot]))
            return [
                pltpu.make_async_copy(*pair, sems.at[which, slot]) for which, pair in enumerate(pairs)
            ]

        def send(i):
            there = o_ref.at[pl.ds(i * 64, 64)]
            return pltpu.make_async_copy(o_slots.at[i % 2], there, sems.at[2, i % 2])

        for copy in copies(0):
            copy.start()

        def step(i, _):
            @pl.when(i + 1 < n)
            def _():
                for copy in copies(i + 1):
                    copy.start()

            pl.when(i >= 2)(lambda: send(i - 2).wait())
            for copy in copies(i):
                copy.wait()
            o_slots[i % 2] = x_slots[i % 2] + y_slots[i % 2]
            send(i).start()

        jax.lax.fori_loop(0, n, step, None)
        for i in range(max(0, n - 2), n):
            send(i).wait()

    two = pltpu.VMEM((2, 64, N), x.dtype)
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        in_specs=[hbm, hbm],
        out_specs=hbm,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[two, two, two, pltpu.SemaphoreType.DMA((3, 2))],
        interpret=INTERPRET,
    )(x, y)
""",
        ),
    ],
    audit=audit,
    scale=scale,
)
