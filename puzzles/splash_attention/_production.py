"""JAX's own SplashAttention as JAX runs it, and what launches cost."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from puzzles import Launch, Operand


@dataclass(frozen=True)
class Cost:
    """What launches do: grid steps, blocks of operands fetched, dots executed, FLOPs of those, bytes moved.

    `bytes` are those of whole tiles of 8 × 128 numbers. `lists` are the bytes that prefetched arrays take
    in SMEM, padding included; `bytes` leaves them out.
    """

    steps: int
    fetched: int
    dots: int
    flops: int
    bytes: int
    lists: int = 0

    @classmethod
    def of(cls, launches: Sequence[Launch]) -> Cost:
        launches = [one for one in launches for _ in range(one.times or 1)]
        return cls(
            steps=sum(one.steps for one in launches),
            fetched=sum(o.transfers for one in launches for o in one.inputs),
            dots=sum(int(dot.executed.sum()) for one in launches for dot in one.dots),
            flops=sum(one.dot_flops for one in launches),
            bytes=sum(moved(o) for one in launches for o in one.inputs)
            + sum(moved(o) for one in launches for o in one.outputs if len(o.shape) > 2),
            lists=sum(o.smem_bytes for one in launches for o in one.scalars),
        )


def moved(operand: Operand) -> int:
    """Bytes of an operand's transfers, in tiles of 8 × 128: a column counts for 128, whoever keeps
    it.
    """
    rows, lanes = (1, *operand.sizes)[-2:]
    return operand.hbm_bytes // (rows * lanes) * (-(-rows // 8) * 8) * (-(-lanes // 128) * 128)


def has_splash() -> bool:
    """Does this JAX ship SplashAttention?"""
    try:
        importlib.import_module("jax.experimental.pallas.ops.tpu.splash_attention")
    except ImportError:
        return False
    return True


def source() -> str:
    """A line with the file of JAX's kernel and the version of JAX, if it has one."""
    if not has_splash():
        return f"JAX {jax.__version__} ships no SplashAttention."
    file = "jax/experimental/pallas/ops/tpu/splash_attention/splash_attention_kernel.py"
    return f"JAX's kernel: {file}, JAX {jax.__version__}"


def shipped(name: str, *args: Any) -> Any:
    """A mask of one of JAX's own classes, as its users would write it."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask_lib

    return getattr(mask_lib, name)(*args)


def production(masks: Sequence, soft_cap: float | None, bq: int, bk: int) -> Callable:
    """JAX's own splash attention, (q, k, v, segment_ids) -> out; `masks` of its own classes, one a head.

    A class of ours would be another kernel: JAX computes its causal and local masks, and stores all others.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask_lib

    names = "CausalMask", "LocalMask", "ChunkedCausalMask", "FullMask", "NumpyMask"
    public = [getattr(mask_lib, name) for name in names]
    strange = [type(mask).__name__ for mask in masks if type(mask) not in public]
    assert not strange, f"{strange[0]} is no mask that JAX ships: compare with what JAX really runs"
    kernel = splash.make_splash_mha_single_device(
        mask=mask_lib.MultiHeadMask(list(masks)),
        block_sizes=splash.BlockSizes(block_q=bq, block_kv=bk, block_kv_compute=bk),
        attn_logits_soft_cap=soft_cap,
        interpret=jax.default_backend() != "tpu",
    )

    def attention(q: Any, k: Any, v: Any, segment_ids: Any = None) -> Any:
        ids = None if segment_ids is None else splash.SegmentIds(*segment_ids)
        return kernel(q, k, v, ids)

    return attention
