"""Kernels of production's wheels as launches to examine: builders of (function, *arguments).

`make graduate` and `make examine-bench` unpack the wheels without the packages that they depend on.
A module that needs one of these packages cannot be imported, and the table says so.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


def abstract(devices: int, axis: str = "x") -> AbstractMesh:
    return AbstractMesh((devices,), (axis,), axis_types=(AxisType.Auto,))


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
    """tokamax's ring attention for a single head on four devices."""
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


def gmm(transposed: bool):
    """tokamax's grouped matmul of 2026, and the gradient of its weights."""
    sizes = jnp.array([100, 0, 156], i32)
    if transposed:
        fn = functools.partial(
            of(f"{TOKAMAX}.gmm_v2.tgmm_v2", "tgmm_v2"),
            num_actual_groups=3,
            preferred_element_type=f32,
        )
        return fn, S((256, 256), bf16), S((256, 512), bf16), sizes
    fn = of(f"{TOKAMAX}.gmm_v2.gmm_v2", "gmm_v2")
    return fn, S((256, 256), bf16), S((3, 256, 512), bf16), sizes


def gmm_on_one_core(transposed: bool):
    """The same by `pallas_call`, which an option of tokamax chooses."""
    one_core = of("tokamax._src.config", "disable_multi_core_mode")
    fn, *args = gmm(transposed)

    def run(*arrays):
        with one_core(True):
            return fn(*arrays)

    return run, *args


def hyper_connections(name: str):
    """mHC: four residual streams of 128 tokens, mixed before and after a layer."""
    x, streams, weights = S((128, 1024), bf16), S((128, 4096), bf16), S((24, 4096), f32)
    post, comb, scale, base = S((128, 4), f32), S((128, 16), f32), S((3,), f32), S((24,), f32)
    eps = (1e-6, 1e-6)
    module, function, *args = {
        "mixes": ("pre_kernel", "mhc_pre_mixes", streams, weights),
        "collapse": ("pre_kernel", "mhc_pre_mixes_collapse", streams, weights, scale, base, *eps),
        "post": ("post_kernel", "mhc_post", x, S((128, 4, 1024), bf16), S((128, 4, 1), f32),
                 S((128, 4, 4), f32)),
        "fused": ("fused_post_pre_kernel", "fused_post_pre_mixes", x, streams, post, comb, weights,
                  scale, base, *eps),
    }[name]  # fmt: skip
    return of(f"{TOKAMAX}.mhc.{module}", function), *args


def fp8_matmul(gradient: bool):
    path, name = f"{TOKAMAX}.experimental.fused_fp8_matmul.pallas_mosaic_tpu", "fused_fp8_matmul"
    if gradient:
        fn = of(f"{path}_dlhs_kernel", "fused_fp8_dlhs_pallas")
    else:
        fn = of(f"{path}_kernel", f"{name}_pallas")
    w = S((256, 512), jnp.float8_e4m3fn)
    fn = functools.partial(fn, bm=128, bk=256, bn=512 if gradient else 256)
    return fn, S((256, 512 if gradient else 256), bf16), w, S((512,), f32)


def scatter_rows():
    fn = of(f"{TOKAMAX}.masked_dense_mla.scatter_utils", "scatter_rows")
    u32 = jnp.uint32
    return fn, S((4, 256, 128), u32), S((256, 128), u32), jnp.arange(256, dtype=i32)


def pack_nonnegative():
    fn = of(f"{TOKAMAX}.lightning_indexer.kernel.dcp_sc_compact", "pack_nonnegative")
    return fn, S((64, 2048), i32)


def router_select():
    fn = of(f"{TOKAMAX}.experimental.fused_moe.router_ops", "pallas_select")
    return functools.partial(fn, topk=8), S((256, 256), f32)


def transposed(name: str, *shape: int):
    fn = of(f"{TOKAMAX}.experimental.mla.v2.transpose", name)
    return functools.partial(fn, transpose_axes=(1, 0, 2)), S(shape, bf16)


