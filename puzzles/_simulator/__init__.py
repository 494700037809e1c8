"""Run launches as a TPU may: a traced function in; results, or a refusal, out.

`step_by_step` runs launches in NumPy, as JAX interprets them or by a TPU's `Semantics`: unwritten
memory is NaN. `simulate` returns a program's results on a TPU, `foreseen` a fault that needs no
run, and `sanitize` reports results that depend on unspecified behaviour of a TPU. `run_devices`
runs the devices of a `shard_map`. None of them needs a TPU.
"""

from __future__ import annotations

from puzzles._simulator.devices import DevicesRun, on_mesh, run_devices
from puzzles._simulator.first_nan import first_not_finite
from puzzles._simulator.programs import step_by_step, timelines_of_run
from puzzles._simulator.sanitizer import sanitize, speaks
from puzzles._simulator.semantics import HazardError, Semantics, floating
from puzzles._simulator.simulator import SimulationError, cannot, foreseen, simulate
from puzzles._simulator.wire import HOP_SECONDS, Speeds, Transfer, Wire
