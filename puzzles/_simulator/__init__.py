"""What does a launch do when a TPU runs it? A traced function in; results, or a refusal, out.

`step_by_step` and `run_as` run launches in NumPy, as JAX interprets them or by a TPU's `Semantics`,
where memory that nobody wrote is NaN. `simulate` gives a program's results on a TPU, `foreseen`
what it would be stopped at, without running it, and `sanitize` what its results depend on that a
TPU leaves open. `run_devices` runs the devices of a `shard_map`. None needs a TPU.
"""

from __future__ import annotations

from puzzles._simulator.devices import DevicesRun, on_mesh, run_devices
from puzzles._simulator.first_nan import first_not_finite
from puzzles._simulator.machine import Machine
from puzzles._simulator.programs import run_as, step_by_step
from puzzles._simulator.sanitizer import sanitize, speaks
from puzzles._simulator.semantics import HazardError, Semantics, drawn, floating
from puzzles._simulator.simulator import SimulationError, again_whole, cannot, foreseen, simulate
from puzzles._simulator.wire import HOP_SECONDS, Speeds, Transfer, Wire
