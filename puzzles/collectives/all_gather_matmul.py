"""Puzzle 12: multiply what you have while the next part is on its way."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET
from puzzles.collectives import barrier, neighbours

# %% [markdown]
# ## all_gather_matmul: multiply while it travels
#
# Rows of `x` are spread over the devices, and each device has its own columns of `w`. Each needs
# the product of **all** rows with its columns: an all-gather, then a matmul. If one follows the
# other, the matrix unit waits for the wire, and then the wire waits for the matrix unit.
#
# ![Two drawings of four devices: in the first the products stand between the copies, in the second below them](diagrams/collectives/all_gather_matmul.svg)
#
# Put both into one loop. In step `i` the rows in slot `here` travel to the right neighbour. Copying
# only reads them, so you may **multiply the same rows at the same time**. Start the copy, multiply,
# and only then wait.
#
# The wire costs nothing as long as a product takes longer than a copy. On v5e, in bf16, this needs
# at least 4,400 columns of `w` on each device, and enough rows of `x` to fill the matrix unit. Short
# copies need more, because of their latency.


# %%
def all_gather_matmul_spec(x: Float[Array, "M K"], w: Float[Array, "K N"]) -> Float[Array, "D*M N"]:
    return lax.all_gather(x, "x", tiled=True) @ w


# %%
def all_gather_matmul_kernel(x_ref, w_ref, o_ref, slots_ref, send_sem, recv_sems, credits):
    me, left, right, n = neighbours()
    M = x_ref.shape[0]
    barrier(left, right)
    slots_ref[0] = x_ref[...]

    def multiply(i, slot):
        # In step i the slot holds the rows of device me - i.
        rows = pl.ds(pl.multiple_of(lax.rem(me - i + n, n) * M, M), M)
        o_ref[rows, :] = jnp.dot(slots_ref[slot], w_ref[...], preferred_element_type=jnp.float32)

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
        multiply(i, here)
        copy.wait()

        ### END SOLUTION
        @pl.when(i < n - 2)
        def _():
            pl.semaphore_signal(credits, 1, device_id=(left,))

    lax.fori_loop(0, n - 1, step, None)
    # n - 1 products are done.
    ### BEGIN SOLUTION
    multiply(n - 1, lax.rem(n - 1, 2))
    ### END SOLUTION


def all_gather_matmul(x: Float[Array, "M K"], w: Float[Array, "K N"]) -> Float[Array, "D*M N"]:
    n = lax.axis_size("x")
    M, N = x.shape[0], w.shape[1]
    return pl.pallas_call(
        all_gather_matmul_kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)] * 2,
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        out_shape=jax.ShapeDtypeStruct((n * M, N), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((2, *x.shape), x.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.REGULAR,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x, w)


# %% active="ipynb"
# show(all_gather_matmul)

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles._simulator import Wire
from puzzles.collectives._audits import hidden


def make_inputs(key, x, M, K, N):
    r = rng(key)
    return (
        array(r.normal(0.3, 1, (x, M, K)), jnp.float32),
        array(r.normal(0, K**-0.5, (x, K, N)), jnp.float32),
    )


def audit(launch: Launch, *, wire: Wire) -> None:
    hidden(wire)


def scale(M=256, K=1024, N=512):
    f32 = jnp.float32
    return jax.ShapeDtypeStruct((4, M, K), f32), jax.ShapeDtypeStruct((4, K, N), f32)


def fresh(r):
    return dict(M=8 * int(r.choice([1, 3])), K=128, N=128, x=int(r.choice([3, 4, 5])))


PUZZLE = Puzzle(
    axes={"x": 4},
    spec=all_gather_matmul_spec,
    solution=all_gather_matmul,
    inputs=make_inputs,
    cases=[dict(M=16, K=128, N=256), dict(M=8, K=256, N=128, x=3), dict(M=8, K=128, N=256, x=8)],
    fresh=fresh,
    audit=audit,
    scale=scale,
    hints=[
        "Which rows may you read while a copy out of slot `here` is in flight? And which must you "
        "not touch before the wait?",
        "Multiply slot `here` between start and wait. After the loop one block of rows has "
        "arrived that is not yet multiplied.",
        "In the step two lines: multiply, wait. After the loop, the product of step n - 1, from "
        "the slot that the last step filled.",
    ],
    explain="""Copy and product both only read slot `here`, so they may overlap. The matrix unit needs
    2 M K N operations while the wire needs 2 M K bytes in bf16: M and K cancel, and N alone decides
    which takes longer. On v5e 197 TFLOP/s divided by 45 GB/s gives 4,378 columns.""",
)
