"""Which blocks a TPU takes: the rule of the last two dimensions."""

from __future__ import annotations

from collections.abc import Iterator

from puzzles._launch.finding import ERROR, Finding
from puzzles._launch.operand import Operand, itemsize


def misaligned(operand: Operand) -> Iterator[Finding]:
    """That a block in VMEM breaks the rule, and what to try."""
    shape, sizes = operand.shape, operand.sizes
    where = f"`{operand.name}`: block {_form(operand.block)} of an array {shape} "
    remedy = ""
    if not shape:
        says = f"`{operand.name}`: a scalar cannot be a block in VMEM:"
        remedy = "pass it in SMEM, or as (1, 1)."
    elif len(shape) == 1:
        if sizes[0] == shape[0] or sizes[0] % 1024 == 0:
            return
        says = where + "does not fit every TPU and JAX:"
        remedy = "a 1-D block is the whole array or a multiple of 1024."
    else:
        # Mosaic looks at the last two axes of the array, where a squeezed axis counts as 1. Arrays
        # of 8 bits have tiles of 32 rows where their rows divide by 32, and libtpu cuts no tile.
        tile = 32 if itemsize(operand.dtype) == 1 and shape[-2] % 32 == 0 else 8
        lanes = sizes[-1] == shape[-1] or sizes[-1] % 128 == 0
        rows = sizes[-2] == shape[-2] or sizes[-2] % tile == 0
        if lanes and rows:
            return
        axis, multiple, place = (-1, 128, "last") if not lanes else (-2, tile, "second-last")
        squeezed = operand.block[axis] is None
        why = "a squeezed one counts as 1" if squeezed else f"{sizes[axis]} is not"
        says = where + (
            f"does not fit a TPU: the last two dims are multiples of ({tile}, 128) or the whole "
            f"axis{' in 8 bits' if tile > 8 else ''}, and here the {place} breaks that ({why})."
        )
        remedy = f"Try a multiple of {multiple} or all {shape[axis]}"
        remedy += ", or transpose the array so that squeezed axes come first." if squeezed else "."
    yield Finding("misaligned", ERROR, says, remedy, operand=operand.name)


def _form(block: tuple[int | None, ...]) -> str:
    return f"({', '.join(map(str, block))}{',' * (len(block) == 1)})"