def pinned():
    fn = of(f"{TOKAMAX}.experimental.mla.v2.transpose", "pin_vmem_custom_call")
    return fn, S((256, 512), bf16)


def rope():
    fn = of(f"{TOKAMAX}.deepseek_rope.pallas_mosaic_tpu_kernel", "rope")
    positions = np.random.default_rng(0).permutation(512)[:64]
    return fn, S((64, 8, 512), bf16), jnp.asarray(positions, i32), S((512, 64), f32)


def combine():
    """The last launch of tokamax's fused mixture of experts, by itself."""
    build = of(f"{TOKAMAX}.experimental.fused_moe.kernel", "build_combine_kernel")
    steady = dict(t_local=256, topk=2, hidden=1024, lane_blocks=8, wire_dtype=bf16, out_dtype=bf16)
    places = np.random.default_rng(0).permutation(512).reshape(256, 2)
    weights = jnp.full((256, 2), 0.5, f32)

    def fn(*arrays):
        return build(**steady)(*arrays)

    return fn, S((512, 8, 128), bf16), weights, jnp.asarray(places, i32)


def tgmm_first():
    fn = of(f"{TOKAMAX}.ragged_dot.pallas_mosaic_tpu_kernel", "tgmm")
    fn = functools.partial(fn, precision=jax.lax.Precision.DEFAULT, out_dtype=f32)
    return fn, S((256, 256), bf16), S((256, 256), bf16), jnp.array([100, 156], i32)


def kda_states(sequences: bool):
    """The states between the chunks of tokens, of one sequence or of two."""
    states = of(f"{TOKAMAX}.kda.common", "chunk_gated_delta_rule_fwd_h")
    x = S((2, 1, 256, 128), f32)
    starts = jnp.array([0, 128, 256], i32) if sequences else None
    chunks = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]], i32) if sequences else None

    def fn(k, w, u, gates):
        lists = dict(cu_seqlens=starts, chunk_indices=chunks)
        return states(k, w, u, gk=gates, chunk_size=64, **lists)

    return fn, x, x, x, x


def operator(path: str, like: str = ""):
    """An operator of tokamax at the smallest of its own shapes for benchmarks.

    like: a part of the shape's name. Integers that it draws are drawn, and others are zeros, but
    for lengths of sequences, which are not given as zeros.
    """
    module = wheels.module(f"{TOKAMAX}.{path}.pallas_mosaic_tpu")
    cls = operator_class(module)
    specs = (s for s in of(f"{TOKAMAX}.{path}.arg_specs", "ARG_SPECS") if like in s.full_name)
    given = min(specs, key=elements).args
    zeros = path != "causal_conv1d_gated_delta_rule"
    drawn = {name: jax.tree.map(functools.partial(_drawn, zeros), given[name]) for name in given}
    return (lambda *args: cls()(**dict(zip(drawn, args, strict=True)))), *drawn.values()


def operator_class(module: types.ModuleType) -> Any:
    """The first operator that a module defines."""
    kind = wheels.module("tokamax._src.ops.op").Op
    each = (c for c in vars(module).values() if isinstance(c, type) and issubclass(c, kind))
    return next(c for c in each if c.__module__ == module.__name__)


def elements(spec: Any) -> int:
    """The elements of all arrays of a benchmark."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(spec.args) if is_array(leaf))


def is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _drawn(zeros: bool, leaf: Any) -> Any:
    if not is_array(leaf) or not jnp.issubdtype(leaf.dtype, jnp.integer) or leaf.size > 2**22:
        return leaf
    if callable(leaf):
        return jnp.asarray(leaf(np.random.default_rng(0)))
    return jnp.zeros(leaf.shape, leaf.dtype) if zeros and isinstance(leaf, S) else leaf


def kda(gradient: bool):
    """tokamax's Kimi delta attention of two heads of 256 tokens."""
    cls = operator_class(wheels.module(f"{TOKAMAX}.kda.pallas_mosaic_tpu"))
    x = S((2, 1, 256, 128), bf16)
    rest = S((2, 1, 256), bf16), S((2,), f32), S((256,), f32)
    steady = dict(use_qk_l2norm=True, use_gate_in_kernel=True, lower_bound=-5.0)

    def attend(q, k, v, gate, beta, a_log, bias):
        given = dict(gate=gate, beta=beta, a_log=a_log, delta_time_bias=bias)
        out, _ = cls()(query=q, key=k, value=v, output_final_state=False, **given, **steady)
        return jnp.sum(out.astype(f32))

    return jax.grad(attend, argnums=(0, 1, 2, 3)) if gradient else attend, *(x,) * 4, *rest


