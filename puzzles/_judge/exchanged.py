"""Would the reference's index map make the numbers right? It is tried: what is said is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from puzzles._judge.case import execute
from puzzles._launch import Operand, Traced, kernel_calls, with_parameter

_TRIED = 3  # index maps that differ; with more of them the walk is another one
Right = Callable[[Sequence[np.ndarray]], bool]


def exchanged(mine: Traced, reference: Traced, right: Right) -> str | None:
    """Which index maps, exchanged for the reference's, make all right: one, or else all together.

    None where none do. Both launch one kernel, on equal grids and in blocks of equal shapes.
    right: whether the flat results are.
    """
    both = [list(kernel_calls(one.jaxpr.jaxpr)) for one in (mine, reference)]
    if any(len(calls) != 1 for calls in both):
        return None
    here, there = (calls[0].params["grid_mapping"] for calls in both)
    if _form(here) != _form(there):
        return None
    operands = [(*one.launches[0].inputs, *one.launches[0].outputs) for one in (mine, reference)]
    others = [
        n
        for n, (a, b) in enumerate(zip(*operands, strict=True))
        if a.blocks.shape == b.blocks.shape and (a.blocks != b.blocks).any()
    ]

    def would_do(chosen: Sequence[int]) -> bool:
        maps = [
            replace(a, index_map_jaxpr=b.index_map_jaxpr, index_map_out_tree=b.index_map_out_tree)
            if n in chosen
            else a
            for n, (a, b) in enumerate(zip(here.block_mappings, there.block_mappings, strict=True))
        ]
        changed = replace(here, block_mappings=tuple(maps))
        program = with_parameter(mine.jaxpr, "grid_mapping", changed)
        try:
            return right(execute(replace(mine, jaxpr=program)))
        except Exception:  # the maps of one launch need not fit another
            return False

    if not 0 < len(others) <= _TRIED:
        return None
    together = [others] if len(others) > 1 else []
    found = next((some for some in [*([n] for n in others), *together] if would_do(some)), None)
    if found is None:
        return None
    shown = [_shown(operands[0][n], operands[1][n], mine.launches[0].program_ids) for n in found]
    maps = "another index map" if len(found) == 1 else "other index maps"
    return f"with {maps} the numbers would be right. {' '.join(shown)}"


def _form(mapping: Any) -> tuple:
    """What two launches share whose index maps can be exchanged."""
    blocks = [str((one.block_shape, one.transformed_block_aval)) for one in mapping.block_mappings]
    return mapping.grid, mapping.num_inputs, [str(one) for one in mapping.index_map_avals], blocks


def _shown(mine: Operand, theirs: Operand, program_ids: np.ndarray) -> str:
    step = int(np.argmax((mine.blocks != theirs.blocks).any(axis=1)))
    at, is_, has = (
        tuple(int(n) for n in x[step]) for x in (program_ids, mine.blocks, theirs.blocks)
    )
    return f"At grid step {at} `{mine.name}` holds block {is_}, in the reference block {has}."
