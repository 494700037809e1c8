"""What would a TPU say? A traced function in; results, or a refusal in words, out.

`simulate` runs it in NumPy as a TPU may, where memory that nobody wrote is NaN; `timeline` follows
the copies that a kernel makes by hand, without running it, and `foreseen` is what that and the
blocks say would be stopped at, or let pass; `lowered` asks Mosaic; a `Compiler` asks libtpu, for
every one of `CHIPS`, in a worker process. None needs a TPU.
`sanitize`, `room` and `compiled`, too, give what these refuse as findings.
"""

from __future__ import annotations

from puzzles._tpu.chips import CHIPS, Chip
from puzzles._tpu.compiler import (
    INSTALL_LIBTPU,
    Compiler,
    CompilerMissing,
    NoEstimate,
    estimated_cycles,
    has_libtpu,
    supported_chips,
)
from puzzles._tpu.moments import Timeline, timeline
from puzzles._tpu.refusals import budget, compiled, known_to_fit, lowered, room
from puzzles._tpu.sanitizer import sanitize, speaks
from puzzles._tpu.simulator import SimulationError, again_whole, foreseen, simulate
from puzzles._tpu.together import axes_around, sanitize_together
