"""What does a grid step cost by itself? libtpu's estimates, beside what a receipt says.

A launch takes at least what HBM and the matrix unit need, and a step of a pipelined grid takes a
time of its own. libtpu's estimate of cycles is the only clock here. `Chip.step_seconds` is fitted
to launches of small blocks; the others are held out. `make steps` prints all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from launched import call

import puzzles
from puzzles._compile import CHIPS, NoEstimateError, estimated_cycles
from puzzles._launch import Traced, trace_call
from puzzles._receipt import times, wait_seconds

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
    "scale_blocks", "outer_product", "batched_matmul", "row_sum", "tiled_matmul", "online_softmax",
)  # fmt: skip
_SURE = 1.5  # times what HBM and the matrix unit need: an estimate above it has another cause

f32, bf16 = jnp.float32, jnp.bfloat16
S = jax.ShapeDtypeStruct
Named = Iterator[tuple[str, Traced]]


@dataclass(frozen=True)
class Estimate:
    """A launch on a chip, in cycles: libtpu's, and those of the receipt's terms.

    work: what HBM and the matrix unit need. bound: all terms.
    """

    name: str
    chip: str
    steps: int
    cycles: int
    work: float
    bound: float

    @property
    def ratio(self) -> float:
        """libtpu's time, in units of the receipt's."""
        return self.cycles / self.bound

    @property
    def agrees(self) -> bool:
        """Whether both say that steps or waits are what it is bound by, or that they are not."""
        return (self.bound > self.work) == (self.cycles > _SURE * self.work)


def fitted() -> Named:
    """Sums and copies of arrays, in blocks from 4 KiB to 1 MiB."""
    for size in (1024, 2048):
        for inputs, what in ((1, "copy"), (2, "add")):
            for block in BLOCKS:
                yield f"{what} {size} by {block}", _added(S((size, size), f32), block, inputs)


def _added(x: jax.ShapeDtypeStruct, block: tuple[int, int], inputs: int) -> Traced:
    def kernel(*refs):
        *given, o_ref = refs
        o_ref[...] = sum(ref[...] for ref in given)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    grid = tuple(n // b for n, b in zip(x.shape, block, strict=True))
    return trace_call(call(kernel, x, grid, [spec] * inputs, spec), *[x] * inputs)


def waited_for() -> Named:
    """Sums of chunks of 64 rows, each copied and waited for before it is added."""
    for width in (128, 512, 2048):
        for count in (16, 64):
            x = S((64 * count, width), f32)
            name = f"{count} copies of {width // 4} KiB"
            yield name, trace_call(puzzles.find("stream_sum").solution, x)


def held_out() -> Named:
    """Matmuls in several tiles, and references on the last of their cases."""
    matmul = puzzles.find("matmul_bf16").solution
    for bm, bk, bn in TILES:
        tiled = functools.partial(matmul, bm=bm, bk=bk, bn=bn)
        traced = trace_call(tiled, S((1024, 2048), bf16), S((2048, 1024), bf16))
        yield f"matmul_bf16 by ({bm}, {bk}, {bn})", traced
    for name in RUNGS:
        puzzle = puzzles.find(name)
        yield name, trace_call(puzzle.solution, *puzzle.arguments(len(puzzle.cases) - 1))


def estimated(launches: Named, chips: Iterable[str] = HERTZ) -> Iterator[Estimate]:
    """libtpu's estimate of each launch on each chip, where it gives one."""
    for name, traced in launches:
        (one,) = traced.launches
        for chip in chips:
            try:
                cycles = estimated_cycles(traced, chip)
            except NoEstimateError:
                continue
            work = max(times(one.hbm_bytes, one.dot_flops, CHIPS[chip]))
            waits = wait_seconds([one], CHIPS[chip])
            waits += waits and one.hbm_bytes / CHIPS[chip].hbm_bytes_per_second
            bound = max(work, one.steps * CHIPS[chip].step_seconds, waits)
            hertz = HERTZ[chip]
            yield Estimate(name, chip, one.steps, cycles, work * hertz, bound * hertz)


def main() -> None:
    """Print every estimate, and how many of them the receipt agrees with."""
    kinds = {"fitted to": fitted(), "held out": held_out(), "waited for": waited_for()}
    for title, launches in kinds.items():
        print(f"{title:<34}chip    steps  cycles a step  HBM, MXU a step  libtpu / receipt  cause")
        found = []
        for one in estimated(launches):
            found.append(one)
            each, work = one.cycles / one.steps, one.work / one.steps
            row = f"{one.name:<34}{one.chip:<6}{one.steps:>7}{each:>15.0f}{work:>17.0f}"
            print(f"{row}{one.ratio:>18.2f}  {'same' if one.agrees else 'OTHER'}", flush=True)
        close = sum(1 / 3 <= one.ratio <= 3 for one in found)
        same = sum(one.agrees for one in found)
        print(f"{len(found)}: {close} within a factor of three, {same} of the same cause\n")


if __name__ == "__main__":
    main()
