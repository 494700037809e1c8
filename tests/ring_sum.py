"""A puzzle about several devices, for tests: values go round a ring through two slots."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET


# %%
def ring_sum_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return lax.psum(x, "x")


# %%
def ring_sum_kernel(x_ref, o_ref, slots_ref, send_sem, recv_sems, credit):
    me, n = lax.axis_index("x"), lax.axis_size("x")
    left, right = lax.rem(me + n - 1, n), lax.rem(me + 1, n)
    barrier = pltpu.get_barrier_semaphore()
    for other in (left, right):
        pl.semaphore_signal(barrier, 1, device_id=(other,))
    pl.semaphore_wait(barrier, 2)
    o_ref[...] = x_ref[...]
    slots_ref[0] = x_ref[...]

    def step(i, _):
        here, there = lax.rem(i, 2), lax.rem(i + 1, 2)

        ### BEGIN SOLUTION
        @pl.when(i > 0)
        def _():
            pl.semaphore_wait(credit, 1)

        copy = pltpu.make_async_remote_copy(
            slots_ref.at[here],
            slots_ref.at[there],
            send_sem,
            recv_sems.at[there],
            device_id=(right,),
        )
        copy.start()
        copy.wait()
        o_ref[...] += slots_ref[there]

        @pl.when(i < n - 2)
        def _():
            pl.semaphore_signal(credit, 1, device_id=(left,))

        ### END SOLUTION

    lax.fori_loop(0, n - 1, step, None)


def ring_sum(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        ring_sum_kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[
            pltpu.VMEM((2, *x.shape), x.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.REGULAR,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x)


# %% tags=["author"]
from puzzles import Mistake, Puzzle, Record, array, rng  # noqa: E402


def make_inputs(key, x, M, N):
    return (array(rng(key).normal(0.5, 1, (x, M, N)), jnp.float32),)


def audit(launch, *, wire):
    sent = wire.copies(0)
    assert len({one.target for one in sent}) == 1, "all copies go one way"
    assert len(sent) == len(wire.copies(1)), "each device sends as much"


PUZZLE = Puzzle(
    axes={"x": 4},
    spec=ring_sum_spec,
    solution=ring_sum,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, x=3)],
    fresh=lambda r: dict(M=8 * int(r.integers(1, 3)), N=128, x=int(r.integers(2, 6))),
    audit=audit,
    hints=["a", "b", "c"],
    explain="A slot is free once it is sent and read.",
    record=Record(
        (
            Mistake(
                "gives the credit before its slot has left",
                (
                    (
                        "        copy.wait()\n        o_ref",
                        "        copy.wait_recv()\n        o_ref",
                    ),
                ),
                says="while device 2 still sends it",
                stage="memory",
            ),
        )
    ),
)
