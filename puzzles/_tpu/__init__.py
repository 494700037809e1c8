"""What would a TPU say? A traced function in; results, or a refusal in words, out.

`simulate` runs it on JAX's simulator of a TPU, where memory that nobody wrote is NaN; `timeline`
follows the copies that a kernel makes by hand, without running it; `lower` asks Mosaic; a
`Compiler` asks libtpu, for every one of `CHIPS`, in a worker process. None needs a TPU.
"""

from __future__ import annotations

from puzzles._tpu.chips import CHIPS, Chip
from puzzles._tpu.compiler import (
    INSTALL_LIBTPU,
    Compiler,
    CompilerMissing,
    has_libtpu,
    supported_chips,
)
from puzzles._tpu.cycles import NoEstimate, estimated_cycles
from puzzles._tpu.lowering import LoweringError, lower
from puzzles._tpu.moments import Moment, Timeline, Trip, timeline
from puzzles._tpu.simulator import SimulationError, simulate

__all__ = [
    "CHIPS",
    "INSTALL_LIBTPU",
    "Chip",
    "Compiler",
    "CompilerMissing",
    "LoweringError",
    "Moment",
    "NoEstimate",
    "SimulationError",
    "Timeline",
    "Trip",
    "estimated_cycles",
    "has_libtpu",
    "lower",
    "simulate",
    "supported_chips",
    "timeline",
]
