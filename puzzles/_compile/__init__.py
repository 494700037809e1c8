"""Does a TPU take this program? A traced function in; a refusal in words, or nothing, out.

`lowered` asks Mosaic; a `Compiler` asks libtpu, for every one of `CHIPS`, in a worker process;
`estimated_cycles` has its estimate of the time. `room` and `compiled` give what these refuse as
findings; `price` estimates the time of launches. None needs a TPU.
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
from puzzles._compile.refusals import budget, compiled, known_to_fit, lowered, room