def kda_of_shards():
    """tokamax's Kimi delta attention whose tokens are on two devices."""
    cls = operator_class(wheels.module(f"{TOKAMAX}.kda.pallas_mosaic_tpu"))
    mesh, spec = abstract(2, "context"), PartitionSpec(None, None, "context")
    metadata = of(f"{TOKAMAX}.kda.cp_utils", "ContextParallelMetadata")(mesh=mesh)
    steady = dict(max_num_segments=1, output_final_state=False, context_parallel_metadata=metadata)

    def attend(q, k, v, gate, beta, segments):
        given = dict(query=q, key=k, value=v, gate=gate, beta=beta, segment_ids=segments)
        return cls()(**given, **steady)[0]

    fn = jax.shard_map(
        attend, mesh=mesh, in_specs=(spec,) * 5 + (PartitionSpec(None, "context"),),
        out_specs=spec, check_vma=False,
    )  # fmt: skip
    x = S((2, 1, 256, 128), f32)
    return fn, x, x, x, x, S((2, 1, 256), f32), jnp.ones((1, 256), i32)


def experts(count: int, hidden: int, inner: int, dtype=bf16):
    """The weights of so many experts: up and gate, and down."""
    return S((count, hidden, 2 * inner), dtype), S((count, inner, hidden), dtype)


def fused_moe():
    fn = of(f"{TOKAMAX}.experimental.fused_moe.layer", "fused_ep_moe_v2")
    steady = dict(topk=2, renormalize=True, act_fn="silu", mesh=abstract(2, "d"))
    steady |= dict(w1_scale=None, w2_scale=None, capacity=128)
    form = of(f"{TOKAMAX}.experimental.fused_moe.host", "weight_format_of_dtype")(bf16)

    def mix(x, w1, w2, gating):
        return fn(x=x, w1=w1, w2=w2, gating=gating, weight_format=form, **steady)

    return mix, S((32, 512), bf16), *experts(4, 512, 256), S((32, 4), f32)


def fused_moe_decode():
    fn = of(f"{TOKAMAX}.experimental.fused_moe_decode.fused_moe_decode_kernel", "fused_moe_decode")
    fp8 = jnp.float8_e4m3fn
    (w1, w2), shared = experts(4, 512, 256, fp8), (S((512, 256), fp8), S((1, 256), f32))
    scales = S((4, 1, 1, 512), f32), S((4, 1, 1, 512), f32)
    down = S((128, 512), fp8), S((1, 512), f32), S((512, 1), bf16), S((16, 2), bf16)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 4, (16, 2)), i32)
    rest = S((16, 512), bf16), w1, w2, *scales, *shared, *down, ids
    whole = PartitionSpec()
    fn = jax.shard_map(
        functools.partial(fn, n_ranks=2), mesh=abstract(2, "d"),
        in_specs=(PartitionSpec("d"), *(whole,) * len(rest)), out_specs=whole, check_vma=False,
    )  # fmt: skip
    return fn, jnp.arange(2, dtype=i32), *rest


