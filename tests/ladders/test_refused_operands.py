"""Operands outside of a function's contract: a sentence of ours if their values are known."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import puzzles

GROUPED = (
    "grouped_matmul", "grouped_matmul_transposed", "grouped_outer", "fused_gate_up",
    "quantized_grouped_matmul", "local_experts", "launch_grouped_matmul", "grouped_matmul_aligned",
    "block_scaled_grouped_matmul", "tile_metadata",
)  # fmt: skip
PAGED = (
    "paged_attention", "paged_attention_dma", "paged_grouped_attention", "latent_attention",
    "gapless_attention",
)  # fmt: skip


def call(name: str, at: int, value: object) -> Callable:
    """The reference on the inputs of its first case, with `value` in place of operand `at`."""
    args = list(puzzles.find(name).arguments(0))
    args[at] = value
    return lambda: puzzles.find(name).solution(*args)


def sizes_at(name: str) -> int:
    """The place of group_sizes among the operands of a puzzle."""
    others = dict(tile_metadata=0, fused_gate_up=3)
    return others.get(name, 3 if name.startswith(("quantized", "block_scaled")) else 2)


@pytest.mark.parametrize("name", GROUPED)
def test_sizes_that_are_negative_or_exceed_the_rows_are_refused(name: str) -> None:
    """Both would read or write elsewhere. A row of a tile that hangs over is no row, either."""
    args, at = puzzles.find(name).arguments(0), sizes_at(name)
    M = args[1] if name == "tile_metadata" else len(args[0])
    sizes = np.asarray(args[at]).copy()
    sizes[-1] += M + 1 - sizes.sum()
    with pytest.raises(ValueError, match=f"group_sizes add up to {M + 1}, and there are {M} rows"):
        call(name, at, jnp.asarray(sizes))()
    sizes[1] = -3
    with pytest.raises(ValueError, match=r"group_sizes\[1\] is -3: a group has 0 rows or more"):
        call(name, at, jnp.asarray(sizes))()


@pytest.mark.parametrize("first", [-1, 4, 6])
def test_experts_beyond_the_groups_are_refused(first: int) -> None:
    with pytest.raises(ValueError, match=f"first is {first}: rhs has the weights of 3 of the 6"):
        call("local_experts", 3, jnp.int32(first))()


@pytest.mark.parametrize("name", PAGED)
def test_a_length_beyond_the_table_is_refused(name: str) -> None:
    at = 2 if name == "latent_attention" else 3
    _, pages, *_, lengths, table = puzzles.find(name).arguments(0)[: at + 2]
    most = table.shape[1] * pages.shape[-2]
    for length in (most + 1, -1):
        with pytest.raises(ValueError, match=rf"lengths\[0\] is {length}: .* 0 to {most}"):
            call(name, at, lengths.at[0].set(length))()


@pytest.mark.parametrize("name", ["splash_multi_head", "splash_vjp"])
def test_masks_and_caps_that_no_list_can_be_made_of_are_refused(name: str) -> None:
    attention, x = puzzles.find(name).solution, jnp.ones((1, 128, 16))
    mask, rule = jnp.tril(jnp.ones((128, 128), bool)), lambda row, column: column <= row
    of_jax = importlib.import_module("jax.experimental.pallas.ops.tpu.splash_attention")
    with pytest.raises(TypeError, match="mask is a CausalMask: pass a rule"):
        attention(x, x, x, of_jax.CausalMask((128, 128)))
    with pytest.raises(TypeError, match="mask is traced"):
        jax.jit(lambda mask: attention(x, x, x, mask))(mask)
    with pytest.raises(TypeError, match="soft_cap is traced"):
        jax.jit(lambda cap: attention(x, x, x, rule, None, cap))(30.0)
    caps = [attention(x, x, x, rule, None, cap) for cap in (30.0, jnp.float32(30))]
    assert np.array_equal(attention(x, x, x, mask), attention(x, x, x, rule))
    assert np.array_equal(*caps)
