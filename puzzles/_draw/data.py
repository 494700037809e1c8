"""A launch as plain data for a picture: the blocks that each step holds and moves.

A page depends on this data only, so equal data give equal bytes on any JAX. Operands that move in
blocks have a "count". Positions count the steps that are shown, from 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from puzzles._launch import Launch, Operand, Timeline, faults, step_number, timeline
from puzzles._receipt import moved

STEPS = 480  # shown of a longer grid
_NUMBERS = 128  # of a prefetched array that are printed
_CELLS = 1 << 18  # blocks of an array at most, for a search for untouched blocks

Data = dict[str, Any]


def walk_data(launch: Launch, copies: Timeline | None = None, hunt: bool = False) -> Data:
    """Everything a picture of `launch` needs.

    copies: the timeline of a run; None: the launch's own. hunt: fold the remedies of faults.
    """
    wrong = faults(launch)
    numbers = [step_number(launch, f) for f in wrong]
    at = _shown(launch.steps, [n for n in numbers if n is not None])
    position: dict[int | None, int] = {step: n for n, step in enumerate(at.tolist())}
    dots = sum((dot.executed for dot in launch.dots), np.zeros(launch.steps, np.int64))
    work = dots if launch.dots else launch.busy.astype(np.int64)
    computes = launch.dots or launch.busy.any()
    faulty = [
        {"kind": f.kind, "operand": f.operand, "at": position.get(number), "says": f.words}
        for f, number in zip(wrong, numbers, strict=True)
    ]
    return {
        "kernel": launch.name,
        "grid": list(launch.grid),
        "steps": launch.steps,
        "noun": "core" if launch.settings.cores > 1 else "step",
        "pipeline": launch.pipeline_steps,
        "kept": len(at),
        "at": at.tolist(),
        "open": next((f["at"] for f in faulty if f["at"] is not None), 0),
        "unit": "dot" if launch.dots else "",
        "work": work[at].tolist(),
        "bound": "" if launch.exact else f"{launch.bound} ",
        "busy": int((work > 0).sum()) if computes else None,
        "moved": moved(launch),
        "faults": faulty,
        "hunt": hunt,
        "operands": [
            *(
                _scalar(o, contents, launch, at)
                for o, contents in zip(launch.scalars, launch.scalar_values, strict=True)
            ),
            *(
                _operand(o, at, launch) if o.piped else _far(o, launch)
                for o in launch.inputs + launch.outputs
            ),
            *(
                _still(o, "scratch") | _filled(o, launch, at) if o.piped else _far(o, launch)
                for o in launch.scratch
            ),
        ],
        "copies": copies or timeline(launch),
    }


def _shown(steps: int, wrong: list[int]) -> np.ndarray:
    """The numbers of the shown steps: all steps, the first steps, or a range around a fault."""
    first = max(0, min(min(wrong, default=0) - STEPS // 2, steps - STEPS))
    return np.arange(first, min(first + STEPS, steps))


def _still(operand: Operand, role: str) -> Data:
    return {
        "name": operand.name,
        "role": role,
        "shape": list(operand.shape),
        "dtype": str(operand.dtype),
        "block": list(operand.block),
        "space": operand.space,
        "transfers": operand.transfers,
        "bytes": operand.hbm_bytes,
    }


def _filled(operand: Operand, launch: Launch, at: np.ndarray) -> Data:
    """The share of its sum that a Ref holds after each step, in per cent, if it holds a sum."""
    counts = "sem" in operand.space or operand.space == "smem"  # no part of a result
    share = None if counts else launch.added(operand)
    return {} if share is None else {"filled": np.round(100 * share[at]).astype(int).tolist()}


def _far(operand: Operand, launch: Launch) -> Data:
    """A Ref that stays in HBM, with [times, bytes] of the kernel's own copies each way."""
    data = _still(operand, "any")
    for way, end in (("from", "source"), ("to", "target")):
        copies = [copy for copy in launch.copies if getattr(copy, end) == operand.name]
        data[way] = [sum(copy.times for copy in copies), sum(copy.bytes for copy in copies)]
    return data


def _scalar(operand: Operand, contents: np.ndarray | None, launch: Launch, at: np.ndarray) -> Data:
    data = _still(operand, "scalar")
    if contents is not None:
        data["numbers"] = np.asarray(contents).reshape(-1)[:_NUMBERS].tolist()
        data["used"] = [values[at].tolist() for values in launch.elements_read(operand.name)]
    return data


def _operand(operand: Operand, at: np.ndarray, launch: Launch) -> Data:
    counts = [-(-n // max(1, b)) for n, b in zip(operand.shape, operand.sizes, strict=True)]
    moves = _moves(operand)
    data = _still(operand, "output" if operand.output else "input") | {
        "sizes": list(operand.sizes),
        "tiled": operand.stride == operand.sizes,
        "counts": counts,
        "blocks": list(map(tuple, operand.blocks[at].tolist())),
        "starts": operand.starts[at].tolist(),
        "moves": moves[at].tolist(),
        "count": np.cumsum(moves)[at].tolist(),
        "never": _never(operand, counts).tolist(),
    }
    covered = (operand.starts < operand.shape) & (operand.starts > -np.array(operand.sizes))
    data["states"] = _states(data, covered[at].all(axis=1))
    return data | _filled(operand, launch, at)


def _states(operand: Data, inside: np.ndarray) -> list[str]:
    """The state of the block at each shown step: a key of `STATES` in operand.py."""
    stays, goes = ("held", "written") if operand["role"] == "output" else ("reused", "fetched")
    states, moved = [], set()
    for block, moves, covers in zip(operand["blocks"], operand["moves"], inside, strict=True):
        state = f"{'re' * (block in moved)}{goes}" if moves else stays
        states.append(state if covers else "outside")
        moved |= {block} if moves else set()
    return states


def _moves(operand: Operand) -> np.ndarray:
    """(steps,) bool: True if an input is fetched for the step, or an output written back after it.

    An output is written back if the next step has another block, and after the last step.
    """
    return np.roll(operand.fetched, -1) if operand.output else operand.fetched


def _never(operand: Operand, counts: list[int]) -> np.ndarray:
    """The flat numbers of the blocks that no step visits; empty if blocks overlap."""
    if operand.stride != operand.sizes or math.prod(counts) > _CELLS:
        return np.zeros(0, np.int64)
    visited = np.zeros(counts, bool)
    inside = ((operand.blocks >= 0) & (operand.blocks < np.array(counts, np.int64))).all(axis=1)
    visited[tuple(operand.blocks[inside].T)] = True
    return np.flatnonzero(~visited)
