"""Puzzle 14: keys and values go around the ring."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET
from puzzles.collectives import barrier, neighbours

# %% [markdown]
# ## ring_attention: queries stay, keys travel
#
# A sequence too long for one chip is cut into shards: device `d` has `T` rows of `q`, `k` and `v`,
# from row `d * T` on. Its queries need the keys of all rows up to their own, on any
# device.
#
# So keys and values travel around the ring ([Liu et al. 2023](https://arxiv.org/abs/2310.01889)), as
# the rows of `x` did in `all_gather_matmul`. Each device attends to what it has, and an online softmax
# merges the parts: a row maximum `m`, a row sum `l` and an accumulator, as in flash attention.
#
# Attention is causal. A shard from a **later** device is masked out: skip its product. Your own
# shard needs the causal mask, and earlier shards need no mask.
#
# A trap: your neighbour waits for every shard. Pass on even those that you skip.


# %%
def ring_attention_spec(
    q: Float[Array, "T H"], k: Float[Array, "T H"], v: Float[Array, "T H"]
) -> Float[Array, "T H"]:
    keys, values = (lax.all_gather(a, "x", tiled=True) for a in (k, v))
    T = q.shape[0]
    row = lax.axis_index("x") * T + jnp.arange(T)
    scores = q @ keys.T * q.shape[1] ** -0.5
    scores = jnp.where(row[:, None] >= jnp.arange(keys.shape[0]), scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ values


# %%
def ring_attention_kernel(
    q_ref, k_ref, v_ref, o_ref, kv_ref, m_ref, l_ref, acc_ref, send_sem, recv_sems, credits
):
    me, left, right, n = neighbours()
    T, H = q_ref.shape
    barrier(left, right)
    kv_ref[0, 0] = k_ref[...]
    kv_ref[0, 1] = v_ref[...]
    m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
    l_ref[...] = jnp.zeros_like(l_ref)
    acc_ref[...] = jnp.zeros_like(acc_ref)

    def attend(i, slot):
        # In step i, kv_ref[slot] holds the keys and the values of device me - i.
        ### BEGIN SOLUTION
        owner = lax.rem(me - i + n, n)

        @pl.when(owner <= me)
        def _():
            s = lax.dot_general(
                q_ref[...],
                kv_ref[slot, 0],
                (((1,), (1,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            row = lax.broadcasted_iota(jnp.int32, (T, T), 0)
            column = lax.broadcasted_iota(jnp.int32, (T, T), 1)
            s = jnp.where((owner < me) | (row >= column), s * H**-0.5, -jnp.inf)
            m = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
            p, shrink = jnp.exp(s - m), jnp.exp(m_ref[...] - m)
            l_ref[...] = l_ref[...] * shrink + jnp.sum(p, axis=1, keepdims=True)
            pv = jnp.dot(p, kv_ref[slot, 1], preferred_element_type=jnp.float32)
            acc_ref[...] = acc_ref[...] * shrink + pv
            m_ref[...] = m

        ### END SOLUTION

    def step(i, _):
        here, there = lax.rem(i, 2), lax.rem(i + 1, 2)
        copy = pltpu.make_async_remote_copy(
            kv_ref.at[here], kv_ref.at[there], send_sem, recv_sems.at[there], device_id=(right,)
        )

        @pl.when(i > 0)
        def _():
            pl.semaphore_wait(credits, 1)

        ### BEGIN SOLUTION
        copy.start()
        attend(i, here)
        copy.wait()

        ### END SOLUTION
        @pl.when(i < n - 2)
        def _():
            pl.semaphore_signal(credits, 1, device_id=(left,))

    lax.fori_loop(0, n - 1, step, None)
    attend(n - 1, (n - 1) % 2)
    o_ref[...] = acc_ref[...] / l_ref[...]


def ring_attention(
    q: Float[Array, "T H"], k: Float[Array, "T H"], v: Float[Array, "T H"]
) -> Float[Array, "T H"]:
    T, H = q.shape
    column = pltpu.VMEM((T, 1), jnp.float32)
    return pl.pallas_call(
        ring_attention_kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)] * 3,
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((2, 2, T, H), k.dtype),
            column,
            column,
            pltpu.VMEM((T, H), jnp.float32),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.REGULAR,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(q, k, v)


# %% active="ipynb"
# show(ring_attention)

# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng
from puzzles._simulator import Wire
from puzzles.collectives._audits import hidden


def make_inputs(key, x, T, H, factor=1):
    """factor: of q and k, so that scores without their maximum overflow.

    Then some rows lie far below 0 or far above it, and dots are exact in any order.
    """
    r = rng(key)
    q, k, v = (r.normal(0.2, 1, (x, T, H)) * size for size in (factor, factor, 1))
    if factor > 1:
        q[:, ::4] /= 16
        q, k = (np.round(8 * a) / 8 for a in (q, k))
        k[..., 0], q[:, ::4, 0] = H**0.5, r.choice([-150, 150], (x, T // 4))
    return tuple(array(a, jnp.float32) for a in (q, k, v))


def audit(launch: Launch, *, wire: Wire) -> None:
    n = wire.devices
    hidden(wire, n - 1, "attend to")  # the last device attends to every shard that it passes on
    first, last = wire.spent("works", 0), wire.spent("works", n - 1)
    assert first * (n - 0.5) <= last, (
        f"device 0 spends {first / last:.0%} of device {n - 1}'s time on products, and needs 1 "
        f"shard of {n}: a shard from a later device is hidden entirely, so skip its products"
    )


def scale(T=512, H=128):
    return tuple(jax.ShapeDtypeStruct((4, T, H), jnp.float32) for _ in range(3))


def fresh(r):
    return dict(T=8 * int(r.choice([2, 4])), H=128, x=int(r.choice([3, 4, 5])))


PUZZLE = Puzzle(
    picture=False,  # `show` draws who attends to how many shards
    axes={"x": 4},
    spec=ring_attention_spec,
    solution=ring_attention,
    inputs=make_inputs,
    cases=[dict(T=32, H=128), dict(T=16, H=256, x=3, factor=10), dict(T=16, H=128, x=8)],
    fresh=fresh,
    audit=audit,
    scale=scale,
    hints=[
        "Compare the owner of the shard with `me`. What does an earlier shard need, what your own, "
        "and what a later one?",
        "Under `pl.when(owner <= me)` one step of flash attention, with the causal mask only for "
        "your own shard. The copy is not under `pl.when`.",
        "`attend`: the owner; scores, mask, new maximum, weights, and the factor by which the old "
        "sums shrink; update `l`, `acc` and `m`. The step: start, attend, wait.",
    ],
    explain="""Whatever the order in which shards arrive, the online softmax gives the same result.
    Device 0 attends to one shard and the last device to n, so the ring takes as long as the last
    device. Kernels for training share the rows out in another order to balance this.""",
)
