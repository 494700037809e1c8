"""Puzzle 15: all of it."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET, pipelines_on_cpu
from puzzles.collectives import barrier, neighbours

pipelines_on_cpu()

# %% [markdown]
# ## collective_matmul: all of it
#
# `all_gather_matmul` kept everything in VMEM, so its arrays must be small. Now `x`, `w` and the
# result stay in HBM, as in production. You have all the parts:
#
# * from `bidirectional_all_gather`: halves travel in both directions into `all_ref`, a buffer in HBM
#   with a place for each half, so there are no slots and no credits;
# * from `pipelined_matmul`, in `pipelines.ipynb`: `emit_pipeline` copies blocks to VMEM, where they
#   are multiplied;
# * from `all_gather_matmul`: multiply what you have while the next part travels.
#
# In step `i` two halves leave, the first half of block `me - i` to the right and the second half of
# block `me + i` to the left. Meanwhile, multiply these two halves. In step 0
# they make up your own block.
#
# `multiply` runs the pipeline on both. Write `owner`, `send` and the step.
# [tpu-inference](https://github.com/vllm-project/tpu-inference)'s `all_gather_matmul` also sends
# halves both ways, but copies its blocks by hand.


# %%
def collective_matmul_spec(x: Float[Array, "M K"], w: Float[Array, "K N"]) -> Float[Array, "D*M N"]:
    return lax.all_gather(x, "x", tiled=True) @ w


# %%
def collective_matmul_kernel(
    x_ref, w_ref, o_ref, all_ref, acc_ref, local_sem, send_sems, recv_sems, *, bm, bk, bn
):
    me, left, right, n = neighbours()
    half, (K, N) = x_ref.shape[0] // 2, w_ref.shape
    barrier(left, right)
    # A production kernel sends the halves of step 0 from x_ref, without this copy.
    own = pltpu.make_async_copy(x_ref, all_ref.at[me], local_sem)
    own.start()
    own.wait()

    def add(a_ref, b_ref, c_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == K // bk - 1)
        def _():
            c_ref[...] = acc_ref[...].astype(c_ref.dtype)

    pipeline = pltpu.emit_pipeline(
        add,
        grid=(half // bm, N // bn, K // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=[pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))],
    )

    def owner(i, way):
        # Whose half leaves in step i to the right (way 0), and whose to the left (way 1)?
        # `i` and `way` may be traced: no Python `if`.
        ### BEGIN SOLUTION
        return lax.rem(me + jnp.where(way == 0, n - i, i), n)
        ### END SOLUTION

    def half_of(block, way):
        return all_ref.at[block, pl.ds(pl.multiple_of(way * half, half), half)]

    def multiply(turn):
        # Multiplies the halves that leave in step `turn`; for turn = n - 1, the last to arrive.
        def one(way, _):
            block = owner(turn, way)
            rows = pl.ds(pl.multiple_of((2 * block + way) * half, half), half)
            pipeline(half_of(block, way), w_ref, o_ref.at[rows])

        lax.fori_loop(0, 2, one, None)

    def send(i, way):
        # The copy of the half that leaves in step i.
        ### BEGIN SOLUTION
        part = half_of(owner(i, way), way)
        other = (right, left)[way]
        return pltpu.make_async_remote_copy(
            part, part, send_sems.at[way], recv_sems.at[way, i], device_id=(other,)
        )
        ### END SOLUTION

    def step(i, _):
        ### BEGIN SOLUTION
        for way in range(2):
            send(i, way).start()
        multiply(i)
        for way in range(2):
            send(i, way).wait()
        ### END SOLUTION

    lax.fori_loop(0, n - 1, step, None)
    multiply(n - 1)


def collective_matmul(
    x: Float[Array, "M K"], w: Float[Array, "K N"], *, bm=16, bk=128, bn=128
) -> Float[Array, "D*M N"]:
    n = lax.axis_size("x")
    (M, K), N = x.shape, w.shape[1]

    out, _ = pl.pallas_call(
        functools.partial(collective_matmul_kernel, bm=bm, bk=bk, bn=bn),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
        out_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
        out_shape=[
            jax.ShapeDtypeStruct((n * M, N), x.dtype),
            jax.ShapeDtypeStruct((n, M, K), x.dtype),
        ],
        scratch_shapes=[
            pltpu.VMEM((bm, bn), jnp.float32),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2, n - 1)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=INTERPRET,
    )(x, w)
    return out


# %% [markdown]
# ### What it costs, and when it pays
#
# Here are four ways to gather rows and multiply them, on four chips with `M` = 1,024, `K` = 256 and
# `N` = 4,096, with times by the receipt's model. The first two gather, in one direction or in both,
# then multiply: a product takes the longer of two times, that of its operations and that of its bytes
# in HBM. The other two multiply while they gather.

# %% active="ipynb"
# from puzzles.collectives import compare_gathers
#
# compare_gathers("v5e", "v6e")

# %% [markdown]
# On v5e the product of a block takes about as long as its copy, so there is much to hide. Still, at
# this size the fastest way is to gather in both directions, then multiply:
#
# * `all_gather_matmul` hides most of its copies to the neighbour, but not those of its operands to
#   VMEM or of its result back. The table counts a bf16 result. In f32 it would take 64 MiB of VMEM.
# * `collective_matmul` also overlaps its copies between HBM and VMEM. But it reads the 2 MiB of
#   `w` once for each of eight halves, even if `bm` is all rows of a half, as in the table: 16 MiB.
#
# With more rows and a larger `K`, each byte from HBM is used in more operations:
# `compare_gathers("v5e", M=2048, K=512)` gives 221 µs for `collective_matmul`, and 253 µs for the
# best of the others.
#
# On v6e the matrix unit is almost five times as fast, but HBM and the links only twice, so all four
# ways wait for bytes. `collective_matmul` is the fastest here, but only just: for its products alone
# it reads 18 MiB from HBM and writes 32 MiB, in 32 µs.
#
# Use XLA's collective if nothing can run meanwhile, or if XLA overlaps it by itself. XLA can split
# a gather before a matmul in the same way, as [Wang et
# al.](https://dl.acm.org/doi/10.1145/3567955.3567959) describe; its flags call this a windowed
# einsum. A kernel pays when the work between the copies is itself a kernel, such as attention or a
# grouped matmul.
#
# ### Where to go next
#
# * JAX's [tutorial on distributed kernels](https://docs.jax.dev/en/latest/pallas/tpu/distributed.html)
#   nests `emit_pipeline` in a reduce-scatter.
# * tokamax's ring attention (2026) sends shards by `lax.ppermute`, outside its launches of splash.
# * tpu-inference's experimental fused mixture of experts (2026) sends result rows home from inside
#   the grouped matmul.
# * Between slices, data go over the data centre's network: use XLA's collectives there.

# %% tags=["author"]
from puzzles import Launch, Puzzle
from puzzles._simulator import Wire
from puzzles.collectives._audits import both_ways, hidden
from puzzles.collectives.all_gather_matmul import make_inputs


def audit(launch: Launch, *, wire: Wire) -> None:
    both_ways(wire)
    hidden(wire)


def scale(M=1024, K=4096, N=1024, bm=512, bk=512, bn=512):
    f32 = jnp.float32
    return jax.ShapeDtypeStruct((4, M, K), f32), jax.ShapeDtypeStruct((4, K, N), f32)


def fresh(r):
    return dict(M=32, K=128 * int(r.choice([1, 2])), N=128, x=3)


PUZZLE = Puzzle(
    picture=False,  # the parts were drawn where they were introduced
    axes={"x": 4},
    spec=collective_matmul_spec,
    solution=collective_matmul,
    inputs=make_inputs,
    cases=[dict(M=32, K=128, N=128), dict(M=32, K=256, N=128, x=3)],
    fresh=fresh,
    audit=audit,
    scale=scale,
    hints=[
        "Which halves leave in step `i`, and in which direction? The same halves are ready to be "
        "multiplied.",
        "`owner` is `me - i` to the right and `me + i` to the left, modulo `n`. `send` describes "
        "a remote copy of `half_of(...)` onto itself, to the right (way 0) or to the left (way 1).",
        "The step: start both copies; multiply what leaves; wait for both.",
    ],
    explain="""Each half has a place of its own in `all_ref`, so nothing is overwritten and no credit
    is needed. While two halves travel, the pipeline multiplies the same two halves. The wire is free
    as long as their product takes longer than their copy.""",
)
