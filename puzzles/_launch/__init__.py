"""What does this call do? The ground of the engine: a function in, its launches out.

`trace_call` runs a function once and keeps its jaxpr as a `Traced`; `Traced.launches` reads from it
what every `pallas_call` does, as `Launch`es of `Operand`s and `Dot`s: grid, blocks, bytes, buffers,
executed work. `faults` finds what is wrong with a launch before anything runs. `by_jax`
and `run_program` run a program, `run_as` runs one as a TPU may. No kernel is judged here, and
nothing is known of puzzles.
"""

from __future__ import annotations

from puzzles._launch.blocks import narrow
from puzzles._launch.events import Event, Part
from puzzles._launch.fault import faults, step_number
from puzzles._launch.finding import (
    ERROR,
    KINDS,
    NOTE,
    SEVERITIES,
    WARNING,
    Finding,
    happens,
    line_of,
    place,
    placed,
    text_of,
    told,
    when,
)
from puzzles._launch.finite import first_not_finite
from puzzles._launch.flights import Flight, Flights, Place
from puzzles._launch.graph import Abstract, Unreadable
from puzzles._launch.in_numpy import Beyond, Endless, Enough
from puzzles._launch.jaxprs import (
    LAYOUT,
    PALLAS_CALL,
    around_kernels,
    equations,
    for_gpus,
    kernel_calls,
    launch_name,
    longest_body,
    longest_loop,
    outside,
    parameter_names,
    subjaxprs,
    through,
    turns,
    visited,
    with_interpret,
    within,
)
from puzzles._launch.launch import Launch
from puzzles._launch.mesh import as_tpu, devices_called, pipelines_on_cpu
from puzzles._launch.moves import Copy, bytes_of
from puzzles._launch.operand import Operand, itemsize
from puzzles._launch.pl_kernel import with_kernels_launched
from puzzles._launch.programs import Ran, drawn, run_as, step_by_step
from puzzles._launch.run import by_jax, run_program, runs_in_python, single
from puzzles._launch.sameness import fingerprint
from puzzles._launch.slices import ranges_of, ranges_shown, taken
from puzzles._launch.smem import UNNAMED, memory_space
from puzzles._launch.stepped import Machine
from puzzles._launch.traced import (
    Traced,
    as_function,
    keeping_traces,
    kernels,
    nothing_launched,
    program_of,
    trace,
    trace_call,
)
from puzzles._launch.trail import EDGE, How, Seen, Trail, Unsafe, address, comparable, floating
from puzzles._launch.wasted import waste
from puzzles._launch.work import ARITHMETIC, REDUCTIONS, TRANSCENDENTAL, Dot
