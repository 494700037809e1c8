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

from puzzles import Examination

f32, bf16, i8, i32 = jnp.float32, jnp.bfloat16, jnp.int8, jnp.int32
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


# The steps of a ring of four devices share a receive semaphore: an early copy ends another's wait.
SHARED = "`recv_sem[1]`, but 2 copies arrive there"
WARNED = ("all_gather", "all_gather: 4 devices, 32 × 128 of each")


def unexpected(kernel: str, found: Examination) -> list[str]:
    """The warnings and errors of a kernel; [] if it is in WARNED and SHARED is the only one."""
    says = [one.says for one in found.findings if one.severity != "note"]
    warned = len(says) == 1 and SHARED in says[0]
    return says if kernel not in WARNED else [] if warned else [SHARED, *says]


# More launches, for `make examine-bench`: the name, the shape in words, the builder, and the number
# of matrix products, counted by hand if that is easy.


def of(path: str, name: str):
    return getattr(importlib.import_module(path), name)


def splash_of(mask: str, mqa: bool = False, **options):
    def of_one(masks):
        return {"full": masks.FullMask, "causal": masks.CausalMask}[mask]((256, 256))

    made = splash_kernel(of_one, mqa=mqa, **options)
    if mqa:
        return made, S((2, 256, 128), f32), S((256, 128), f32), S((256, 128), f32)
    return made, *QKV


def splash_segments():
    kernel, *qkv = splash_of("full")
    ids = jnp.asarray(np.repeat([0, 1, 2, 3], 64), i32)
    return kernel, *qkv, of(SPLASH, "SegmentIds")(q=ids, kv=ids)


def flash_segments():
    ids = jnp.asarray(np.repeat([0, 1], 128)[None], i32)
    fn = flash_kernel()
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


def ragged_paged_of_three():
    fn = functools.partial(of(RAGGED, "ragged_paged_attention"), num_kv_pages_per_block=8,
                           num_queries_per_block=64, vmem_limit_bytes=2**25)  # fmt: skip
    table = jnp.asarray(np.random.default_rng(0).permutation(63).reshape(3, 21), i32)
    lengths, starts, count = (jnp.array(n, i32) for n in ([328, 180, 255], [0, 192, 320, 384], [3]))
    q, pages = S((384, 32, 128), bf16), S((64, 16, 32, 128), bf16)
    return fn, q, pages, lengths, table, starts, count


def multiplied(m, k, n, block, dtype):
    fn = functools.partial(of(MATMUL, "matmul"), block_shape=(block, block), block_k=block)
    return fn, S((m, k), dtype), S((k, n), dtype)


def gathered(*sizes):
    devices = mesh(*sizes)
    fn = functools.partial(of(GATHER, "all_gather"), mesh=devices, axis_name="x")
    return fn, S((128, 128), f32)


def random_bits(path, name, shape):
    fn = of(f"{OPS}.random.{path}", name)
    return lambda key: fn(key, 32, shape), jnp.array([1, 2], jnp.uint32)


KERNELS = (
    ("splash_attention", "causal, 2 heads of 256 × 128", splash, 12),
    ("splash_attention", "window of 64, 2 heads of 256 × 128", splash_local),
    ("splash_attention", "causal, its gradient", splash_gradient),
    ("splash_attention", "causal, under vmap", splash_batched, 24),
    ("splash_attention", "full mask, 2 heads of 256 × 128", lambda: splash_of("full"), 16),
    ("splash_attention", "causal, one head of keys", lambda: splash_of("causal", mqa=True), 12),
    ("splash_attention", "causal, soft cap",
     lambda: splash_of("causal", attn_logits_soft_cap=20.0), 12),
    ("splash_attention", "segments of 64", splash_segments, 16),
    ("flash_attention", "causal, 1 × 2 × 256 × 128", flash),
    ("flash_attention", "causal, its gradient", flash_gradient),
    ("flash_attention", "all keys, 1 × 2 × 256 × 128",
     lambda: (flash_kernel(), *BATCHED), 16),
    ("flash_attention", "with a bias",
     lambda: (flash_kernel(), *BATCHED, S((1, 2, 256, 256), f32)), 16),
    ("flash_attention", "segments of 128", flash_segments),
    ("paged_attention", "2 × 8 heads, pages of 16", paged),
    ("paged_attention", "a grid axis for the keys", lambda: paged(inline_seq_dim=False)),
    ("paged_attention", "2 × 16 heads, soft cap",
     lambda: paged(queries=16, attn_logits_soft_cap=20.0)),
    ("paged_attention", "int8 pages", paged_int8),
    ("ragged_paged_attention", "2 sequences, pages of 16", ragged_paged),
    ("ragged_paged_attention", "3 sequences of 192, 128, 64 queries", ragged_paged_of_three, 480),
    ("matmul", "256 × 384 × 256, f32", matmul, 12),
    ("matmul", "512 × 512 × 512, bf16, blocks of 256",
     lambda: multiplied(512, 512, 512, 256, bf16), 8),
    ("all_gather", "4 devices, 32 × 128 of each", lambda: gathered(4)),
    ("all_gather", "rings of 2 of 4 devices", lambda: gathered(2, 2)),
    ("philox_random_bits", "512 × 512",
     lambda: random_bits("philox", "philox_random_bits", (512, 512))),
    ("plthreefry_random_bits", "300 × 400",
     lambda: random_bits("threefry", "plthreefry_random_bits", (300, 400))),
    ("example_kernel.double", "64 × 128",
     lambda: (of(f"{OPS}.example_kernel", "double"), S((64, 128), f32))),
    ("megablox.gmm", "sizes 100, 0, 156, 200, 56", gmm),
    ("megablox.tgmm", "sizes 100, 0, 156, 200, 56", tgmm),
    ("megablox.gmm", "its gradient", gmm_gradient),
    ("megablox.gmm", "4 groups of 128: 4 tiles × 2 × 2", lambda: grouped([128] * 4), 16),
    ("megablox.gmm", "transposed weights", lambda: grouped([128] * 4, transposed=True), 16),
    ("megablox.gmm", "one group has all of 300 rows",
     lambda: grouped([0, 384, 0], m=384, dtype=f32), 12),
)  # fmt: skip
