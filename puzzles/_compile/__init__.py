"""Does a TPU's compiler accept this program? A traced function in; a refusal, or nothing, out.

`lowered` runs Mosaic's lowering. A `Compiler` runs libtpu for each of `CHIPS`, in a worker process;
`estimated_cycles` returns libtpu's estimate. `room` and `compiled` return refusals as findings, and
`price` estimates the time of launches. None needs a TPU.
"""

from __future__ import annotations

from puzzles._compile.chips import CHIPS, LINK_BYTES, Chip
from puzzles._compile.compiler import (
    INSTALL_LIBTPU,
    Compiler,
    CompilerMissingError,
    NoEstimateError,
    estimated_cycles,
    has_libtpu,
    supported_chips,
)
from puzzles._compile.prices import Price, counted, price
from puzzles._compile.refusals import (
    budget,
    compiled,
    compiled_as_traced,
    known_to_fit,
    lowered,
    on_chip,
    on_shared_cores,
    room,
)
