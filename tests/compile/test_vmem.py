"""A receipt's VMEM for blocks of few rows is as large as libtpu's allocation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, copy_kernel

from puzzles._jax import CUTS_TILES_OF_BYTES
from puzzles._launch import trace_call

f32, bf16 = jnp.float32, jnp.bfloat16
S = jax.ShapeDtypeStruct


def kept(rows, dtype, limit=None):
    """A kernel with some MiB of scratch, in matrices of so many rows."""
    x = S((2, rows, 128), dtype)

    def kernel(x_ref, o_ref, scratch):
        i = pl.program_id(0)
        scratch[i] = x_ref[...]
        o_ref[...] = scratch[i // 2]

    spec = pl.BlockSpec((None, rows, 128), lambda i: (i, 0, 0))
    scratch = [pltpu.VMEM((2**14 // rows, rows, 128), dtype)]
    params = pltpu.CompilerParams(vmem_limit_bytes=limit)
    return trace_call(call(kernel, x, (2,), [spec], spec, scratch, compiler_params=params), x)


def cut(rows, dtype, limit=None, blocks=4):
    """A copy in blocks of so many rows, out of more."""
    x, spec = S((blocks * rows, 2**15), dtype), pl.BlockSpec((rows, 2**15), lambda i: (i, 0))

    params = pltpu.CompilerParams(vmem_limit_bytes=limit)
    return trace_call(call(copy_kernel, x, (blocks,), [spec], spec, compiler_params=params), x)


FEW = [(kept, n, dtype) for dtype in (f32, bf16, jnp.int8) for n in (1, 3, 8, 12)]


@sample.drill
@pytest.mark.skipif(
    jax.__version_info__ < (0, 8), reason="its libtpu names only a part of what it needs"
)
def test_few_rows_take_what_the_receipt_says(compiler):
    for kernel, rows, dtype in [*FEW, (cut, 8, f32), (cut, 8, bf16), (cut, 32, jnp.int8)]:
        (launch,) = kernel(rows, dtype).launches
        need, name = launch.vmem_bytes, (kernel.__name__, rows, jnp.dtype(dtype).name)
        said = compiler.compile(kernel(rows, dtype, need), ["v4", "v5e"])
        assert said == {"v4": None, "v5e": None}, name
        said = compiler.compile(kernel(rows, dtype, int(0.97 * need)), ["v4", "v5e"])
        assert all("MiB of VMEM" in (why or "") for why in said.values()), name


@pytest.mark.slow
def test_a_block_of_8_bits_cuts_no_tile_of_32_rows(compiler):
    """Of 32 rows it does, if it has 8; of 40 it does not. Some versions of libtpu cut a tile."""
    refused = compiler.compile(cut(8, jnp.int8), ["v5e"])["v5e"]
    assert refused is None if CUTS_TILES_OF_BYTES else "window params" in refused
    assert compiler.compile(cut(8, jnp.int8, blocks=5), ["v5e"])["v5e"] is None
