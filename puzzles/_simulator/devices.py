"""Programs with a `shard_map` around their kernels, run in NumPy on all devices of the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from puzzles._jax import JaxprEqn, close
from puzzles._launch import Launch, Traced
from puzzles._program import (
    COLLECTIVES,
    FUEL,
    ProgramInterpreter,
    UnreadableError,
    Values,
    axes_around_kernels,
    kernel_calls,
    mesh_axes,
    one_blas_thread,
)
from puzzles._simulator.device import Device, axis_index
from puzzles._simulator.machine import launch_of
from puzzles._simulator.mesh import Mesh
from puzzles._simulator.semantics import (
    HazardError,
    ProgramRun,
    RunLog,
    Semantics,
    drawn_leaves,
)
from puzzles._simulator.wire import V5E_SPEEDS, Speeds, Wire


@dataclass
class DevicesRun(ProgramRun):
    """The run of a program on a mesh: global results, and the traffic between the devices.

    operations: equations of the kernels, on all devices. known: launches that were read before the
    run.
    """

    wire: Wire = field(default_factory=Wire)
    operations: int = 0
    known: dict[JaxprEqn, Launch] = field(default_factory=dict)


@one_blas_thread()
def run_devices(
    traced: Traced,
    how: Semantics,
    slowest: int | None = None,
    in_order: bool = False,
    speeds: Speeds = V5E_SPEEDS,
) -> DevicesRun:
    """Run a program with a `shard_map` on the devices of its mesh.

    Args:
        slowest: the device that continues only when no other device can; None: they take turns.
        in_order: copies on one semaphore end in the order of their starts; a TPU promises nothing.
        speeds: those of a chip, for the times of the traffic.

    Arguments that are only shapes get data. Raises `HazardError`, whose `wire` is the traffic so
    far, for a race, a deadlock or a semaphore left above zero.
    """
    run = DevicesRun(wire=Wire(speeds))
    with suppress(UnreadableError):
        pairs = zip(kernel_calls(traced.jaxpr.jaxpr), traced.launches, strict=True)
        run.known = {call: launch for call, launch in pairs if not launch.scalars}
    leaves = [np.asarray(x) for x in drawn_leaves(traced.leaves)]
    try:
        with np.errstate(all="ignore"):
            results = _Program(run, how, slowest, in_order).closed(traced.jaxpr, leaves)
    except HazardError as error:
        error.wire = run.wire
        raise
    run.results += map(np.asarray, results)
    return run


def on_mesh(traced: Traced) -> dict[str, int]:
    """The axes of the mesh around the kernels; empty on one device."""
    return axes_around_kernels(traced.jaxpr.jaxpr)


def schedules(count: int) -> Iterator[tuple[Semantics, int | None]]:
    """The runs of a program: some devices are the slowest in turn, copies are late or not."""
    yield Semantics(), None
    for slowest in sorted({0, 1, count - 1}):
        late = slowest % 2 == 1
        yield Semantics(late=late, unwritten="nan" if late else "zero"), slowest


class _Program(ProgramInterpreter):
    """A program in which each `shard_map` runs on all devices of its mesh."""

    def __init__(
        self, run: DevicesRun, how: Semantics, slowest: int | None, in_order: bool
    ) -> None:
        super().__init__()
        self.log, self.how, self.slowest, self.in_order = run, how, slowest, in_order

    def _shard_map(self, equation: JaxprEqn, values: Values) -> Values:
        mesh = Mesh(mesh_axes(equation), self.log.wire, self.slowest, self.in_order)
        params, part = equation.params, mesh.shape.part
        body, pairs = close(params["jaxpr"]), [*zip(values, params["in_specs"], strict=True)]

        def work(device: int) -> Values:
            local = [np.asarray(x)[part(spec, np.shape(x), device)] for x, spec in pairs]
            return _Body(self, mesh, device).closed(body, local)

        outs = zip(equation.outvars, params["out_specs"], strict=True)
        results = []
        for column, (out, spec) in zip(zip(*mesh.run(work), strict=True), outs, strict=True):
            whole = np.empty(out.aval.shape, np.asarray(column[0]).dtype)
            for device, local in enumerate(column):
                whole[part(spec, whole.shape, device)] = local
            results.append(whole)
        return results


_Program.meanings = ProgramInterpreter.meanings | {"shard_map": _Program._shard_map}


class _Body(ProgramInterpreter):
    """A `shard_map`'s function on one device."""

    def __init__(self, program: _Program, mesh: Mesh, number: int) -> None:
        super().__init__(self._runs)
        self.program, self.mesh, self.number = program, mesh, number
        self.launched = self.met = 0

    def _runs(self, call: JaxprEqn, values: Values) -> Values:
        run = self.program.log
        log = RunLog(run.known.get(call) or launch_of(call, values))
        run.trails.append(log)
        device = Device(self.mesh, self.number, self.launched, call, log, self.program.how)
        self.launched += 1
        results = device.results(values)
        run.operations += FUEL - device.fuel
        return results

    def _collective(self, equation: JaxprEqn, values: Values) -> Values:
        self.met += 1
        return self.mesh.meet(self.number, self.met, equation, values)


_Body.meanings = ProgramInterpreter.meanings | {"axis_index": axis_index}
_Body.meanings |= dict.fromkeys(COLLECTIVES, _Body._collective)
