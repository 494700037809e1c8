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
    """A window of a plane that holds its first wrong block, if it has one, with block numbers.

    Of a larger plane, the wrong blocks are counted.
    """
    first = np.unravel_index(int(plane.argmax()), plane.shape)
    top, left = (max(0, int(n) - _SIDE + 1) for n in first)
    window = plane[top : top + _SIDE, left : left + _SIDE]
    below, right = plane.shape[0] > top + _SIDE, plane.shape[1] > left + _SIDE
    numbers = [str(left + n) for n in range(window.shape[1])]
    wide, side = len(numbers[-1]), len(str(top + len(window) - 1))

    def line(label: str, cells: list[str]) -> str:
        shown = ["…"] * (left > 0) + cells + ["…"] * right
        return f"{label:>{side}} {' '.join(cell.rjust(wide) for cell in shown)}"

    rows = [line("", numbers)]
    rows += ["…"] * (top > 0)
    for n, row in enumerate(window):
        rows.append(line(str(top + n), ["x" if wrong else "." for wrong in row]))
    rows += ["…"] * below
    if window.size < plane.size:
        wrong = [f"{int(plane.sum()):,} of {plane.size:,} blocks"]
        for axis, name in ((1, "rows"), (0, "columns")):
            lines = plane.any(axis)
            wrong += [f"in {int(lines.sum()):,} of {len(lines):,} {name}"] * (len(plane) > 1)
        rows.append(f"wrong: {', '.join(wrong)}")
    return rows
