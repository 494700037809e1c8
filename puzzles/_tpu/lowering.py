"""What Mosaic, the compiler of TPU kernels, lowers: it needs neither a TPU nor libtpu."""

from __future__ import annotations

import jax

from puzzles._launch import Finding, Traced, as_function
from puzzles._tpu import columns, mosaic_words


class LoweringError(Exception):
    """What Mosaic will not lower: `rule` is the rule that is broken, where we know it."""

    def __init__(self, finding: Finding, rule: str | None = None) -> None:
        super().__init__(finding.words)
        self.finding, self.says, self.operand = finding, finding.words, finding.operand
        self.rule = rule


def lower(traced: Traced) -> None:
    """Lower `traced` for a TPU, without libtpu; raises `LoweringError`.

    Finds broken rules of blocks, operations without a TPU form, and 1-D masks that become columns,
    which libtpu refuses; not too little memory.
    """
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in traced.leaves]
    try:
        jax.jit(as_function(traced, False)).trace(*shapes).lower(lowering_platforms=("tpu",))
    except Exception as error:
        raise LoweringError(*mosaic_words.lowering(error, traced.jaxpr)) from None
    for equation in columns.mask_columns(traced.jaxpr):
        raise LoweringError(mosaic_words.mask_column(equation), mosaic_words.MASK_RULE)
