"""Which blocks a TPU takes: the rule of the last two dimensions."""

from __future__ import annotations

from collections.abc import Iterator

from puzzles._launch.finding import Finding, told
from puzzles._launch.operand import Operand, itemsize


def misaligned(operand: Operand) -> Iterator[Finding]:
    """That a block in VMEM breaks the rule, and what to try."""
    name, shape, sizes = operand.name, operand.shape, operand.sizes
    form = f"({', '.join(map(str, operand.block))}{',' * (len(shape) == 1)})"
    if not shape:
        yield told("misaligned", "scalar block", operand=name)
    elif len(shape) == 1:
        if sizes[0] != shape[0] and sizes[0] % 1024:
            yield told("misaligned", "1-D block", operand=name, form=form, shape=shape)
    else:
        # Mosaic looks at the last two axes of the array, where a squeezed axis counts as 1. Arrays
        # of 8 bits have tiles of 32 rows where their rows divide by 32, and libtpu cuts no tile.
        tile = 32 if itemsize(operand.dtype) == 1 and shape[-2] % 32 == 0 else 8
        for axis, multiple, place in ((-1, 128, "last"), (-2, tile, "second-last")):
            if sizes[axis] != shape[axis] and sizes[axis] % multiple:
                words = "misaligned" + ", and squeezed" * (operand.block[axis] is None)
                facts = dict(form=form, shape=shape, tile=tile, bits=" in 8 bits" * (tile > 8))
                facts |= dict(place=place, size=sizes[axis], multiple=multiple, whole=shape[axis])
                yield told("misaligned", words, operand=name, **facts)
                return
