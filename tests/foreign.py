"""JAX's own kernels, as they are installed, in more forms than production.py has.

They are right, as far as JAX's tests say; `examine` has to blame none of them. Of each kernel the
name, the shape in words, what makes it, and the number of matrix products, counted by hand, where
that is easy.
"""

from __future__ import annotations

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import production as jax_own
from production import (
    BATCHED,
    FLASH,
    GATHER,
    GMM,
    LENGTHS,
    MATMUL,
    OPS,
    PAGED,
    PAGES,
    QKV,
    RAGGED,
    SPLASH,
    TABLE,
)

f32, bf16, i8, i32 = jnp.float32, jnp.bfloat16, jnp.int8, jnp.int32
S = jax.ShapeDtypeStruct


def of(path: str, name: str):
    return getattr(importlib.import_module(path), name)


def splash(mask: str, mqa: bool = False, **options):
    def of_one(masks):
        return {"full": masks.FullMask, "causal": masks.CausalMask}[mask]((256, 256))

    made = jax_own.splash_kernel(of_one, mqa=mqa, **options)
    if mqa:
        return made, S((2, 256, 128), f32), S((256, 128), f32), S((256, 128), f32)
    return made, *QKV


def splash_segments():
    kernel, *qkv = splash("full")
    ids = jnp.asarray(np.repeat([0, 1, 2, 3], 64), i32)
    return kernel, *qkv, of(SPLASH, "SegmentIds")(q=ids, kv=ids)


def flash_segments():
    ids = jnp.asarray(np.repeat([0, 1], 128)[None], i32)
    fn = jax_own.flash_kernel()
    return (
        lambda q, k, v, ids: fn(q, k, v, segment_ids=of(FLASH, "SegmentIds")(q=ids, kv=ids)),
        *BATCHED,
        ids,
    )


def grouped(sizes, m=512, dtype=bf16, transposed=False, tile=128):
    gmm = functools.partial(of(GMM, "gmm"), tiling=(tile,) * 3, transpose_rhs=transposed)
    return gmm, S((m, 256), dtype), S((len(sizes), 256, 256), dtype), jnp.array(sizes, i32)


def paged_int8():
    tensor = of(f"{OPS}.paged_attention.quantization_utils", "QuantizedTensor")
    fn = functools.partial(of(PAGED, "paged_attention"), pages_per_compute_block=4)
    pages = S(PAGES.shape, i8), S((*PAGES.shape[:-1], 1), f32)

    def quantized(q, weights, scales, lengths, table):
        both = tensor(weight=weights, scales=scales)
        return fn(q, both, both, lengths, table)

    return quantized, S((2, 8, 128), f32), *pages, LENGTHS, TABLE


def ragged_paged():
    fn = functools.partial(of(RAGGED, "ragged_paged_attention"), num_kv_pages_per_block=8,
                           num_queries_per_block=64, vmem_limit_bytes=2**25)  # fmt: skip
    table = jnp.asarray(np.random.default_rng(0).permutation(63).reshape(3, 21), i32)
    lengths, starts, count = (jnp.array(n, i32) for n in ([328, 180, 255], [0, 192, 320, 384], [3]))
    q, pages = S((384, 32, 128), bf16), S((64, 16, 32, 128), bf16)
    return fn, q, pages, lengths, table, starts, count


def multiplied(m, k, n, block, dtype):
    fn = functools.partial(of(MATMUL, "matmul"), block_shape=(block, block), block_k=block)
    return fn, S((m, k), dtype), S((k, n), dtype)


def gathered(shape, names):
    mesh = jax.sharding.AbstractMesh(shape, names)
    return functools.partial(of(GATHER, "all_gather"), mesh=mesh, axis_name="x"), S((128, 128), f32)


def random(path, name, shape):
    fn = of(f"{OPS}.random.{path}", name)
    return lambda key: fn(key, 32, shape), jnp.array([1, 2], jnp.uint32)


KERNELS = (
    ("splash_attention", "causal, 2 heads of 256 × 128", jax_own.splash, 12),
    ("splash_attention", "window of 64, 2 heads of 256 × 128", jax_own.splash_local),
    ("splash_attention", "causal, its gradient", jax_own.splash_gradient),
    ("splash_attention", "causal, under vmap", jax_own.splash_batched, 24),
    ("splash_attention", "full mask, 2 heads of 256 × 128", lambda: splash("full"), 16),
    ("splash_attention", "causal, one head of keys", lambda: splash("causal", mqa=True), 12),
    ("splash_attention", "causal, soft cap",
     lambda: splash("causal", attn_logits_soft_cap=20.0), 12),
    ("splash_attention", "segments of 64", splash_segments, 16),
    ("flash_attention", "causal, 1 × 2 × 256 × 128", jax_own.flash),
    ("flash_attention", "causal, its gradient", jax_own.flash_gradient),
    ("flash_attention", "all keys, 1 × 2 × 256 × 128",
     lambda: (jax_own.flash_kernel(), *BATCHED), 16),
    ("flash_attention", "with a bias",
     lambda: (jax_own.flash_kernel(), *BATCHED, S((1, 2, 256, 256), f32)), 16),
    ("flash_attention", "segments of 128", flash_segments),
    ("paged_attention", "2 × 8 heads, pages of 16", jax_own.paged),
    ("paged_attention", "a grid axis for the keys", lambda: jax_own.paged(inline_seq_dim=False)),
    ("paged_attention", "2 × 16 heads, soft cap",
     lambda: jax_own.paged(queries=16, attn_logits_soft_cap=20.0)),
    ("paged_attention", "int8 pages", paged_int8),
    ("ragged_paged_attention", "2 sequences, pages of 16", jax_own.ragged_paged),
    ("ragged_paged_attention", "3 sequences of 192, 128, 64 queries", ragged_paged, 480),
    ("matmul", "256 × 384 × 256, f32", jax_own.matmul, 12),
    ("matmul", "512 × 512 × 512, bf16, blocks of 256",
     lambda: multiplied(512, 512, 512, 256, bf16), 8),
    ("all_gather", "4 devices, 32 × 128 of each", lambda: gathered((4,), ("x",))),
    ("all_gather", "rings of 2 of 4 devices", lambda: gathered((2, 2), ("x", "y"))),
    ("philox_random_bits", "512 × 512",
     lambda: random("philox", "philox_random_bits", (512, 512))),
    ("plthreefry_random_bits", "300 × 400",
     lambda: random("threefry", "plthreefry_random_bits", (300, 400))),
    ("example_kernel.double", "64 × 128",
     lambda: (of(f"{OPS}.example_kernel", "double"), S((64, 128), f32))),
    ("megablox.gmm", "sizes 100, 0, 156, 200, 56", jax_own.gmm),
    ("megablox.tgmm", "sizes 100, 0, 156, 200, 56", jax_own.tgmm),
    ("megablox.gmm", "its gradient", jax_own.gmm_gradient),
    ("megablox.gmm", "4 groups of 128: 4 tiles × 2 × 2", lambda: grouped([128] * 4), 16),
    ("megablox.gmm", "transposed weights", lambda: grouped([128] * 4, transposed=True), 16),
    ("megablox.gmm", "one group has all of 300 rows",
     lambda: grouped([0, 384, 0], m=384, dtype=f32), 12),
)  # fmt: skip
