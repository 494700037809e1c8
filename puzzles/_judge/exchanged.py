"""What of a launch, exchanged for the reference's, makes the numbers right? It is tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._judge.case import execute
from puzzles._launch import Operand, Traced, kernel_calls, with_parameter

_TRIED = 3  # index maps that differ; with more of them the walk is another one
Right = Callable[[Sequence[np.ndarray]], bool]


def exchanged(
    mine: Traced,
    reference: Traced,
    right: Right,
    kernel: str | None,
    in_time: Callable[[], bool],
) -> str | None:
    """Where wrong numbers come from: an index map, or some together, or the kernel; or None.

    Both launch one kernel, on equal grids and on blocks of equal shapes. right: whether the flat
    results are. kernel: its name, where the learner has written both kernel and launch. in_time:
    whether one more exchange may be tried.
    """
    both = [list(kernel_calls(one.jaxpr.jaxpr)) for one in (mine, reference)]
    if any(len(calls) != 1 for calls in both):
        return None
    here, there = (calls[0] for calls in both)
    if _form(here) != _form(there):
        return None

    def would_do(parameter: str, setting: object) -> bool:
        if not in_time():
            return False
        program = with_parameter(mine.jaxpr, parameter, setting)
        try:
            return right(execute(replace(mine, jaxpr=program)))
        except Exception:  # what one launch takes need not fit another
            return False

    maps = _maps(mine, reference)
    together = [maps] if len(maps) > 1 else []
    for some in [*([one] for one in maps), *together] if len(maps) <= _TRIED else ():
        if would_do("grid_mapping", _with_maps(here, there, some)):
            shown = [_shown(*_operands(mine, reference)[n], mine) for n in some]
            what = "another index map" if len(some) == 1 else "other index maps"
            return f"with {what} the numbers would be right. {' '.join(shown)}"
    same_refs = _refs(here) == _refs(there)
    if kernel is not None and same_refs and would_do("jaxpr", there.params["jaxpr"]):
        return (
            f"with another `{kernel}` in your launch the numbers would be right: look into it, and "
            "into what it calls."
        )
    return None


def _operands(mine: Traced, reference: Traced) -> list[tuple[Operand, Operand]]:
    """Inputs and outputs, with those of the reference."""
    both = ((*one.launches[0].inputs, *one.launches[0].outputs) for one in (mine, reference))
    return list(zip(*both, strict=True))


def _maps(mine: Traced, reference: Traced) -> list[int]:
    """The positions of operands that hold other blocks than in the reference."""
    pairs = enumerate(_operands(mine, reference))
    return [n for n, (a, b) in pairs if not np.array_equal(a.blocks, b.blocks)]


def _with_maps(here: JaxprEqn, there: JaxprEqn, chosen: Sequence[int]) -> Any:
    """The grid mapping of a launch, in which some operands have the index maps of another."""
    mapping, other = (one.params["grid_mapping"] for one in (here, there))
    maps = list(mapping.block_mappings)
    for n in chosen:
        theirs = other.block_mappings[n]
        out_tree = theirs.index_map_out_tree
        maps[n] = replace(
            maps[n], index_map_jaxpr=theirs.index_map_jaxpr, index_map_out_tree=out_tree
        )
    return replace(mapping, block_mappings=tuple(maps))


def _form(call: JaxprEqn) -> tuple:
    """What two launches share whose index maps can be exchanged: grid and blocks."""
    mapping = call.params["grid_mapping"]
    blocks = _refs(call)[: mapping.num_index_operands + len(mapping.block_mappings)]
    return mapping.grid, mapping.num_inputs, blocks


def _refs(call: JaxprEqn) -> list[str]:
    return [str(v.aval) for v in call.params["jaxpr"].invars]


def _shown(mine: Operand, theirs: Operand, launched: Traced) -> str:
    step = int(np.argmax((mine.blocks != theirs.blocks).any(axis=1)))
    ids = launched.launches[0].program_ids
    at, is_, has = (tuple(int(n) for n in x[step]) for x in (ids, mine.blocks, theirs.blocks))
    return f"At grid step {at} `{mine.name}` holds block {is_}, in the reference block {has}."
