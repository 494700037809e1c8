"""What a receipt says of VMEM, against what libtpu allocates: never much more, seldom much less."""

from __future__ import annotations

import importlib.util
import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles import _tpu
from puzzles._launch import trace_call
from puzzles._tpu import INSTALL_LIBTPU, Compiler

needs_libtpu = pytest.mark.skipif(
    not _tpu.has_libtpu() or importlib.util.find_spec("flatbuffers") is None,
    reason=INSTALL_LIBTPU,
)
f32, bf16 = jnp.float32, jnp.bfloat16
S = jax.ShapeDtypeStruct


def attention(bq, bk, dtype=f32, T=4096, H=128):
    def kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            m_ref[...] = jnp.full_like(m_ref, -1e30)
            l_ref[...] = jnp.zeros_like(l_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        contract = (((1,), (1,)), ((), ()))
        s = jax.lax.dot_general(q_ref[...], k_ref[...], contract, preferred_element_type=f32)
        m = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p, alpha = jnp.exp(s - m), jnp.exp(m_ref[...] - m)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p.astype(dtype), v_ref[...], preferred_element_type=f32)
        acc_ref[...] = alpha * acc_ref[...] + pv
        m_ref[...] = m

        @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
        def _():
            o_ref[...] = (acc_ref[...] / l_ref[...]).astype(dtype)

    q = pl.BlockSpec((bq, H), lambda i, j: (i, 0))
    kv = pl.BlockSpec((bk, H), lambda i, j: (j, 0))
    column = pltpu.VMEM((bq, 1), f32)
    form = dict(
        grid=(T // bq, T // bk),
        in_specs=[q, kv, kv],
        out_specs=q,
        out_shape=S((T, H), dtype),
        scratch_shapes=[column, column, pltpu.VMEM((bq, H), f32)],
    )
    return kernel, form, [S((T, H), dtype)] * 3


def matmul(bm, bk, bn, dtype=f32, M=2048):
    def kernel(a_ref, b_ref, o_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=f32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = acc_ref[...].astype(dtype)

    form = dict(
        grid=(M // bm, M // bn, M // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=S((M, M), dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), f32)],
    )
    return kernel, form, [S((M, M), dtype)] * 2


def row_sum(bm, bn, M=4096):
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)

    form = dict(
        grid=(M // bm, M // bn),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((bm, 1), lambda i, j: (i, 0)),
        out_shape=S((M, 1), f32),
    )
    return kernel, form, [S((M, M), f32)]


def by_rows(kernel, block, N=4096):
    spec = pl.BlockSpec((block, N), lambda i: (i, 0))
    form = dict(grid=(N // block,), in_specs=[spec], out_specs=spec, out_shape=S((N, N), f32))
    return kernel, form, [S((N, N), f32)]


def softmax_kernel(x_ref, o_ref):
    e = jnp.exp(x_ref[...] - jnp.max(x_ref[...], axis=1, keepdims=True))
    o_ref[...] = e / jnp.sum(e, axis=1, keepdims=True)


def gelu_kernel(x_ref, o_ref):
    o_ref[...] = jax.nn.gelu(x_ref[...], approximate=True)


KERNELS = {
    "attention 128 x 128": attention(128, 128),
    "attention 256 x 512": attention(256, 512),
    "attention 1024 x 1024": attention(1024, 1024),
    "attention 1024 x 2048": attention(1024, 2048),
    "attention 1024 x 1024 bf16": attention(1024, 1024, bf16),
    "matmul 512": matmul(512, 512, 512),
    "matmul 512 x 2048 x 512": matmul(512, 2048, 512),
    "matmul 1024 bf16": matmul(1024, 1024, 1024, bf16),
    "row_sum 512 x 512": row_sum(512, 512),
    "row_sum 1024 x 1024": row_sum(1024, 1024),
    "softmax 256": by_rows(softmax_kernel, 256),
    "gelu 128": by_rows(gelu_kernel, 128),
}


def traced(name, limit):
    kernel, form, shapes = KERNELS[name]
    params = pltpu.CompilerParams(vmem_limit_bytes=limit)
    call = pl.pallas_call(kernel, **form, compiler_params=params, interpret=True)
    return trace_call(lambda *args: call(*args), *shapes)


def allocated(compiler: Compiler, name: str, guess: float) -> float:
    """MiB that libtpu allocates for v5e: below its need it says how much it had got to."""
    limit, need = int(guess * 0.4 * 2**20), 0.0
    while said := compiler.compile(traced(name, limit), ["v5e"])["v5e"]:
        need = float(re.search(r"it needs ([\d.]+) MiB", said)[1])
        limit = int(max(1.01 * limit, need * 2**20))
    return need
