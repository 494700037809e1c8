"""Right and wrong blocks of an output, drawn with characters."""

from __future__ import annotations

import numpy as np

from puzzles._launch import Operand

_SIDE = 8  # blocks shown along an axis
_PLANES = 4


def block_map(operand: Operand, wrong: np.ndarray) -> str | None:
    """Rows of `.` and `x`, with "…" where more blocks lie; None if there is only one block."""
    bad = np.asarray(wrong)
    for axis, size in enumerate(b or 1 for b in operand.block):
        starts = np.arange(0, bad.shape[axis], size)
        bad = np.asarray(np.logical_or.reduceat(bad, starts, axis=axis))
    if bad.size < 2:
        return None
    lead = bad.shape[:-2]
    planes = bad.reshape((-1, *bad.shape[-2:])) if bad.ndim > 1 else bad.reshape(1, 1, -1)
    shown = _shown(planes)
    rows = []
    for number in shown:
        if len(planes) > 1:
            rows.append(f"[{', '.join(str(n) for n in np.unravel_index(number, lead))}]")
        rows += _rows(planes[number])
    if left := len(planes) - len(shown):
        hidden = int(planes.any(axis=(1, 2)).sum() - planes[shown].any(axis=(1, 2)).sum())
        rows.append(f"and {left} more, {hidden or 'none'} of them with wrong blocks")
    axes = "axis 0" if len(lead) == 1 else f"axes {', '.join(map(str, range(len(lead))))}"
    which = f"; [ ] counts along {axes}" * (len(planes) > 1)
    return f"output blocks of {operand.name} (. right, x wrong){which}:\n" + "\n".join(rows)


def _shown(planes: np.ndarray) -> list[int]:
    """The numbers of a few planes, those with wrong blocks before others, in their order."""
    wrong = np.asarray(planes.any(axis=(1, 2)))
    order = sorted(range(len(planes)), key=lambda n: (not wrong[n], n))
    return sorted(order[:_PLANES])


def _rows(plane: np.ndarray) -> list[str]:
    """A window of a plane that holds its first wrong block, if it has one."""
    first = np.unravel_index(int(plane.argmax()), plane.shape)
    top, left = (max(0, int(n) - _SIDE + 1) for n in first)
    rows = ["…"] * (top > 0)
    for row in plane[top : top + _SIDE]:
        marks = ["x" if block else "." for block in row[left : left + _SIDE]]
        rows.append(" ".join(["…"] * (left > 0) + marks + ["…"] * (left + _SIDE < len(row))))
    return rows + ["…"] * (top + _SIDE < len(plane))