def fused_moe_scattered():
    fn = of(f"{TOKAMAX}.experimental.fused_moe_rs.fused_moe_rs", "fused_moe_func_rs")
    types = (AxisType.Auto,) * 2
    steady = dict(
        w1_scale=None, w2_scale=None, w1_bias=None, w2_bias=None, topk=2, renormalize=True,
        mesh=AbstractMesh((1, 4), ("data", "model"), axis_types=types), activation="silu",
        scoring_fn="softmax",
    )  # fmt: skip
    w1, w2 = experts(16, 512, 256)
    fn = functools.partial(fn, **steady)
    return (
        lambda x, a, b, gating: fn(hidden_states=x, w1=a, w2=b, gating_output=gating),
        S((128, 512), bf16), w1, w2, S((128, 16), f32),
    )  # fmt: skip


def routing_moe(**options):
    fn = of(f"{TOKAMAX}.experimental.routing_moe.layer.wrapper", "routing_moe")
    steady = dict(
        w1_scale=None, w2_scale=None, w1_bias=None, w2_bias=None, topk=2, renormalize=True,
        activation="silu", scoring_fn="softmax", mesh=abstract(4, "model"),
    )  # fmt: skip
    fn, (w1, w2) = functools.partial(fn, **steady | options), experts(16, 1024, 1024)
    return (
        lambda x, a, b, gating: fn(hidden_states=x, w1=a, w2=b, gating_output=gating),
        S((256, 1024), bf16), w1, w2, S((256, 16), f32),
    )  # fmt: skip


def mla_v2():
    """tokamax's second MLA: a decoding sequence, and one of 20 new tokens."""
    fn = of(f"{TOKAMAX}.experimental.mla.v2.kernel", "mla_ragged_paged_attention")
    fn = functools.partial(fn, num_kv_pages_per_block=2, num_queries_per_block=8)
    q, new, cache = S((16, 21, 512), bf16), S((21, 512), bf16), S((8, 16, 2, 640), bf16)
    numbers = ([129, 60], np.arange(10), [0, 1, 21], [1, 1, 2])
    rest = (jnp.asarray(n, i32) for n in numbers)
    return fn, q, S((21, 16, 64), bf16), new, S((21, 64), bf16), cache, *rest


def mla_window():
    """tokamax's MLA in a sliding window, on the inputs of its own tests."""
    path = f"{TOKAMAX}.experimental.mla_swa"
    cls = operator_class(wheels.module(f"{path}.pallas_mosaic_tpu"))
    given, _ = of(f"{path}.test_base", "make_inputs")(batch_size=2, num_heads=16)
    fn = functools.partial(cls(), sliding_window=16, logical_page_size=16)
    return fn, *given


