"""Puzzle 13: make the next product while a sum is on its way."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET
from puzzles.collectives import barrier, neighbours

# %% [markdown]
# ## matmul_reduce_scatter: the other half of a layer
#
# A layer with sharded weights begins with `all_gather_matmul` and ends with its mirror image. Now each device
# has its own columns of `x` and its own rows of `w`. Their product has the full shape, but it is one of
# `n` summands. Each device must end with its share of the rows of the sum.
#
# That is `x @ w`, then `ring_reduce_scatter`. Hide the wire again: sums travel around the ring, and
# in each step you add **one chunk** of your product. You can compute that chunk while the sum
# travels:
#
# ```text
# step i     wire          a sum travels to the right ...
#            matrix unit   ... and meanwhile: the chunk to add to the sum that arrives
#            then          wait, add
# ```
#
# `product(chunk)` multiplies the rows that belong to device `chunk`. The chunks come in the order of
# `ring_reduce_scatter`.


# %%
def matmul_reduce_scatter_spec(
    x: Float[Array, "D*M K"], w: Float[Array, "K N"]
) -> Float[Array, "M N"]:
    return lax.psum_scatter(x @ w, "x", tiled=True)


# %%
def matmul_reduce_scatter_kernel(x_ref, w_ref, o_ref, slots_ref, send_sem, recv_sems, credits):
    me, left, right, n = neighbours()
    M = o_ref.shape[0]
    barrier(left, right)

    def product(chunk):
        rows = pl.ds(pl.multiple_of(chunk * M, M), M)
        return jnp.dot(x_ref[rows, :], w_ref[...], preferred_element_type=jnp.float32)

    slots_ref[0] = product(left)

    def step(i, _):
        here, there = lax.rem(i, 2), lax.rem(i + 1, 2)
        copy = pltpu.make_async_remote_copy(
            slots_ref.at[here],
            slots_ref.at[there],
            send_sem,
            recv_sems.at[there],
            device_id=(right,),
        )

        @pl.when(i > 0)
        def _():
            pl.semaphore_wait(credits, 1)

        copy.start()
        ### BEGIN SOLUTION
        chunk = product(lax.rem(me - i - 2 + 2 * n, n))
        copy.wait()
        slots_ref[there] += chunk

        ### END SOLUTION
        @pl.when(i < n - 2)
        def _():
            pl.semaphore_signal(credits, 1, device_id=(left,))

    lax.fori_loop(0, n - 1, step, None)
    o_ref[...] = slots_ref[(n - 1) % 2]


def matmul_reduce_scatter(x: Float[Array, "D*M K"], w: Float[Array, "K N"]) -> Float[Array, "M N"]:
    n = lax.axis_size("x")
    M, N = x.shape[0] // n, w.shape[1]
    return pl.pallas_call(
        matmul_reduce_scatter_kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)] * 2,
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((2, M, N), jnp.float32),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.REGULAR,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x, w)


# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles._simulator import Wire
from puzzles.collectives._audits import hidden
from puzzles.collectives.all_gather_matmul import fresh


def make_inputs(key, x, M, K, N):
    r = rng(key)
    return (
        array(r.normal(0.3, 1, (x, x * M, K)), jnp.float32),
        array(r.normal(0, K**-0.5, (x, K, N)), jnp.float32),
    )


def audit(launch: Launch, *, wire: Wire) -> None:
    hidden(wire)


def scale(M=256, K=512, N=1024):
    f32 = jnp.float32
    return jax.ShapeDtypeStruct((4, 4 * M, K), f32), jax.ShapeDtypeStruct((4, K, N), f32)


PUZZLE = Puzzle(
    picture=False,  # `all_gather_matmul` has drawn the overlap
    axes={"x": 4},
    spec=matmul_reduce_scatter_spec,
    solution=matmul_reduce_scatter,
    inputs=make_inputs,
    cases=[dict(M=16, K=128, N=256), dict(M=8, K=256, N=128, x=3), dict(M=8, K=128, N=256, x=8)],
    fresh=fresh,
    audit=audit,
    scale=scale,
    hints=[
        "Which product can you compute before the sum has arrived? What must wait for it?",
        "Step `i` needs the chunk of `ring_reduce_scatter`: for device `me - i - 2`, "
        "modulo `n`. Keep its product in a variable until the copy has been waited for.",
        "In the step three lines: multiply, wait, add to the slot that was filled.",
    ],
    explain="""The product of a chunk does not depend on the sum to which it is added. So the matrix
    unit works while the sum is on its way, and only the addition waits for it.""",
)
