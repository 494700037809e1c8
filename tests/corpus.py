"""Kernels of production's wheels as launches to examine: builders of (function, *arguments).

`make graduate` and `make examine-bench` unpack the wheels without the packages that they depend on.
A module that needs one of these packages cannot be imported, and the table says so.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import production
import wheels
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from puzzles import Examination

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
S = jax.ShapeDtypeStruct

TOKAMAX = "tokamax._src.ops"
SPLASH = f"{TOKAMAX}.experimental.tpu.splash_attention"
LOSS = f"{TOKAMAX}.linear_softmax_cross_entropy_loss.pallas_mosaic_tpu_kernel"
INFERENCE = "tpu_inference.kernels"
T, HEADS, DIM = 512, 2, 128
QKV = (S((HEADS, T, DIM), f32),) * 3


def of(path: str, name: str) -> Any:
    return getattr(wheels.module(path), name)


def abstract(devices: int) -> AbstractMesh:
    return AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,))


def splash(mqa: bool = False, causal: bool = True, **options):
    """tokamax's splash attention of two heads, with blocks of 128."""
    kernels = wheels.module(f"{SPLASH}.splash_attention_kernel")
    masks = wheels.module(f"{SPLASH}.splash_attention_mask")
    default = kernels.SplashConfig.get_default()
    sizes = [field.name for field in dataclasses.fields(default) if field.name.startswith("block_")]
    config = dataclasses.replace(default, **dict.fromkeys(sizes, 128), **options)
    make = kernels.make_splash_mqa if mqa else kernels.make_splash_mha
    mask = masks.CausalMask((T, T)) if causal else masks.FullMask((T, T))
    return make(mask, config=config, q_seq_shards=1)


def splash_queries():
    key = S((T, DIM), f32)
    return splash(mqa=True), QKV[0], key, key


def splash_gradient():
    attend = splash()
    return jax.grad(lambda *qkv: jnp.sum(attend(*qkv)), argnums=(0, 1, 2)), *QKV


def ring(causal: bool):
    """tokamax's ring attention of one head on four devices."""
    kernels = wheels.module(f"{SPLASH}.splash_attention_kernel")
    masks = wheels.module(f"{SPLASH}.splash_attention_mask")
    rows, shards = (4 * T,) * 2, PartitionSpec(None, "x", None)
    attend = of(f"{SPLASH}.ring_attention_kernel", "make_ring_attention")(
        masks.make_causal_mask(rows) if causal else masks.FullMask(rows),
        is_mqa=False, ring_axis="x", config=kernels.SplashConfig.get_default(),
        save_residuals=False, q_seq_shards=4, kv_seq_shards=4,
    )  # fmt: skip
    given = attend.manual_sharding_spec()
    whole = jax.shard_map(
        lambda kernel, q, k, v: kernel(q, k, v, None), mesh=abstract(4),
        in_specs=(given, shards, shards, shards), out_specs=shards, check_vma=False,
    )  # fmt: skip
    return functools.partial(whole, attend), *(S((1, 4 * T, DIM), f32),) * 3


BLOCKS = dict(b_block_size=1024, h_block_size=128, v_block_size=256)
X, LABELS, W = S((2048, 256), f32), S((2048,), i32), S((256, 512), f32)


def loss():
    fn = of(LOSS, "linear_softmax_cross_entropy_loss_fwd_pallas_mosaic_tpu")
    return functools.partial(fn, **BLOCKS), X, LABELS, W


def loss_gradient():
    fn = of(LOSS, "linear_softmax_cross_entropy_loss_bwd_pallas_mosaic_tpu")
    return functools.partial(fn, **BLOCKS), S((), f32), S((2048,), f32), X, LABELS, W


def ragged_dot():
    gmm = of(f"{TOKAMAX}.ragged_dot.pallas_mosaic_tpu_kernel", "gmm")
    fn = functools.partial(gmm, precision=jax.lax.Precision.DEFAULT, out_dtype=f32)
    return fn, S((256, 256), bf16), S((2, 256, 256), bf16), jnp.array([100, 156], i32)


def all_gather_matmul():
    fn = of(f"{INFERENCE}.collectives.all_gather_matmul", "all_gather_matmul")
    fn = functools.partial(fn, mesh=abstract(4), axis_name="x", bn=128, bk=128)
    return fn, S((256, 256), f32), S((256, 1024), f32)


def ragged_paged():
    fn = of(f"{INFERENCE}.ragged_paged_attention.v2.kernel", "ragged_paged_attention")
    fn = functools.partial(
        fn, num_kv_pages_per_block=4, num_queries_per_block=16, vmem_limit_bytes=2**25
    )
    table = jnp.arange(16, dtype=i32).reshape(2, 8)
    lengths, starts, count = (jnp.array(n, i32) for n in ([100, 37], [0, 20, 32], [2]))
    return fn, S((32, 4, 128), bf16), S((16, 16, 4, 128), bf16), lengths, table, starts, count


