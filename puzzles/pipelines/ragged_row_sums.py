"""Rung 9: a grid whose length is data."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## ragged_row_sums: a grid whose length is data
#
# `B` sequences lie in one array of `S` rows each. Only the first `lengths[b]` rows count; behind them
# lies garbage.
#
# ```text
# S = 192 rows, 64 a step          lengths   steps
# b = 0  [######|######|#.....]      130       3
# b = 1  [......|......|......]        0       0
# b = 2  [######|......|......]       64       1
# ```
#
# An axis of `pallas_call`'s grid has one length for all `b`, so it would walk over empty blocks. A
# pipeline's grid is made inside the kernel and may hold a traced number.
#
# Lengths lie in SMEM, like `start` in `copy_rows`, but come by **scalar prefetch**, for index maps
# too: with a `grid_spec` that is a `pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, …)`, the
# call's first argument is copied to SMEM before step 0, and the kernel gets its ref first.
#
# ```text
# call      lengths                            x
#              |                               |
#           SMEM, before step 0                HBM, as it is
#              |                               |
# kernel    lengths_ref = [130, 0, 64]         x_ref                o_ref
# ```
#
# `pl.cdiv(a, b)` divides and rounds up. In the last step, mask rows that do not count.

# %%
def ragged_row_sums_spec(
    x: Float[Array, "B S N"], lengths: Int[Array, " B"]
) -> Float[Array, "B 1 N"]:
    counts = jnp.arange(x.shape[1]) < lengths[:, None]
    return jnp.sum(jnp.where(counts[:, :, None], x, 0), axis=1, keepdims=True)


# %%
def ragged_row_sums_kernel(lengths_ref, x_ref, o_ref):
    b = pl.program_id(0)
    length = lengths_ref[b]
    o_ref[...] = jnp.zeros_like(o_ref)

    def add(rows_ref):
        i = pl.program_id(0)  # of the pipeline
        rows = rows_ref[...]
        # Put zeros where rows do not count.
        ### BEGIN SOLUTION
        row = i * 64 + jax.lax.broadcasted_iota(jnp.int32, rows.shape, 0)
        rows = jnp.where(row < length, rows, 0)
        ### END SOLUTION
        o_ref[...] += jnp.sum(rows, axis=0, keepdims=True)

    pltpu.emit_pipeline(
        add,
        ### BEGIN SOLUTION
        grid=(pl.cdiv(length, 64),),
        ### END SOLUTION
        in_specs=[pl.BlockSpec((64, x_ref.shape[2]), lambda i: (i, 0))],
    )(x_ref.at[b])


def ragged_row_sums(x: Float[Array, "B S N"], lengths: Int[Array, " B"]) -> Float[Array, "B 1 N"]:
    B, _, N = x.shape
    return pl.pallas_call(
        ragged_row_sums_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(B,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((None, 1, N), lambda b, lengths_ref: (b, 0, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((B, 1, N), x.dtype),
        interpret=INTERPRET,
    )(lengths, x)


# %% tags=["author"]
import numpy as np

from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng


def make_inputs(key, S, N, lengths, garbage):
    """Rows that do not count hold `garbage`, NaN or about so large a number."""
    r = rng(key)
    x = r.normal(0.5, 1, (len(lengths), S, N))
    for b, length in enumerate(lengths):
        x[b, length:] = garbage * r.uniform(1, 2, (S - length, N))
    return array(x, jnp.float32), array(lengths, jnp.int32)


def audit(launch: Launch, *, args) -> None:
    x, lengths = args
    _, rows, width = x.shape
    needed = 4 * width * int((-(-np.asarray(lengths) // 64) * 64).sum())
    fetched = launch.inputs[0].hbm_bytes
    assert fetched <= needed, (
        f"{fetched:,} bytes of x are fetched, and these lengths need {needed:,}: fetch "
        f"the blocks that hold rows which count, and no other: not all {rows} rows, and nothing where none counts"
    )


def scale(B=8, S=2048, N=512):
    lengths = array([(997 * b * b) % (S // 2) for b in range(B)], jnp.int32)
    return jax.ShapeDtypeStruct((B, S, N), jnp.float32), lengths


def fresh(r):
    # mostly the shapes of the first case, whose programs are compiled by now: lengths are data
    if r.integers(4) == 0:
        return dict(S=192, N=128, lengths=(100, 66, 127), garbage=float("nan"))
    lengths = ((191, 64, 0, 3), (128, 2, 65, 192), (0, 0, 129, 1), (63, 192, 1, 66))[r.integers(4)]
    return dict(S=192, N=256, lengths=lengths, garbage=float("nan"))


_MASK = """        row = i * 64 + jax.lax.broadcasted_iota(jnp.int32, rows.shape, 0)
        rows = jnp.where(row < length, rows, 0)
