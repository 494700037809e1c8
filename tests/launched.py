"""Short functions that return a launch or its numbers, for tests of statements in prose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import puzzles
from puzzles import Launch
from puzzles._judge import on_chips
from puzzles._launch import Traced, trace_call
from puzzles._program import as_tpu, by_jax, over_mesh
from puzzles._simulator import SimulationError, Wire, simulate

HBM = pl.BlockSpec(memory_space=pl.ANY)


def copy_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def cores(count: int) -> Any:
    """A mesh of so many TensorCores, for `pl.kernel`."""
    mesh = getattr(pltpu, "TensorCoreMesh", None)  # JAX < 0.11 has only the function
    return (mesh or pltpu.create_tensorcore_mesh)(axis_name="core", num_cores=count)


def call(
    kernel: Callable,
    out: Any,
    grid: tuple = (),
    specs: Any = pl.no_block_spec,
    out_specs: Any = pl.no_block_spec,
    scratch: Sequence = (),
    scalars: int = 0,
    **more: Any,
) -> Callable:
    """A launch whose first arguments, as many as `scalars`, are prefetched."""
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=scalars,
        grid=grid,
        in_specs=specs,
        out_specs=out_specs,
        scratch_shapes=list(scratch),
    )
    return pl.pallas_call(kernel, grid_spec=spec, out_shape=out, **{"interpret": True} | more)


def from_hbm(kernel: Callable, *scratch: Any, **more: Any) -> Callable:
    """A function of arrays that stay in HBM; its result is like the first array."""

    def run(*args: Any) -> Any:
        out = jax.ShapeDtypeStruct(args[0].shape, args[0].dtype)
        own = dict(out=out, specs=[HBM] * len(args), scratch=scratch)
        return call(kernel, **own | more)(*args)

    return run


def one(fn: Callable, *args: Any) -> Launch:
    """The only launch of `fn(*args)`."""
    (launch,) = puzzles.trace(fn, *args)
    return launch


def reference(name: str, *args: Any, **options: Any) -> Launch:
    """The launch of a puzzle's solution."""
    return one(functools.partial(puzzles.find(name).solution, **options), *args)


def traced(fn: Callable, *args: Any) -> Traced:
    """The trace of `fn(*args)` as if on a TPU."""
    with as_tpu():
        return trace_call(fn, *args)


def interpreted(fn: Callable, *args: Any) -> np.ndarray:
    """The first result under `interpret=True`."""
    made = traced(fn, *args)
    return by_jax(made.jaxpr, made.leaves)[0]


def simulated(fn: Callable, *args: Any) -> np.ndarray:
    """The first result in the TPU simulator."""
    return simulate(traced(fn, *args))[0]


def refused(fn: Callable, *args: Any) -> SimulationError:
    """The error of the TPU simulator."""
    with pytest.raises(SimulationError) as caught:
        simulated(fn, *args)
    return caught.value


def mistaken(name: str, mistake: str) -> Callable:
    """A puzzle's solution with a mistake on record."""
    puzzle = puzzles.find(name)
    return puzzles.mutate(puzzle, puzzle.mistake(mistake))


@functools.cache
def wire_of(name: str, devices: int, **dims: int) -> Wire:
    """The traffic of a puzzle's reference on a ring, timed as on v5e; without dims, of case 0."""
    puzzle = puzzles.find(name)
    args = puzzle.drawn({**puzzle.cases[0], **dims, "x": devices}, 0, 0)
    judged = puzzle.judged(puzzle.solution, {"x": devices}, over_mesh)
    return on_chips(trace_call(judged, *args), "v5e").wire
