"""Right launches of every kind that JAX's documentation shows: builders of (function, *arguments).

`examine` has to find nothing wrong in them. `sabotage.py` edits their text, one fault at a time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
S = jax.ShapeDtypeStruct
ANY = pl.BlockSpec(memory_space=pl.ANY)


def rows(n, bm=8, width=128):
    """A block of `bm` rows for each step of a grid of one axis, of n arguments."""
    return [pl.BlockSpec((bm, width), lambda i: (i, 0))] * n


def by_rows(kernel, **other):
    """A call of a kernel on four blocks of rows of each argument; `other`: more arguments."""

    def call(*args):
        own = dict(
            grid=(4,), in_specs=rows(len(args)), out_specs=rows(1)[0],
            out_shape=S(args[-1].shape, args[-1].dtype),
        )  # fmt: skip
        return pl.pallas_call(kernel, **own | other)(*args)

    return call


def add_vectors():
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(kernel, out_shape=S((8, 128), f32)), S((8, 128), f32), S((8, 128), f32)


def scale_rows():
    def kernel(x_ref, s_ref, o_ref):
        o_ref[...] = x_ref[...] * s_ref[0]

    def scale(x, s):
        smem = pl.BlockSpec(memory_space=pltpu.SMEM)
        out = S(x.shape, x.dtype)
        return pl.pallas_call(
            kernel, grid=(4,), in_specs=[*rows(1), smem], out_specs=rows(1)[0], out_shape=out
        )(x, s)

    return scale, S((32, 128), f32), S((1,), f32)


def ragged_rows():
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.exp(x_ref[...])

    return by_rows(kernel), S((30, 128), f32)


def ragged_sum():
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        row = lax.broadcasted_iota(i32, x_ref.shape, 0) + pl.program_id(0) * x_ref.shape[0]
        inside = jnp.where(row < 30, x_ref[...], 0.0)
        o_ref[...] += jnp.sum(inside, axis=0, keepdims=True)

    whole = pl.BlockSpec((1, 128), lambda i: (0, 0))
    return by_rows(kernel, out_specs=whole, out_shape=S((1, 128), f32)), S((30, 128), f32)


def matmul_kernel(a_ref, b_ref, o_ref, acc_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=f32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def multiply(a, b, bm=128, bk=128, bn=128, limit=None):
    (m, k), n = a.shape, b.shape[1]
    return pl.pallas_call(
        matmul_kernel,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=S((m, n), a.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), f32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=limit
        ),
    )(a, b)


def matmul():
    return multiply, S((256, 384), bf16), S((384, 256), bf16)


class Layer:
    """A callable object, whose weights are its own."""

    def __init__(self):
        self.w = jnp.ones((128, 128), f32)

    def __call__(self, x):
        return multiply(x, self.w)

    def forward(self, x):
        return multiply(x, self.w)


def softmax_rows():
    def kernel(x_ref, o_ref):
        e = jnp.exp(x_ref[...] - jnp.max(x_ref[...], axis=1, keepdims=True))
        o_ref[...] = e / jnp.sum(e, axis=1, keepdims=True)

    return by_rows(kernel), S((32, 128), f32)


def squeezed_batch():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...].T

    transposed = pl.pallas_call(
        kernel,
        grid=(3, 2),
        in_specs=[pl.BlockSpec((None, 128, 128), lambda b, i: (b, i, 0))],
        out_specs=pl.BlockSpec((None, 128, 128), lambda b, i: (b, 0, i)),
        out_shape=S((3, 128, 256), f32),
    )
    return transposed, S((3, 256, 128), f32)


def picked_blocks():
    def kernel(index_ref, x_ref, o_ref):
        del index_ref
        o_ref[...] = x_ref[...]

    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, index_ref: (index_ref[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, index_ref: (i, 0)),
    )
    picked = pl.pallas_call(kernel, grid_spec=grid_spec, out_shape=S((32, 128), f32))
    return picked, jnp.array([5, 0, 0, 7], i32), S((64, 128), f32)


def in_place():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0

    return by_rows(kernel, input_output_aliases={0: 0}), S((32, 128), f32)


def filled_elsewhere():
    def kernel(x_ref, zeros_ref, o_ref):
        del zeros_ref
        o_ref[...] = x_ref[...]

    def padded(x):
        last = pl.BlockSpec((8, 128), lambda i: (i + 2, 0))
        return pl.pallas_call(
            kernel, grid=(2,), in_specs=[*rows(1), ANY], out_specs=last,
            out_shape=S((32, 128), f32), input_output_aliases={1: 0},
        )(x, jnp.zeros((32, 128), f32))  # fmt: skip

    return padded, S((16, 128), f32)


def one_copy():
    def kernel(x_ref, o_ref, semaphore):
        copy = pltpu.make_async_copy(x_ref, o_ref, semaphore)
        copy.start()
        copy.wait()

    copied = pl.pallas_call(
        kernel, in_specs=[ANY], out_specs=ANY, out_shape=S((64, 128), f32),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )  # fmt: skip
    return copied, S((64, 128), f32)


def two_buffers():
    def kernel(x_ref, o_ref, buffers, semaphores):
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

        fetch(step, step % 2).wait()
        o_ref[...] = buffers[step % 2] * 2.0

    scratch = [pltpu.VMEM((2, 8, 128), f32), pltpu.SemaphoreType.DMA((2,))]
    return by_rows(kernel, in_specs=[ANY], scratch_shapes=scratch), S((32, 128), f32)


def scoped_copy():
    def kernel(x_ref, o_ref):
        def body(buffer, semaphore):
            copy = pltpu.make_async_copy(x_ref, buffer, semaphore)
            copy.start()
            copy.wait()
            o_ref[...] = jnp.tanh(buffer[...])

        pl.run_scoped(body, pltpu.VMEM((32, 128), f32), pltpu.SemaphoreType.DMA)

    return pl.pallas_call(kernel, in_specs=[ANY], out_shape=S((32, 128), f32)), S((32, 128), f32)


def masked_blocks():
    """Blocks above the diagonal are neither computed nor fetched again."""

    def kernel(a_ref, o_ref, acc_ref):
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when(j == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        @pl.when(j <= i)
        def _():
            acc_ref[...] += a_ref[...]

        @pl.when(j == pl.num_programs(1) - 1)
        def _():
            o_ref[...] = acc_ref[...]

    lower = pl.pallas_call(
        kernel,
        grid=(4, 4),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, jnp.minimum(i, j)))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, 0)),
        out_shape=S((32, 128), f32),
        scratch_shapes=[pltpu.VMEM((8, 128), f32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )
    return lower, S((32, 512), f32)


def running_sum():
    """Scratch is handed from step to step."""

    def kernel(x_ref, o_ref, acc_ref):
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        o_ref[...] = acc_ref[...]

    summed = by_rows(
        kernel,
        scratch_shapes=[pltpu.VMEM((8, 128), f32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )
    return summed, S((32, 128), f32)


def large_blocks():
    bm = 1024

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2.0

    spec = rows(1, bm, 512)
    doubled = pl.pallas_call(
        kernel, grid=(2,), in_specs=spec, out_specs=spec[0], out_shape=S((2 * bm, 512), f32)
    )
    return doubled, S((2 * bm, 512), f32)


def in_a_scan():
    fn, x = softmax_rows()

    def scanned(x):
        return lax.scan(lambda c, _: (fn(c), None), x, None, length=3)[0]

    return scanned, x


def mesh(*sizes):
    """An abstract mesh: nobody here has several devices. Its axes are named x, y and z."""
    sizes = sizes or (4,)
    auto = (jax.sharding.AxisType.Auto,) * len(sizes)  # the default before JAX 0.11.2
    return jax.sharding.AbstractMesh(sizes, tuple("xyz"[: len(sizes)]), axis_types=auto)


def sharded():
    fn, _ = softmax_rows()
    spec = jax.sharding.PartitionSpec("x")
    how = dict(mesh=mesh(), in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(jax.shard_map(fn, **how)), S((128, 128), f32)


LAUNCHES = {
    make.__name__: make
    for make in (
        add_vectors, scale_rows, ragged_rows, ragged_sum, matmul, softmax_rows, squeezed_batch,
        picked_blocks, in_place, filled_elsewhere, one_copy, two_buffers, scoped_copy,
        masked_blocks, running_sum, large_blocks, in_a_scan, sharded,
    )
}  # fmt: skip