"""
_GRID = "        grid=(pl.cdiv(length, 64),),\n"

PUZZLE = Puzzle(
    spec=ragged_row_sums_spec,
    solution=ragged_row_sums,
    inputs=make_inputs,
    cases=[
        dict(S=192, N=256, lengths=(130, 0, 64, 1), garbage=1e4),
        dict(
            S=448,
            N=128,
            lengths=(127, 448, 65, 128, 0, 3, 200, 1, 64, 400),
            garbage=float("nan"),
        ),
    ],
    fresh=fresh,
    hints=[
        "How many blocks of 64 rows does a sequence of 130 rows touch? Which rows of the last one count?",
        "`pl.cdiv(…, 64)` rounds up. `jax.lax.broadcasted_iota(jnp.int32, shape, 0)` numbers the rows of a "
        "block; `jnp.where` chooses, and does not multiply garbage.",
        "The row's number in the sequence is 64 times the step plus its number in the block. Keep what "
        "lies below the length, put zero elsewhere. The grid is one number, in a tuple.",
    ],
    explain="""A number in SMEM decides how many blocks are taken, so an empty sequence takes no
    step and a short one takes few. Only the last step of a sequence needs the mask.""",
    mistakes=[
        Mistake(
            "multiplies by the mask",
            old="jnp.where(row < length, rows, 0)",
            new="jnp.where(row < length, 1.0, 0.0) * rows",
            says="the garbage is NaN here, and NaN times 0 is NaN: choose with `jnp.where`",
        ),
        Mistake(
            "does not mask",
            old=_MASK,
            new="        pass\n",
            says="the rows behind the last one are added as well: they are in the block, and do not count",
        ),
        Mistake(
            "masks one row too late",
            old="row < length",
            new="row <= length",
            says="row number `length` is the first that does not count: rows begin at 0",
        ),
        Mistake(
            "masks one row too early",
            old="row < length",
            new="row < length - 1",
            says="the last row that counts is missing: its number is length - 1",
        ),
        Mistake(
            "numbers the rows of every block from 0",
            old="row = i * 64 + jax",
            new="row = jax",
            says="each block is masked as if it were the first: block i begins at row 64 * i",
        ),
        Mistake(
            "masks every block as if it were the last",
            edits=(("row = i * 64 + jax", "row = jax"), ("row < length", "row < length % 64")),
            says="in all blocks but the last every row counts, and a length that 64 divides leaves 0: compare a row's "
            "number in the sequence with `length`",
        ),
        Mistake(
            "numbers the rows by the sequence",
            old="row = i * 64 +",
            new="row = b * 64 +",
            says="`b` says which sequence it is, not which block of it: inside the pipeline `i` counts the "
            "blocks, and block i begins at row 64 * i",
        ),
        Mistake(
            "takes the rows before a block off twice",
            old="row < length",
            new="row < length - i * 64",
            says="the rows before a block are counted in the row's number and taken off the length, too: "
            "one of the two is enough",
        ),
        Mistake(
            "keeps what does not count",
            old="jnp.where(row < length, rows, 0)",
            new="jnp.where(row < length, 0, rows)",
            says="the rows that count become zeros, and the garbage stays: `jnp.where` takes what to use where "
            "it holds first",
        ),
        Mistake(
            "numbers the columns",
            old="rows.shape, 0)",
            new="rows.shape, 1)",
            says="columns are cut off, not rows: rows are axis 0",
        ),
        Mistake(
            "rounds the number of blocks down",
            old="pl.cdiv(length, 64)",
            new="length // 64",
            says="the last block of a sequence is left out where it is not full: round up",
        ),
        Mistake(
            "takes one block more than there are",
            old="pl.cdiv(length, 64)",
            new="length // 64 + 1",
            says="reaches outside `x_ref`, which has shape",
            stage="memory",
        ),
        Mistake(
            "walks over all rows",
            old="pl.cdiv(length, 64)",
            new="x_ref.shape[1] // 64",
            says="fetch the blocks that hold rows which count, and no other: not all 192 rows",
            stage="work",
        ),
        Mistake(
            "takes the first length for all sequences",
            old="length = lengths_ref[b]",
            new="length = lengths_ref[0]",
            says="all sequences are as long as the first: `b` says whose length it is",
        ),
        Mistake(
            "sums the first sequence again and again",
            old=")(x_ref.at[b])",
            new=")(x_ref.at[0])",
            says="the rows are those of the first sequence, in other lengths: `x_ref.at[b]` is this one",
        ),
        Mistake(
            "sets the output to zero in the pipeline's first step",
            edits=(
                ("    o_ref[...] = jnp.zeros_like(o_ref)\n\n    def add", "    def add"),
                (
                    "        i = pl.program_id(0)  # of the pipeline\n",
                    "        i = pl.program_id(0)  # of the pipeline\n\n"
                    "        @pl.when(i == 0)\n        def _():\n"
                    "            o_ref[...] = jnp.zeros_like(o_ref)\n\n",
                ),
            ),
            says="an empty sequence has no first step, so nobody sets its sum to zero (NaN here)",
        ),
        Mistake(
            "starts from zero at every step",
            old="        o_ref[...] += jnp.sum(rows",
            new="        o_ref[...] = jnp.sum(rows",
            says="only the last block's sum is left: each step adds to those before it",
        ),
        Mistake(
            "masks by the length of the array",
            old="row < length, rows, 0",
            new="row < x_ref.shape[1], rows, 0",
            says="rows count up to the sequence's own length",
        ),
        Mistake(
            "puts -inf where rows do not count",
            old="rows, 0)",
            new="rows, -jnp.inf)",
            says="that is for a maximum: a sum is left as it is by 0",
        ),
    ],
    alternatives=[
        Alternative(
            "counts what is left of the sequence",
            old=_MASK,
            new="""        left = length - 64 * i
        counts = jax.lax.broadcasted_iota(jnp.int32, (64, 1), 0) < left
        rows = jnp.where(counts, rows_ref[...], jnp.zeros_like(rows_ref))
