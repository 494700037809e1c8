"""Puzzle 9: a link carries data in both directions."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET
from puzzles.collectives import barrier, neighbours

# %% [markdown]
# ## bidirectional_all_gather: both directions
#
# A link between two chips carries data in both directions at the same time. So far everything went
# to the right, and half of each link was idle.
#
# Split every block. Its first half travels to the right, its second half to the left. The bytes
# of a step then take half the time. The latency of a copy stays.
#
# ![Four lanes with arrows that go down and up at the same time](diagrams/collectives/bidirectional_all_gather.svg)
#
# ```text
#              to the right (direction 0)        to the left (direction 1)
# step i       first half of block me - i        second half of block me + i
# semaphores   send_sems[0], recv_sems[0, i]     send_sems[1], recv_sems[1, i]
# ```
#
# In each step start **both** copies, then wait for both: otherwise they take turns, and nothing is
# gained. JAX's own
# [`all_gather`](https://github.com/jax-ml/jax/blob/main/jax/experimental/pallas/ops/tpu/all_gather.py)
# also sends halves both ways.


# %%
def bidirectional_all_gather_spec(x: Float[Array, "M N"]) -> Float[Array, "D M N"]:
    return lax.all_gather(x, "x")


# %%
def bidirectional_all_gather_kernel(x_ref, o_ref, local_sem, send_sems, recv_sems):
    me, left, right, n = neighbours()
    half = x_ref.shape[0] // 2
    barrier(left, right)
    own = pltpu.make_async_copy(x_ref, o_ref.at[me], local_sem)
    own.start()
    own.wait()

    def step(i, _):
        ### BEGIN SOLUTION
        copies = []
        for way, (block, other) in enumerate(
            [(lax.rem(me - i + n, n), right), (lax.rem(me + i, n), left)]
        ):
            part = o_ref.at[block, pl.ds(way * half, half)]
            copies.append(
                pltpu.make_async_remote_copy(
                    part, part, send_sems.at[way], recv_sems.at[way, i], device_id=(other,)
                )
            )
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()
        ### END SOLUTION

    lax.fori_loop(0, n - 1, step, None)


def bidirectional_all_gather(x: Float[Array, "M N"]) -> Float[Array, "D M N"]:
    n = lax.axis_size("x")
    return pl.pallas_call(
        bidirectional_all_gather_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((n, *x.shape), x.dtype),
        scratch_shapes=[
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2, n - 1)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# Compare the time on the wire with that of `ring_all_gather`:

# %% active="ipynb"
# receipt(bidirectional_all_gather)

# %% tags=["author"]
from puzzles import Launch, Puzzle
from puzzles._simulator import Wire
from puzzles.collectives._audits import both_ways
from puzzles.collectives.right_permute import make_inputs
from puzzles.collectives.ring_all_gather import scale


def audit(launch: Launch, *, wire: Wire) -> None:
    both_ways(wire)


def fresh(r):
    return dict(M=16 * int(r.choice([1, 3])), N=128, x=int(r.choice([3, 4, 5])))


PUZZLE = Puzzle(
    axes={"x": 4},
    spec=bidirectional_all_gather_spec,
    solution=bidirectional_all_gather,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=32, N=256, x=3), dict(M=16, N=128, x=8)],
    fresh=fresh,
    audit=audit,
    scale=scale,
    hints=[
        "To the right it is `ring_all_gather`, with half of each block. To the left everything is "
        "mirrored: whose block is in your hands after i steps?",
        "`o_ref.at[block, pl.ds(way * half, half)]` is a half of a block. To the left the block is "
        "`me + i`, modulo `n`, and the device is `left`.",
        "Describe two copies, one for each direction, each with its own semaphores. Start both, "
        "then wait for both.",
    ],
    explain="""A link moves 45 GB/s in each direction on v5e. With half of each block on its way in
    each direction, a step takes half as long, and the number of bytes is the same.""",
)
