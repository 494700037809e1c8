"""Read launches: a function in, its launches out.

`trace_call` runs a function once and keeps its jaxpr as a `Traced`; `Traced.launches` reads each
`pallas_call` from it as a `Launch` of `Operand`s and `Dot`s: grid, blocks, bytes, buffers, executed
work. `faults` finds errors of a launch before anything runs, and `timeline` follows the copies that
a kernel makes by hand. This package runs nothing, judges no kernel, and knows no puzzles.
"""

from __future__ import annotations

from puzzles._launch.abstract_refs import Buffer, allocated, memory_space, scoped_names
from puzzles._launch.block_checks import faults, step_number
from puzzles._launch.copies import Copy, bytes_of
from puzzles._launch.copies_in_flight import Flight, Flights, View, may_overlap, same_bytes
from puzzles._launch.events import accessed
from puzzles._launch.finding import (
    ERROR,
    NOTE,
    SEVERITIES,
    WARNING,
    Finding,
    Line,
    happens,
    in_file,
    line_of,
    placed,
    text_of,
    told,
    when,
)
from puzzles._launch.inner_pipelines import revisited_inside, single_slots
from puzzles._launch.launch import Launch
from puzzles._launch.log import ARITHMETIC, REDUCTIONS, TRANSCENDENTAL, Dot
from puzzles._launch.operand import Operand, itemsize
from puzzles._launch.slices import (
    before_bitcast,
    in_last_tile,
    ranges_of,
    ranges_shown,
    taken,
    unlike,
)
from puzzles._launch.timelines import Follower, Timeline, copied, faults_of_copies, timeline
from puzzles._launch.traces import (
    Traced,
    as_function,
    keeping_traces,
    kernels,
    nothing_launched,
    program_of,
    trace,
    trace_call,
)
from puzzles._launch.waste_notes import waste
