"""A launch as plain data for a picture: what each step that is shown holds and moves.

The pages are made from this data and nothing else, so equal data give equal bytes on any JAX. What
moves in blocks has a "count"; positions count the steps that are shown, from 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from puzzles._launch import Launch, Operand, faults, step_number
from puzzles._receipt import moved
from puzzles._tpu import timeline

STEPS = 480  # that are shown of a longer walk
_NUMBERS = 128  # of a prefetched array that are printed
_READS = 6  # different entries of a prefetched array that a step reads
_CELLS = 1 << 18  # of an array's blocks: with more, what is never touched is not looked for

Data = dict[str, Any]


def walk_data(launch: Launch) -> Data:
    """Everything a picture of `launch` needs."""
    wrong = faults(launch)
    numbers = [step_number(launch, f) for f in wrong]
    at = _kept(launch.steps, [n for n in numbers if n is not None])
    position: dict[int | None, int] = {step: n for n, step in enumerate(at.tolist())}
    dots = sum((dot.executed for dot in launch.dots), np.zeros(launch.steps, np.int64))
    work = dots if launch.dots else launch.busy.astype(np.int64)
    computes = launch.dots or launch.busy.any()
    found = [
        {"kind": f.kind, "operand": f.operand, "at": position.get(number), "says": f.words}
        for f, number in zip(wrong, numbers, strict=True)
    ]
    return {
        "kernel": launch.name,
        "grid": list(launch.grid),
        "steps": launch.steps,
        "kept": len(at),
        "at": at.tolist(),
        "open": next((f["at"] for f in found if f["at"] is not None), 0),
        "unit": "dot" if launch.dots else "",
        "work": work[at].tolist(),
        "bound": "" if launch.exact else f"{launch.bound} ",
        "busy": int((work > 0).sum()) if computes else None,
        "moved": moved(launch),
        "faults": found,
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
        "copies": timeline(launch),
    }


def _kept(steps: int, wrong: list[int]) -> np.ndarray:
    """The steps that are shown: all, the first ones, or those around the first fault."""
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
    """How many percent of its sum a ref holds after each step, if it sums anything."""
    share = None if "sem" in operand.space else launch.added(operand)
    return {} if share is None else {"filled": np.round(100 * share[at]).astype(int).tolist()}


def _far(operand: Operand, launch: Launch) -> Data:
    """A ref that stays in HBM, with what the kernel itself copies: [times, bytes] each way."""
    data = _still(operand, "any")
    for way, end in (("from", "source"), ("to", "target")):
        copies = [copy for copy in launch.copies if getattr(copy, end) == operand.name]
        data[way] = [sum(copy.times for copy in copies), sum(copy.bytes for copy in copies)]
    return data


def _scalar(operand: Operand, contents: np.ndarray | None, launch: Launch, at: np.ndarray) -> Data:
    data = _still(operand, "scalar")
    if contents is not None:
        data["numbers"] = np.asarray(contents).reshape(-1)[:_NUMBERS].tolist()
        data["used"] = [one[at].tolist() for one in launch.elements_read(operand.name)[:_READS]]
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
    """What becomes of the block at each step that is shown, as `STATES` in operand.py calls it."""
    stays, goes = ("held", "written") if operand["role"] == "output" else ("reused", "fetched")
    found, moved = [], set()
    for block, moves, covers in zip(operand["blocks"], operand["moves"], inside, strict=True):
        state = f"{'re' * (block in moved)}{goes}" if moves else stays
        found.append(state if covers else "outside")
        moved |= {block} if moves else set()
    return found


def _moves(operand: Operand) -> np.ndarray:
    """(steps,) bool: an input is fetched for this step; an output is written back after it.

    That is, where the next step has another block, or there is none: the first is always fetched.
    """
    return np.roll(operand.fetched, -1) if operand.output else operand.fetched


def _never(operand: Operand, counts: list[int]) -> np.ndarray:
    """Numbers of the blocks that no step visits, rows first; none where blocks overlap."""
    if operand.stride != operand.sizes or math.prod(counts) > _CELLS:
        return np.zeros(0, np.int64)
    seen = np.zeros(counts, bool)
    inside = ((operand.blocks >= 0) & (operand.blocks < np.array(counts, np.int64))).all(axis=1)
    seen[tuple(operand.blocks[inside].T)] = True
    return np.flatnonzero(~seen)
