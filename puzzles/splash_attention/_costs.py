"""splash_over_tiles at a production shape, without data, beside JAX's kernel and dense
attention.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles import find, trace
from puzzles.splash_attention._production import Cost, has_splash, production, shipped

WINDOW = 1024


def banded_tiles(T: int, block: int, window: int | None = None) -> tuple[tuple, np.ndarray]:
    """(tiles, partial masks) of a causal mask (T, T), within `window` keys if given, without any
    dense mask.
    """
    reach = T if window is None else window
    behind = (
        1 if window is None else min(-(-window // block) + 1, T // block - 1)
    )  # as those further back
    i = np.arange(behind * block, (behind + 1) * block)[
        :, None
    ]  # one row of blocks has all there are
    j = np.arange((behind + 1) * block)[None, :]
    kinds, index, partial_masks = find("classify_blocks").solution(
        (j <= i) & (i - j < reach), block, block
    )
    row, col = np.indices((T // block, T // block))
    back = np.clip(row - col, 0, behind)  # how many blocks a column lies behind its row
    block_mask = np.where(col <= row, kinds[0, behind - back], 0).astype(np.int32)
    mask_index = np.where(col <= row, index[0, behind - back], 0).astype(np.int32)
    return find("active_tiles").solution(block_mask, mask_index), partial_masks


def causal(row: Any, column: Any) -> Any:
    return column <= row


def window(row: Any, column: Any) -> Any:
    return (column <= row) & (row - column < WINDOW)


def prefix(T: int, length: int = 1000) -> np.ndarray:
    """A causal mask (T, T) whose first `length` columns everybody sees: none of JAX's
    own formulas.
    """
    mask = np.tri(T, dtype=bool)
    mask[:, :length] = True
    return mask


def shipped_masks(T: int) -> dict[str, Any]:
    """Masks (T, T) by name, each of a class that JAX ships."""
    return {
        "causal": shipped("CausalMask", (T, T)),
        f"causal, window of {WINDOW}": shipped("LocalMask", (T, T), (WINDOW - 1, 0), 0),
        "full": shipped("FullMask", (T, T)),
        "causal, prefix of 1000": shipped("NumpyMask", prefix(T)),
    }


def listed(T: int, block: int) -> dict[str, tuple]:
    """(tiles, partial masks, rule or None) of the same masks."""
    n = T // block
    kinds, zeros = np.full((n, n), 2, np.int32), np.zeros((n, n), np.int32)
    block_mask, mask_index, partial_masks = find("classify_blocks").solution(
        prefix(T), block, block
    )
    active_tiles = find("active_tiles").solution
    return {
        "causal": (*banded_tiles(T, block), causal),
        f"causal, window of {WINDOW}": (*banded_tiles(T, block, WINDOW), window),
        "full": (active_tiles(kinds, zeros), np.zeros((1, block, block), bool), None),
        "causal, prefix of 1000": (active_tiles(block_mask, mask_index), partial_masks, None),
    }


def compared(fn: Callable, T: int, block: int) -> dict[str, dict[str, Cost]]:
    """For each mask: what dense attention costs, JAX's kernel if there is one, and `fn`, which is
    splash_over_tiles.
    """
    N, K, H = 8, 2, 128
    q, k = (jax.ShapeDtypeStruct((n, T, H), jnp.bfloat16) for n in (N, K))
    scores = 4 * N * T * T  # bytes, in f32: written and read, and so are the weights
    dense = Cost(0, 0, 0, 4 * N * T * T * H, 4 * scores + 4 * (N + K) * T * H)
    masks = shipped_masks(T) if has_splash() else {}
    table: dict[str, dict[str, Cost]] = {}
    for name, (tiles, partial_masks, rule) in listed(T, block).items():
        rows = table[name] = {"dense attention": dense}
        if name in masks:
            theirs = production([masks[name]] * N, None, block, block)
            rows["JAX's splash"] = Cost.of(trace(theirs, q, k, k))
        mine = _over_tiles(fn, tiles, partial_masks, rule)
        rows["mine"] = Cost.of(trace(mine, q, k, k))
    return table


def costs(fn: Callable, T: int = 4096, block: int = 512) -> str:
    """A table: `fn`, which is splash_over_tiles, beside JAX's kernel and dense attention, without
    any data.
    """
    fn, whose = yours_or_reference(fn)
    lines = [f"8 query heads, 2 key heads, T = {T:,}, H = 128, bf16, blocks of {block}"]
    widths = {
        "grid steps": 12,
        "tiles computed": 16,
        "blocks fetched": 16,
        "MiB moved": 12,
        "bytes of lists": 16,
        "GFLOP": 8,
    }
    heads = "".join(f"{head:>{width}}" for head, width in widths.items())
    for name, rows in compared(fn, T, block).items():
        lines += ["", f"{name:24}{heads}"]
        for who, cost in rows.items():
            cells = [
                f"{n:,}" if cost.steps else "-" for n in (cost.steps, cost.dots // 2, cost.fetched)
            ]
            cells += [f"{cost.bytes / 2**20:,.0f}", f"{cost.lists:,}" if cost.steps else "-"]
            cells.append(f"{cost.flops / 1e9:.0f}")
            row = "".join(
                f"{cell:>{width}}" for cell, width in zip(cells, widths.values(), strict=True)
            )
            lines.append(f"  {whose if who == 'mine' else who:22}{row}")
    return "\n".join(lines)


def yours_or_reference(fn: Callable) -> tuple[Callable, str]:
    """`fn`, which is splash_over_tiles, and "yours"; the reference's, if there is nothing to count
    in `fn` yet.
    """
    tiles, partial_masks = banded_tiles(256, 128)
    x = jax.ShapeDtypeStruct((2, 256, 64), jnp.float32)
    try:
        if all(
            Cost.of(trace(_over_tiles(fn, tiles, partial_masks, rule), x, x, x)).dots
            for rule in (None, causal)
        ):
            return fn, "yours"
    except Exception:  # check(splash_multi_head) tells a learner what it is
        pass
    solved = importlib.import_module(find("splash_multi_head").module)
    return solved.splash_over_tiles, "reference, not yours"


def _over_tiles(
    fn: Callable, tiles: tuple, partial_masks: np.ndarray, rule: Callable | None
) -> Callable:
    ruled = {} if rule is None else {"rule": rule}
    return lambda q, k, v: fn(q, k, v, tiles, partial_masks, **ruled)