""",
        ),
        Alternative(
            "rounds up by hand",
            old="pl.cdiv(length, 64)",
            new="jax.lax.div(length + 63, 64)",
        ),
        Alternative(
            "masks the last block only",
            old=_MASK,
            new="""        row = i * 64 + jax.lax.broadcasted_iota(jnp.int32, rows.shape, 0)
        rows = jax.lax.cond(
            64 * (i + 1) <= length,
            lambda: rows_ref[...],
            lambda: jnp.where(row < length, rows_ref[...], 0),
        )
""",
        ),
        Alternative(
            "copies by hand, in a loop over the blocks that count",
            code="""
def ragged_row_sums(x, lengths):
    B, S, N = x.shape

    def kernel(lengths_ref, x_ref, o_ref, slots, sems):
        b = pl.program_id(0)
        length = lengths_ref[b]
        n = pl.cdiv(length, 64)

        def fetch(i):
            rows = x_ref.at[b, pl.ds(i * 64, 64)]
            return pltpu.make_async_copy(rows, slots.at[i % 2], sems.at[i % 2])

        pl.when(n > 0)(lambda: fetch(0).start())
        o_ref[...] = jnp.zeros_like(o_ref)

        def add(i, _):
            pl.when(i + 1 < n)(lambda: fetch(i + 1).start())
            fetch(i).wait()
            row = i * 64 + jax.lax.broadcasted_iota(jnp.int32, (64, 1), 0)
            rows = jnp.where(row < length, slots[i % 2], 0)
            o_ref[...] += jnp.sum(rows, axis=0, keepdims=True)

        jax.lax.fori_loop(0, n, add, None)

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(B,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((None, 1, N), lambda b, lengths_ref: (b, 0, 0)),
            scratch_shapes=[pltpu.VMEM((2, 64, N), x.dtype), pltpu.SemaphoreType.DMA((2,))],
        ),
        out_shape=jax.ShapeDtypeStruct((B, 1, N), x.dtype),
        interpret=INTERPRET,
    )(lengths, x)
""",
        ),
    ],
    audit=audit,
    scale=scale,
)
