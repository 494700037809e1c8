"""What does a grid step cost by itself? libtpu's estimates, beside what a receipt says.

A launch takes at least what HBM and the matrix unit need, and a step of a pipelined grid takes a
time of its own. libtpu's estimate of cycles is the only clock here. `Chip.step_seconds` is fitted
to launches of small blocks; the others are held out. `make steps` prints all of them.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import puzzles
from puzzles._launch import Traced, trace_call
from puzzles._receipt import times, wait_seconds
from puzzles._tpu import CHIPS, Compiler

# By what the matrix unit does in a second: four of 128 × 128 cells, two operations in each.
HERTZ = {chip: CHIPS[chip].flops_per_second / 2**17 for chip in ("v5e", "v5p")}
BLOCKS = [
    (8, 128), (16, 128), (32, 128), (64, 128), (64, 256), (128, 256), (256, 256), (256, 512),
    (512, 512),
]  # fmt: skip
TILES = [
    (128, 128, 128), (128, 256, 128), (256, 256, 256), (256, 512, 256), (512, 512, 256),
    (512, 1024, 512), (128, 1024, 128),
]  # fmt: skip
RUNGS = (
    "scale_blocks",
    "outer_product",
    "batched_matmul",
    "row_sum",
    "tiled_matmul",
    "online_softmax",
)
_SURE = 1.5  # times what HBM and the matrix unit need: an estimate above it has another cause


@dataclass(frozen=True)
class Estimate:
    """A launch on a chip: libtpu's cycles, and the seconds of the receipt's three terms."""

    name: str
    chip: str
    steps: int
    cycles: int
    memory: float
    matrix: float
    waits: float

    @property
    def by_steps(self) -> float:
        return self.steps * CHIPS[self.chip].step_seconds

    @property
    def ratio(self) -> float:
        """libtpu's time, in units of the receipt's."""
        seconds = self.cycles / HERTZ[self.chip]
        waited = self.waits + self.memory if self.waits else 0.0
        return seconds / max(self.memory, self.matrix, self.by_steps, waited)

    @property
    def agrees(self) -> bool:
        """Whether both say that steps or waits are what it is bound by, or that they are not."""
        work = max(self.memory, self.matrix)
        return (max(self.by_steps, self.waits) > work) == (
            self.cycles / HERTZ[self.chip] > _SURE * work
        )


def fitted() -> Iterator[tuple[str, Traced]]:
    """Sums and copies of arrays, in blocks from 4 KiB to 1 MiB."""
    for size in (1024, 2048):
        x = jax.ShapeDtypeStruct((size, size), jnp.float32)
        for inputs, what in ((1, "copy"), (2, "add")):
            for block in BLOCKS:
                name = f"{what} {size} by {block}"
                yield name, trace_call(_elementwise(block, inputs), *(x,) * inputs)


def waited_for() -> Iterator[tuple[str, Traced]]:
    """Copies by hand, each waited for as soon as it is started."""
    for rows in (8, 32, 128):
        for count in (16, 64):
            x = jax.ShapeDtypeStruct((rows * count, 1024), jnp.float32)
            yield f"{count} copies of {4 * rows} KiB", trace_call(_one_by_one(rows, count), x)


def _one_by_one(rows: int, count: int) -> Callable:
    def kernel(x_ref: Any, o_ref: Any, rows_ref: Any, sem: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.loop(0, count)
        def _(n: Any) -> None:
            copy = pltpu.make_async_copy(x_ref.at[pl.ds(n * rows, rows)], rows_ref, sem)
            copy.start()
            copy.wait()
            o_ref[...] += rows_ref[:8]

    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_shape=jax.ShapeDtypeStruct((8, 1024), jnp.float32),
            scratch_shapes=[pltpu.VMEM((rows, 1024), jnp.float32), pltpu.SemaphoreType.DMA],
            interpret=True,
        )(x)

    return call


def held_out() -> Iterator[tuple[str, Traced]]:
    """Matmuls in several tiles, and references on the last of their cases."""
    matmul = puzzles.find("matmul_bf16").solution
    a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((1024, 2048), (2048, 1024)))
    for bm, bk, bn in TILES:
        tiled = _with(matmul, bm=bm, bk=bk, bn=bn)
        yield f"matmul_bf16 by ({bm}, {bk}, {bn})", trace_call(tiled, a, b)
    for name in RUNGS:
        puzzle = puzzles.find(name)
        yield name, trace_call(puzzle.solution, *puzzle.arguments(len(puzzle.cases) - 1))


def _with(fn: Callable, **given: int) -> Callable:
    return lambda *args: fn(*args, **given)


def _elementwise(block: tuple[int, int], inputs: int) -> Callable:
    def kernel(*refs: Any) -> None:
        *given, o_ref = refs
        o_ref[...] = sum(ref[...] for ref in given)

    def call(*arrays: jax.Array) -> jax.Array:
        shape, spec = arrays[0].shape, pl.BlockSpec(block, lambda i, j: (i, j))
        return pl.pallas_call(
            kernel,
            grid=(shape[0] // block[0], shape[1] // block[1]),
            in_specs=[spec] * inputs,
            out_specs=spec,
            out_shape=jax.ShapeDtypeStruct(shape, arrays[0].dtype),
            interpret=True,
        )(*arrays)

    return call


def estimated(launches: Iterator[tuple[str, Traced]], chips: list[str]) -> Iterator[Estimate]:
    """libtpu's estimate of each launch on each chip, where it gives one."""
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_static_llo_profile_to={folder}",
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # what is not compiled is not estimated
        }
        with Compiler(timeout=120, environment=asked) as compiler:
            for name, traced in launches:
                for chip in chips:
                    refused = compiler.compile(traced, [chip])[chip]
                    cycles = 0
                    for path in Path(folder).rglob("*.textproto"):
                        text = path.read_text(errors="replace")
                        cycles += sum(map(int, re.findall(r"\bestimated_cycles: (\d+)", text)))
                        path.unlink()
                    if cycles and not refused:
                        yield _estimate(name, chip, traced, cycles)


def _estimate(name: str, chip: str, traced: Traced, cycles: int) -> Estimate:
    moved = sum(one.hbm_bytes for one in traced.launches)
    flops = sum(one.dot_flops for one in traced.launches)
    steps = sum(one.steps for one in traced.launches)
    waits = wait_seconds(traced.launches, CHIPS[chip])
    return Estimate(name, chip, steps, cycles, *times(moved, flops, CHIPS[chip]), waits)


def main() -> int:
    """Print every estimate, and how many of them the receipt agrees with."""
    kinds = ("fitted to", fitted()), ("held out", held_out()), ("waited for", waited_for())
    for title, launches in kinds:
        print(f"{title:<34}chip    steps  cycles a step  HBM, MXU a step  libtpu / receipt  cause")
        found = []
        for one in estimated(launches, list(HERTZ)):
            found.append(one)
            each = one.cycles / one.steps
            work = max(one.memory, one.matrix) * HERTZ[one.chip] / one.steps
            print(
                f"{one.name:<34}{one.chip:<6}{one.steps:>7}{each:>15.0f}{work:>17.0f}"
                f"{one.ratio:>18.2f}  {'same' if one.agrees else 'OTHER'}",
                flush=True,
            )
        close = sum(1 / 3 <= one.ratio <= 3 for one in found)
        same = sum(one.agrees for one in found)
        print(
            f"{len(found)} launches: {close} within a factor of three, {same} of the same cause\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
