"""Puzzle 9: a grid whose length is data."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## ragged_row_sums: a grid whose length is data
#
# One array holds `B` sequences, with room for `S` rows each. Only the first `lengths[b]` rows
# count; the rest is garbage.
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
# The lengths are in SMEM, like `start` in `copy_rows`. They get there by **scalar prefetch**:
# index maps could read them, too. If the `grid_spec` is a
# `pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, …)`, the call's first argument is copied to
# SMEM before step 0, and the kernel gets its ref first.
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

from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import in_two_slots


def make_inputs(key, S, N, lengths, garbage):
    """Rows that do not count hold `garbage`, NaN or about so large a number.

    Beside NaN, the first row that counts ends with a NaN, which belongs to the sum.
    """
    r = rng(key)
    x = r.normal(0.5, 1, (len(lengths), S, N))
    for b, length in enumerate(lengths):
        x[b, length:] = garbage * r.uniform(1, 2, (S - length, N))
    if np.isnan(garbage):
        x[np.argmax(np.array(lengths) > 0), 0, -1] = garbage
    return array(x, jnp.float32), array(lengths, jnp.int32)


def audit(launch: Launch, *, args) -> None:
    in_two_slots(launch)
    x, lengths = args
    _, rows, width = x.shape
    needed = 4 * width * int((-(-np.asarray(lengths) // 64) * 64).sum())
    fetched = launch.inputs[0].hbm_bytes
    assert fetched <= needed, (
        f"{fetched:,} bytes of x are fetched, but these lengths need only {needed:,}: fetch "
        f"only the blocks with rows that count, not all {rows} rows, and none for an empty sequence"
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


PUZZLE = Puzzle(
    spec=ragged_row_sums_spec,
    solution=ragged_row_sums,
    inputs=make_inputs,
    cases=[
        dict(S=192, N=256, lengths=(130, 0, 64, 1), garbage=1.0),
        dict(
            S=448,
            N=128,
            lengths=(127, 448, 65, 128, 0, 3, 200, 1, 64, 400),
            garbage=float("nan"),
        ),
        dict(S=1152, N=128, lengths=(1090, 3), garbage=1.0),
    ],
    fresh=fresh,
    hints=[
        "How many blocks of 64 rows does a sequence of 130 rows touch? Which rows of the last "
        "one count?",
        "`pl.cdiv(…, 64)` rounds up. `jax.lax.broadcasted_iota(jnp.int32, shape, 0)` numbers "
        "the rows of a block; `jnp.where` chooses, and does not multiply garbage.",
        "The row's number in the sequence is 64 times the step plus its number in the block. Keep "
        "the rows whose numbers are below the length, and put zeros in all others. The grid is "
        "one number, in a tuple.",
    ],
    explain="""A number in SMEM sets the length of the grid, so an empty sequence takes no step and
    a short one takes few. Only the last step of a sequence needs the mask.""",
    audit=audit,
    scale=scale,
)
