"""Run puzzles about several devices in JAX's own simulator: `python cpu_devices.py NAME ...`.

Each name may be followed by a colon and a known mistake. Prints a line for each: the largest
difference from the spec, by case. In a process of its own, because the number of CPU devices is
fixed when JAX starts. NPROC is the number of XLA's threads: with fewer threads than devices the
simulator waits for ever, as it does in a deadlock.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

import puzzles
from puzzles._judge import cases
from puzzles._program import over_axes, over_mesh
from puzzles._puzzle import load


def differences(name: str, mistake: str) -> list[float]:
    """The largest difference from the spec, in units of the largest value, for each case."""
    puzzle, found = puzzles.find(name), []
    text = puzzle.mistake(mistake).apply(puzzle.text) if mistake else puzzle.text
    fn = load(puzzle, text, "on CPU devices")[name]
    for case in cases(puzzle):
        axes = case.axes
        mesh = jax.make_mesh(
            tuple(axes.values()),
            tuple(axes),
            axis_types=(jax.sharding.AxisType.Auto,) * len(axes),
            devices=jax.devices()[: int(np.prod([*axes.values()]))],
        )
        settings = {n: case.dims[n] for n in puzzle.settings & {*case.dims}}
        wanted = puzzle.judged(puzzle.spec, axes, over_axes)(*case.args)
        mapping = functools.partial(over_mesh, mesh=mesh)
        run = puzzle.judged(functools.partial(fn, **settings), axes, mapping)
        got = jax.jit(run)(*case.args)
        scale = float(np.abs(wanted).max())
        found.append(float(np.abs(np.asarray(got) - np.asarray(wanted)).max()) / scale)
    return found


def in_jax(*names: str) -> dict[str, list[float]]:
    """The differences from the spec in JAX's own simulator, in a process with eight devices."""
    command, threads = [sys.executable, __file__, *names], dict(os.environ, NPROC="16")
    done = subprocess.run(command, capture_output=True, text=True, env=threads, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = zip(names, done.stdout.splitlines(), strict=True)
    return {name: [float(x) for x in line.removeprefix(name).split()] for name, line in lines}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    puzzles.INTERPRET = pltpu.InterpretParams()
    for each in sys.argv[1:]:
        name, _, mistake = each.partition(":")
        print(each, *(f"{one:.1e}" for one in differences(name, mistake)), flush=True)
