"""The kernels of examine.md: a matmul with two slips, and a stream of copies with one."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def matmul(a, b):
    (M, K), N = a.shape, b.shape[1]
    return pl.pallas_call(
        matmul_kernel,
        grid=(M // 128, N // 128, K // 128),
        in_specs=[
            pl.BlockSpec((128, 128), lambda i, j, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), a.dtype),
        scratch_shapes=[pltpu.VMEM((128, 128), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3),
    )(a, b)


def stream_kernel(x_ref, o_ref, buffers, semaphores):
    step, steps = pl.program_id(0), pl.num_programs(0)

    def fetch(n, slot):
        piece = x_ref.at[pl.ds(n * 8, 8)]
        return pltpu.make_async_copy(piece, buffers.at[slot], semaphores.at[slot])

    @pl.when(step == 0)
    def _():
        fetch(0, 0).start()

    @pl.when(step + 1 < steps)
    def _():
        fetch(step + 1, (step + 1) % 2).start()

    o_ref[...] = buffers[step % 2] * 2.0
    fetch(step, step % 2).wait()


def stream(x):
    return pl.pallas_call(
        stream_kernel,
        grid=(x.shape[0] // 8,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((2, 8, 128), x.dtype), pltpu.SemaphoreType.DMA((2,))],
    )(x)
