"""How long launches take: a term for each cause, with figures fitted to libtpu's estimates.

`docs/prices.md` compares the sum with libtpu on launches that no figure was fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from puzzles._compile.chips import Chip
from puzzles._launch import Launch

_ENDS = 2  # no step hides the first fetch and the last write; by libtpu on launches of 3 steps


@dataclass(frozen=True)
class Price:
    """Seconds of launches on one core of a chip, by cause.

    HBM works during the other terms. The matrix unit, the vector unit and the steps take turns.
    No work hides a wait. bound: "at least" if HBM binds or a term is a lower bound, else "about".
    """

    hbm: float
    matrix: float
    vector: float
    steps: float
    waits: float
    bound: str

    @property
    def core(self) -> float:
        """The terms that take turns."""
        return self.matrix + self.vector + self.steps

    @property
    def seconds(self) -> float:
        """The time of all terms together."""
        return max(self.hbm, self.core) + self.waits

    @property
    def causes(self) -> dict[str, float]:
        """Seconds of the causes that add up to `seconds`, by name, longest first."""
        core = {
            "the matrix unit": self.matrix,
            "the vector unit": self.vector,
            "its steps": self.steps,
        }
        binding = {"HBM": self.hbm} if self.hbm >= self.core else core
        ranked = sorted((binding | {"its waits": self.waits}).items(), key=lambda cause: -cause[1])
        return {name: seconds for name, seconds in ranked if seconds}


def price(launches: Sequence[Launch], chip: Chip) -> Price:
    """The price of launches on a chip, from `counted` of each."""
    sure = [counted(launch) for launch in launches]
    counts = [
        (
            launch.hbm_bytes,
            sum(dot.matrix_flops(chip.matrix_side) for dot in launch.dots),
            sum(int(dot.executed.sum()) for dot in launch.dots),
            launch.vector_slots,
            launch.moving_steps + _ENDS * bool(launch.moving_steps),
            exposed_waits(launch),
        )
        for launch in sure
    ]
    runs = [
        (launch.times or 1)
        * (launch.largest_share if chip.megacore and launch.settings.cores > 1 else 1)
        for launch in launches
    ]
    moved, flops, dots, slots, steps, waits = (
        sum(count * times for count, times in zip(column, runs, strict=True))
        for column in (zip(*counts, strict=True) if counts else ((),) * 6)
    )
    hbm = moved / chip.hbm_bytes_per_second
    matrix = flops / chip.flops_per_second + dots * chip.dot_seconds
    vector, step = slots / 4 / chip.hertz, steps * chip.step_seconds
    exact = all(launch.exact and launch.times for launch in launches) and chip.step_seconds
    bound = "about" if exact and hbm < matrix + vector + step else "at least"
    if any(launch.bound == "at most" and launch is counted(launch) for launch in launches):
        bound = "at most"
    return Price(hbm, matrix, vector, step, waits * chip.wait_seconds, bound)


def counted(launch: Launch) -> Launch:
    """The launch with the counts to price: certain counts, or the most for `emit_pipeline`.

    The length of its loop is known, and in a long one each copy is in doubt.
    """
    pipelined = any(copy.by_pipeline for copy in launch.copies)
    return launch if pipelined and not launch.unknown_loops else launch.least


def exposed_waits(launch: Launch) -> int:
    """Waits for copies from HBM that no work hides, at least.

    A kernel may wait for copies of several refs at once: only those of one ref count.
    """
    by_hand = [copy for copy in launch.copies if not copy.by_pipeline]
    far = {copy.source for copy in by_hand if copy.spaces[0] == "hbm"}
    waits = (launch.waits or {}) if far else {}
    return max((wait.pauses for name, wait in waits.items() if name in far), default=0)