def ragged_paged_and_update():
    fn = of(f"{INFERENCE}.ragged_paged_attention.v3.kernel", "ragged_paged_attention")
    sizes = dict.fromkeys(("d_block_sizes", "p_block_sizes", "m_block_sizes"), (8, 32, 8, 32))
    new, cache = S((32, 2, 128), bf16), S((16, 16, 2, 2, 128), bf16)
    lengths, starts, split = (jnp.array(n, i32) for n in ([100, 37], [0, 20, 32], [0, 0, 2]))
    fn = functools.partial(fn, **sizes, vmem_limit_bytes=2**25)
    return fn, S((32, 4, 128), bf16), new, new, cache, lengths, jnp.arange(16), starts, split


def inverse(name: str):
    return of(f"{INFERENCE}.gdn.triangle_solver", name), S((1, 2, 4, 64, 64), f32)


def delta_rule():
    fn = of(f"{INFERENCE}.gdn.v2.gdn_decode_kernel", "fused_decoding_gdn")
    qk, v, g = S((8, 2, 128), bf16), S((8, 4, 128), bf16), S((8, 4, 128), f32)
    state, beta, split = S((16, 4, 128, 128), f32), S((8, 4, 128), bf16), jnp.array([8, 8, 8])
    fn = functools.partial(fn, scale=1.0, use_qk_l2norm_in_kernel=True)
    return fn, qk, qk, v, g, state, jnp.arange(8, dtype=i32), split, beta


def mixes():
    fn = of(f"{INFERENCE}.experimental.deepseek_v4.mhc.pre_kernel", "mhc_pre_mixes")
    return fn, S((128, 4 * 1024), bf16), S((24, 4 * 1024), f32)


def flash():
    fn = of(f"{INFERENCE}.flash_attention.kernel", "flash_attention")
    return functools.partial(fn, causal=True), *(S((1, 2, 512, 128), bf16),) * 3


def quantized():
    fn = of(f"{INFERENCE}.quantized_matmul.kernel", "quantized_matmul_kernel")
    fn = functools.partial(fn, x_q_dtype=jnp.int8)
    return fn, S((256, 512), bf16), S((512, 512), jnp.int8), S((512,), f32)


# The wheel, the function, the shape in words, and the builder.
KERNELS: tuple[tuple[str, str, str, Callable[[], tuple]], ...] = (
    ("tokamax", "splash_attention", "causal, 2 heads of 512 × 128", lambda: (splash(), *QKV)),
    ("tokamax", "splash_attention", "all keys", lambda: (splash(causal=False), *QKV)),
    ("tokamax", "splash_attention", "causal, one head of keys", splash_queries),
    ("tokamax", "splash_attention", "causal, soft cap",
     lambda: (splash(attn_logits_soft_cap=20.0), *QKV)),
    ("tokamax", "splash_attention", "causal, its gradient", splash_gradient),
    ("tokamax", "ring_attention", "all keys, 4 devices", lambda: ring(causal=False)),
    ("tokamax", "ring_attention", "causal, 4 devices", lambda: ring(causal=True)),
    ("tokamax", "linear_softmax_cross_entropy", "2048 × 256 × 512", loss),
    ("tokamax", "linear_softmax_cross_entropy", "its gradient", loss_gradient),
    ("tokamax", "ragged_dot", "groups of 100 and 156", ragged_dot),
    ("tpu_inference", "all_gather_matmul", "4 devices", all_gather_matmul),
    ("tpu_inference", "ragged_paged_attention v2", "2 sequences, pages of 16", ragged_paged),
    ("tpu_inference", "ragged_paged_attention v3", "2 sequences, pages of 16",
     ragged_paged_and_update),
    ("tpu_inference", "newton_schulz_inverse", "8 of 64 × 64",
     lambda: inverse("newton_schulz_inverse_pallas")),
    ("tpu_inference", "decompose_triangular_matrix_inverse", "8 of 64 × 64",
     lambda: inverse("decompose_triangular_matrix_inverse_pallas")),
    ("tpu_inference", "fused_decoding_gdn v2", "8 requests", delta_rule),
    ("tpu_inference", "mhc_pre_mixes", "128 tokens of 4 × 1024", mixes),
    ("tpu_inference", "flash_attention", "causal, 2 heads of 512 × 128", flash),
    ("tpu_inference", "quantized_matmul", "256 × 512 × 512, int8", quantized),
)  # fmt: skip

# A fault of its own: block n + 1 prefetches the states of block n + 2 into the buffer from which
# the store of block n may still read. The wait for this store is in block n + 2.
FAULT = ("fused_decoding_gdn v2: 8 requests", "hazard", "h_bufs")


def unexpected(kernel: str, found: Examination) -> list[str]:
    """The warnings and errors of a kernel; [] for FAULT if its fault is the only one.

    Refusals of libtpu are left out: the wheels are written for a newer libtpu than that of 0.10.2.
    """
    ours = [f for f in found.findings if not f.says.startswith("The compiler for ")]
    says = production.unexpected(kernel, replace(found, findings=tuple(ours)))
    faulty, *fault = FAULT
    if kernel != faulty:
        return says
    kinds = [[one.kind, one.operand] for one in ours if one.severity == "error"]
    return [] if kinds == [fault] and len(says) == 1 else ["its own fault", *says]


def rows() -> list[tuple[str, str, Callable[[], tuple], None]]:
    """The rows of the table, empty if no wheel is unpacked."""
    if not wheels.FOLDER.exists():
        return []
    return [(wheels.version(wheel), f"{name}: {shape}", make, None)
            for wheel, name, shape, make in KERNELS]  # fmt: skip
