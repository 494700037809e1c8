"""JAX's own Pallas TPU kernels as launches to examine: builders of (function, *arguments).

module: one of JAX's, edited, in which a fault is planted.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
from launches import mesh

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
S = jax.ShapeDtypeStruct
OPS = "jax.experimental.pallas.ops.tpu"
SPLASH = f"{OPS}.splash_attention.splash_attention_kernel"
FLASH = f"{OPS}.flash_attention"
GMM = f"{OPS}.megablox.gmm"
PAGED = f"{OPS}.paged_attention.paged_attention_kernel"
RAGGED = f"{OPS}.ragged_paged_attention.kernel"
MATMUL = f"{OPS}.matmul"
GATHER = f"{OPS}.all_gather"


def splash_kernel(mask, module=None, mqa=False, **options):
    """A SplashAttentionKernel of two heads, in blocks of 128: an object that is called."""
    lib = module or importlib.import_module(SPLASH)
    masks = importlib.import_module(SPLASH.replace("_kernel", "_mask"))
    sizes = lib.BlockSizes(
        block_q=128, block_kv=128, block_kv_compute=128, block_q_dkv=128, block_kv_dkv=128,
        block_kv_dkv_compute=128, block_q_dq=128, block_kv_dq=128,
    )  # fmt: skip
    heads = masks.MultiHeadMask([mask(masks)] * 2)
    make = lib.make_splash_mqa if mqa else lib.make_splash_mha
    return make(mask=heads, head_shards=1, q_seq_shards=1, block_sizes=sizes, **options)


def _causal(masks):
    return masks.CausalMask((256, 256))


def _local(masks):
    return masks.LocalMask((256, 256), window_size=(64, 0), offset=0)


QKV = (S((2, 256, 128), f32),) * 3
BATCHED = (S((1, 2, 256, 128), f32),) * 3


def splash(module=None):
    return splash_kernel(_causal, module), *QKV


def splash_local():
    return splash_kernel(_local), *QKV


def splash_gradient():
    kernel = splash_kernel(_causal)
    return jax.grad(lambda *qkv: jnp.sum(kernel(*qkv)), argnums=(0, 1, 2)), *QKV


def splash_batched():
    return jax.vmap(splash_kernel(_causal)), *(S((2, *x.shape), x.dtype) for x in QKV)


def flash_kernel(module=None, **options):
    lib = module or importlib.import_module(FLASH)
    names = (field.name for field in dataclasses.fields(lib.BlockSizes))
    sizes = lib.BlockSizes(**{name: 1 if name == "block_b" else 128 for name in names})
    return functools.partial(lib.flash_attention, block_sizes=sizes, **options)


def flash():
    return flash_kernel(causal=True), *BATCHED


def flash_gradient(module=None):
    fn = flash_kernel(module, causal=True)
    return jax.grad(lambda *qkv: jnp.sum(fn(*qkv)), argnums=(0, 1, 2)), *BATCHED


SIZES = jnp.array([100, 0, 156, 200, 56], i32)


def _tiled(name, module=None):
    lib = module or importlib.import_module(GMM)
    return functools.partial(getattr(lib, name), tiling=(128, 128, 128))


def gmm(module=None):
    return _tiled("gmm", module), S((512, 256), bf16), S((5, 256, 256), bf16), SIZES


def tgmm():
    return _tiled("tgmm"), S((256, 512), bf16), S((512, 256), bf16), SIZES


def gmm_gradient():
    ops = importlib.import_module(f"{OPS}.megablox.ops")

    def loss(lhs, rhs, sizes):
        return jnp.sum(ops.gmm(lhs, rhs, sizes, f32, (128, 128, 128)))

    return jax.grad(loss, argnums=(0, 1)), S((512, 256), f32), S((5, 256, 256), f32), SIZES


PAGES = S((2, 16, 16, 128), bf16)
TABLE = jnp.asarray(np.random.default_rng(0).permutation(16).reshape(2, 8), i32)
LENGTHS = jnp.array([100, 37], i32)


def paged(module=None, queries=8, **options):
    lib = module or importlib.import_module(PAGED)
    fn = functools.partial(lib.paged_attention, pages_per_compute_block=4, **options)
    return fn, S((2, queries, 128), bf16), PAGES, PAGES, LENGTHS, TABLE


def ragged_paged():
    lib = importlib.import_module(RAGGED)
    fn = functools.partial(
        lib.ragged_paged_attention, num_kv_pages_per_block=4, num_queries_per_block=16,
        vmem_limit_bytes=2**25,
    )  # fmt: skip
    lengths, starts, count = (jnp.array(n, i32) for n in ([100, 37], [0, 20, 32], [2]))
    q, kv = S((32, 4, 128), bf16), S((16, 16, 4, 128), bf16)
    return fn, q, kv, lengths, TABLE, starts, count


def matmul(module=None):
    lib = module or importlib.import_module(MATMUL)
    fn = functools.partial(lib.matmul, block_shape=(128, 128), block_k=128)
    return fn, S((256, 384), f32), S((384, 256), f32)


def all_gather():
    lib = importlib.import_module(GATHER)
    return functools.partial(lib.all_gather, mesh=mesh(), axis_name="x"), S((64, 128), f32)


LAUNCHES = {
    make.__name__: make
    for make in (
        splash, splash_local, splash_gradient, splash_batched, flash, flash_gradient, gmm, tgmm,
        gmm_gradient, paged, ragged_paged, matmul, all_gather,
    )
}  # fmt: skip
