"""Puzzle 5: a matmul whose tiles are fetched by hand."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## double_buffered_matmul: two copies a round
#
# Now do the same for `a @ b`. The grid walks over blocks of the output; the sum over `K` is a loop
# in the kernel, and you fetch its tiles:
#
# ```text
#                    slot 0             slot 1             slot 0
# a[i, k]  (i fixed) [ k = 0 ]          [ k = 1 ]          [ k = 2 ]
# b[k, j]  (j fixed) [ k = 0 ]          [ k = 1 ]          [ k = 2 ]
#                        \_ o += a b        \_ o += a b        \_ o += a b
# ```
#
# A round needs a tile of `a` and a tile of `b`, and both copies are in flight together. `sems` has
# (2, 2) semaphores: one for each operand and slot. (One semaphore for each slot would be enough:
# after both waits the bytes of both copies are there, and the dot comes later.)
#
# `fetch(k, slot)` gives both descriptions as a pair. The `for` over the pair is Python's, so it is
# unrolled into two statements.
#
# The loop runs in every grid step, so each needs its own prologue.


# %%
def double_buffered_matmul_spec(
    a: Float[Array, "M K"], b: Float[Array, "K N"]
) -> Float[Array, "M N"]:
    return jnp.dot(a, b)


# %%
def double_buffered_matmul_kernel(a_ref, b_ref, o_ref, a_slots, b_slots, sems):
    i, j = pl.program_id(0), pl.program_id(1)
    n = a_ref.shape[1] // 128

    def fetch(k, slot):
        # The copies of a's tile (i, k) and of b's tile (k, j) into their slots.
        ### BEGIN SOLUTION
        a_tile = a_ref.at[pl.ds(i * 128, 128), pl.ds(k * 128, 128)]
        b_tile = b_ref.at[pl.ds(k * 128, 128), pl.ds(j * 128, 128)]
        a_copy = pltpu.make_async_copy(a_tile, a_slots.at[slot], sems.at[0, slot])
        b_copy = pltpu.make_async_copy(b_tile, b_slots.at[slot], sems.at[1, slot])
        return a_copy, b_copy
        ### END SOLUTION

    for copy in fetch(0, 0):
        copy.start()
    o_ref[...] = jnp.zeros_like(o_ref)

    def step(k, _):
        slot = jax.lax.rem(k, 2)

        @pl.when(k + 1 < n)
        def _():
            for copy in fetch(k + 1, 1 - slot):
                copy.start()

        # Wait for both tiles, and add their product to o_ref.
        ### BEGIN SOLUTION
        for copy in fetch(k, slot):
            copy.wait()
        o_ref[...] += jnp.dot(a_slots[slot], b_slots[slot], preferred_element_type=jnp.float32)
        ### END SOLUTION

    jax.lax.fori_loop(0, n, step, None)


def double_buffered_matmul(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    M, N = a.shape[0], b.shape[1]
    two_slots = pltpu.VMEM((2, 128, 128), jnp.float32)
    return pl.pallas_call(
        double_buffered_matmul_kernel,
        grid=(M // 128, N // 128),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[two_slots, two_slots, pltpu.SemaphoreType.DMA((2, 2))],
        interpret=INTERPRET,
    )(a, b)


# %% [markdown]
# The reference moves as many bytes as `tiled_matmul` would with blocks of this size: a pipeline
# hides the time of copies, not their bytes.

# %% active="ipynb"
# receipt(double_buffered_matmul, jnp.ones((1024, 2048)), jnp.ones((2048, 1024)))

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import multiplied_once, overlapped


def make_inputs(key, M, K, N):
    r = rng(key)
    a, b = r.normal(size=(M, K)), r.normal(size=(K, N))
    return array(a, jnp.float32), array(b, jnp.float32)


def audit(launch: Launch) -> None:
    multiplied_once(launch)
    (a, b), (o,) = launch.inputs, launch.outputs
    for one, along in ((a, o.shape[1]), (b, o.shape[0])):
        times, enough = one.hbm_bytes / (4 * one.shape[0] * one.shape[1]), max(1, along // 128)
        assert times <= enough, (
            f"`{one.name}` is copied {times:.3g} times, but {enough} "
            f"{'is' if enough == 1 else 'are'} enough: bring each tile once for each block of "
            "the result"
        )
    overlapped(launch, first=launch.outputs[0].transfers)
    waits = (launch.waits or {}).values()
    assert a.shape[1] <= 128 or not waits or any(its.exposed < its.count for its in waits), (
        "no copy is in flight while the kernel computes: fetch tiles along K, and start the next "
        "before the dot of these"
    )


def scale(M=1024, K=2048, N=1024):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


PUZZLE = Puzzle(
    spec=double_buffered_matmul_spec,
    solution=double_buffered_matmul,
    inputs=make_inputs,
    cases=[dict(M=256, K=384, N=128), dict(M=256, K=128, N=640)],
    fresh=lambda r: (
        dict(M=256, K=384, N=128)
        if r.integers(4)
        else dict(M=384, K=128 * int(r.choice([4, 13, 16])), N=128)
    ),
    hints=[
        "A tile is a piece of an array in two directions. Which program id gives its place along "
        "M, and which along N? What gives its place along K?",
        "`a_ref.at[pl.ds(…, 128), pl.ds(…, 128)]` names a tile in HBM, `a_slots.at[slot]` a "
        "slot, and `sems.at[operand, slot]` a semaphore.",
        "In `fetch`: name both tiles, describe both copies, return the two. In `step`: a `for` "
        "over the pair that waits for each; then `+=` with the dot of the two slots.",
    ],
    explain="""In the reference both copies of the next round fly while this round's dot runs, and
    each operand has its slots and its semaphores. The bytes are those of `tiled_matmul` with such
    blocks: which tiles are needed, and how often, has not changed.""",
    audit=audit,
    scale=scale,
)