# The wheel, the function, the shape in words, and the builder. tokamax's newest kernels are for 7x.
CHIPS = {"tokamax": ("7x",), "tpu_inference": ("v5e",)}
OPERATORS = (
    "batched_rpa", "causal_conv1d_gated_delta_rule", "csa_gather", "deepseek_rope",
    "dsv4_compressor", "experimental.mla", "experimental.tpu.splash_attention",
    "grouped_lowrank_proj", "lightning_indexer", "linear_softmax_cross_entropy_loss",
    "masked_dense_mla", "proj_and_save_state", "ragged_gather", "router_topk", "sparse_mla", "topk",
)  # fmt: skip
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
    ("tokamax", "gmm_v2", "groups of 100, 0 and 156", lambda: gmm(transposed=False)),
    ("tokamax", "tgmm_v2", "groups of 100, 0 and 156", lambda: gmm(transposed=True)),
    *(("tokamax", f"mhc {name}", "128 tokens of 4 × 1024", partial(hyper_connections, name))
      for name in ("mixes", "collapse", "post", "fused")),
    ("tokamax", "fused_fp8_matmul", "256 × 256 × 512", lambda: fp8_matmul(gradient=False)),
    ("tokamax", "fused_fp8_matmul", "its gradient", lambda: fp8_matmul(gradient=True)),
    ("tokamax", "kda", "2 heads of 256 × 128", lambda: kda(gradient=False)),
    ("tokamax", "kda", "its gradient", lambda: kda(gradient=True)),
    ("tokamax", "kda", "256 tokens on 2 devices", kda_of_shards),
    ("tokamax", "fused_moe", "4 experts on 2 devices", fused_moe),
    ("tokamax", "fused_moe_decode", "4 experts on 2 devices", fused_moe_decode),
    ("tokamax", "fused_moe_rs", "16 experts on 4 devices", fused_moe_scattered),
    ("tokamax", "routing_moe", "16 experts, rows on 4 devices",
     lambda: routing_moe(tp_axis="model", ep_axis=None)),
    ("tokamax", "routing_moe", "16 experts on 4 devices",
     lambda: routing_moe(tp_axis=None, ep_axis="model", remote_combine=True)),
    ("tokamax", "mla v2", "2 sequences, pages of 32", mla_v2),
    ("tokamax", "mla_swa", "2 sequences, a window of 16", mla_window),
    ("tokamax", "scatter_rows", "256 rows, SparseCores", scatter_rows),
    ("tokamax", "pack_nonnegative", "64 × 2048, SparseCores", pack_nonnegative),
    ("tokamax", "pallas_select", "8 of 256 experts", router_select),
    ("tokamax", "xpose_pipeline", "256 × 256 × 128",
     lambda: transposed("xpose_pipeline", 256, 256, 128)),
    ("tokamax", "xpose_full", "64 × 32 × 128", lambda: transposed("xpose_full", 64, 32, 128)),
    ("tokamax", "pin_vmem", "256 × 512", pinned),
    ("tokamax", "rope", "64 tokens of 8 × 512", rope),
    ("tokamax", "combine", "256 tokens, 2 experts each", combine),
    ("tokamax", "tgmm", "groups of 100 and 156", tgmm_first),
    ("tokamax", "kda states", "2 heads of 256 × 128", lambda: kda_states(sequences=False)),
    ("tokamax", "kda states", "2 sequences of 128", lambda: kda_states(sequences=True)),
    ("tokamax", "gmm_v2", "on one core", lambda: gmm_on_one_core(transposed=False)),
    ("tokamax", "tgmm_v2", "on one core", lambda: gmm_on_one_core(transposed=True)),
    ("tokamax", "ragged_gather_reduce", "8192 × 4096, SparseCores",
     lambda: operator("ragged_gather_reduce", "8192x4096")),
    *(("tokamax", path.rpartition(".")[2], "its smallest benchmark", partial(operator, path))
      for path in OPERATORS),
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

# Faults of their own. `fused_moe_rs` fills its output with zeros after the barrier, when another
# device may already copy rows into it. In the decoding kernel block n + 1 prefetches the states of
# block n + 2 into the buffer from which the store of block n may still read; the wait for this
# store is in block n + 2. The compressor fetches into a slot of `emit_pipeline` whose copy out is
# in flight.
FAULTS = {
    "fused_moe_rs: 16 experts on 4 devices": ("hazard", None),
    "fused_decoding_gdn v2: 8 requests": ("hazard", "h_bufs"),
    "dsv4_compressor: its smallest benchmark": ("hazard", "VMEM((2, 8, 4, 128), uint8)"),
}


def unexpected(kernel: str, found: Examination) -> list[str]:
    """The warnings and errors of a kernel; [] for those in FAULTS if its fault is the only one.

    Refusals of libtpu are left out: the wheels are written for a newer libtpu than that of 0.10.2.
    """
    ours = [f for f in found.findings if not f.says.startswith("The compiler for ")]
    says = production.unexpected(kernel, replace(found, findings=tuple(ours)))
    if kernel not in FAULTS:
        return says
    kinds = [(one.kind, one.operand) for one in ours if one.severity == "error"]
    return [] if kinds == [FAULTS[kernel]] and len(says) == 1 else ["its own fault", *says]


def rows() -> list[tuple[str, str, Callable[[], tuple], None, tuple[str, ...]]]:
    """The rows of the table, with their chips, of wheels that are unpacked for this JAX."""
    if not wheels.FOLDER.exists():
        return []
    return [(wheels.version(wheel), f"{name}: {shape}", make, None, CHIPS[wheel])
            for wheel, name, shape, make in KERNELS
            if not wheels.needs_newer_jax(wheel)]  # fmt: skip
