"""Puzzle 11: as many rows as the router says."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET
from puzzles.collectives import barrier

# %% [markdown]
# ## dispatch_tokens: rows to their experts
#
# In a mixture of experts each device holds some of the experts, and a router decides which rows go
# where. So every device sends a different number of rows to every other, sometimes none. `x` is
# sorted by receiver. Four lists have a number for each device:
#
# ```text
# starts[d]   the first of my rows for device d         places[d]   where they go in o on device d
# sizes[d]    the number of my rows for device d        counts[d]   the number that d sends to me
# ```
#
# Where your rows land depends on what others send, so `places` was computed beforehand. How do you
# wait for copies whose sizes others chose? You know **how many** rows they send you in all, and a semaphore
# counts bytes: describe a copy of that many rows, never start it, and wait for it.
#
# In `pl.ds(start, size)` the size may be traced. Rows have the shape `(1, H)`, so the axis of rows is
# not tiled, and any number of them can be copied. `o` begins as zeros, by `input_output_aliases`, and
# rows that nobody fills stay zero.


# %%
def dispatch_tokens_spec(
    x: Float[Array, "T 1 H"],
    starts: Int[Array, " D"],
    sizes: Int[Array, " D"],
    places: Int[Array, " D"],
    counts: Int[Array, " D"],
) -> Float[Array, "T 1 H"]:
    # Like lax.ragged_all_to_all: each device picks its rows out of the rows of all devices.
    me, T = lax.axis_index("x"), x.shape[0]
    rows = lax.all_gather(x, "x")  # (D, T, 1, H)
    first, many, place = (lax.all_gather(a, "x")[:, me] for a in (starts, sizes, places))
    at = jnp.arange(T)[None] - place[:, None]  # for each sender and row of the result
    mine = (at >= 0) & (at < many[:, None])
    picked = jax.vmap(lambda r, n: r[jnp.clip(n, 0, T - 1)])(rows, first[:, None] + at)
    return jnp.sum(jnp.where(mine[..., None, None], picked, 0), axis=0)


# %%
def dispatch_tokens_kernel(
    starts_ref, sizes_ref, places_ref, counts_ref, x_ref, zeros_ref, o_ref,
    local_sem, send_sem, recv_sem,
):  # fmt: skip
    me, n = lax.axis_index("x"), lax.axis_size("x")
    others = [lax.rem(me + k, n) for k in range(1, n)]
    barrier(*others)

    def rows_for(device):
        # Two slices: my rows for a device in x_ref, and their place in o_ref on that device.
        ### BEGIN SOLUTION
        size = sizes_ref[device]
        source = x_ref.at[pl.ds(starts_ref[device], size)]
        return source, o_ref.at[pl.ds(places_ref[device], size)]
        ### END SOLUTION

    own = pltpu.make_async_copy(*rows_for(me), local_sem)
    own.start()
    for other in others:
        copy = pltpu.make_async_remote_copy(
            *rows_for(other), send_sem, recv_sem, device_id=(other,)
        )
        copy.start()
    own.wait()
    # Wait until all your rows have left, and until all rows for you have arrived.
    ### BEGIN SOLUTION
    sent = sum(sizes_ref[other] for other in others)
    came = sum(counts_ref[other] for other in others)
    for many, sem in ((sent, send_sem), (came, recv_sem)):
        rows = o_ref.at[pl.ds(0, many)]
        pltpu.make_async_copy(rows, rows, sem).wait()
    ### END SOLUTION


def dispatch_tokens(
    x: Float[Array, "T 1 H"],
    starts: Int[Array, " D"],
    sizes: Int[Array, " D"],
    places: Int[Array, " D"],
    counts: Int[Array, " D"],
) -> Float[Array, "T 1 H"]:
    return pl.pallas_call(
        dispatch_tokens_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 3,
        ),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        input_output_aliases={5: 0},
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(starts, sizes, places, counts, x, jnp.zeros_like(x))


# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array, rng


def routed(sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """The four lists of all devices, whose rows for each are `sizes`, by sender and receiver."""
    starts = np.cumsum(sizes, 1) - sizes
    places = np.cumsum(sizes, 0) - sizes  # the rows of device 0 come first everywhere
    return starts, sizes, places, sizes.T


def make_inputs(key, x, T, H, idle=False):
    r = rng(key)
    sizes = r.integers(1, T // x + 1, (x, x))
    sizes[1, 2] = 0
    sizes[:, 0] *= not idle  # then nobody has rows for device 0
    rows = array(r.normal(0.3, 1, (x, T, 1, H)), jnp.float32)
    return (rows, *(array(a, jnp.int32) for a in routed(sizes)))


def scale(T=4096, H=1024):
    lists = [jax.ShapeDtypeStruct((4, 4), jnp.int32)] * 4
    return (jax.ShapeDtypeStruct((4, T, 1, H), jnp.float32), *lists)


def fresh(r):
    return dict(T=int(r.choice([24, 48])), H=128, x=int(r.choice([3, 4, 5])))


PUZZLE = Puzzle(
    picture=False,  # the four lists above are the picture
    axes={"x": 4},
    spec=dispatch_tokens_spec,
    solution=dispatch_tokens,
    inputs=make_inputs,
    cases=[dict(T=24, H=128), dict(T=18, H=256, x=3, idle=True), dict(T=48, H=128, x=8)],
    fresh=fresh,
    scale=scale,
    hints=[
        "Your rows for device `d` lie in one piece. Which two lists say where they begin here, and "
        "where they begin there?",
        "`ref.at[pl.ds(start, size)]` with a size from `sizes_ref`. Add up `counts_ref` for the "
        "rows that arrive and `sizes_ref` for the rows that leave, over the other devices only: "
        "your own rows do neither.",
        "`rows_for` returns a part of `x_ref` and a part of `o_ref`. At the end, two local copies "
        "that are only described, never started: one waits for all that left, one for all that "
        "arrived.",
    ],
    explain="""The sender decides where its rows land, from a list that was computed beforehand. The
    receiver waits for the bytes of all rows at once, so it need not know in which order they arrive,
    or in how many pieces.""",
)
