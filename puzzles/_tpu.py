"""Kernels for TPUs on a machine without one: what Mosaic lowers and what libtpu compiles."""

from __future__ import annotations

import jax

from puzzles import _mosaic_words as words
from puzzles._chips import CHIPS, Chip
from puzzles._compiler import (
    INSTALL_LIBTPU,
    Compiler,
    CompilerMissing,
    has_libtpu,
    supported_chips,
)
from puzzles._trace import Traced, as_function

__all__ = [
    "CHIPS",
    "INSTALL_LIBTPU",
    "Chip",
    "Compiler",
    "CompilerMissing",
    "LoweringError",
    "has_libtpu",
    "lower",
    "supported_chips",
]


class LoweringError(Exception):
    """What Mosaic will not lower: `rule` is the rule that is broken, where we know it."""

    def __init__(self, says: str, operand: str | None = None, rule: str | None = None) -> None:
        super().__init__(says)
        self.says, self.operand, self.rule = says, operand, rule


def lower(traced: Traced) -> None:
    """Lower `traced` for a TPU, without libtpu; raises `LoweringError`.

    Finds broken rules of blocks and operations without a TPU form; not too little memory.
    """
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in traced.leaves]
    try:
        jax.jit(as_function(traced, False)).trace(*shapes).lower(lowering_platforms=("tpu",))
    except Exception as error:
        raise LoweringError(*words.lowering(error, traced.jaxpr)) from None
