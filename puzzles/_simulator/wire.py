"""Copies between devices over time, and the work and the waits of the devices meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

from puzzles._simulator.topology import Link, Topology

# Seconds for each link on the way: the scaling book's figure for v5e, in an exercise.
HOP_SECONDS = 1e-6


class Speeds(NamedTuple):
    """FLOP/s of bf16, bytes/s of HBM, and bytes/s of a link in one direction."""

    flops: float
    hbm: float
    link: float


V5E_SPEEDS = Speeds(197e12, 820e9, 45e9)


@dataclass(eq=False)
class Transfer:
    """A copy to another device: sender, receiver, and times of start and arrival in seconds.

    place: the part of the target that it writes. overlapped: whether the sender multiplied
    matrices between the start and its next wait. crossed: whether it may overwrite data in use.
    """

    source: int
    target: int
    bytes: int
    line: str
    place: object
    hops: int
    begin: float
    end: float
    overlapped: bool = False
    crossed: bool = False


@dataclass(frozen=True)
class Span:
    """A device waits, or multiplies matrices: "waits" or "works"."""

    device: int
    does: str
    begin: float
    end: float


@dataclass
class Wire:
    """The traffic of one run, timed by a small model.

    A link carries one copy at a time in each direction, a copy lands `HOP_SECONDS` a link after it
    has left, a dot takes its operations, a wait ends when its last copy has landed. HBM moves the
    bytes of one copy of its device after another, and those of both ends if both are in HBM. A copy
    between devices takes that time from the local copies, but waits for its links alone.
    """

    speeds: Speeds = V5E_SPEEDS
    devices: int = 0
    transfers: list[Transfer] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    at_once: Counter[int] = field(default_factory=Counter)  # of a device: most copies in flight

    def copies(self, device: int = 0) -> list[Transfer]:
        """The copies that a device sends, in the order of their starts."""
        return [transfer for transfer in self.transfers if transfer.source == device]

    def sent(self, device: int = 0) -> dict[int, int]:
        """Bytes that a device sends, by receiver."""
        sent: Counter[int] = Counter()
        for copy in self.copies(device):
            sent[copy.target] += copy.bytes
        return dict(sent)

    def spent(self, does: str, device: int = 0) -> float:
        """Seconds that a device "waits" or "works"."""
        return sum(s.end - s.begin for s in self.spans if (s.device, s.does) == (device, does))

    @property
    def seconds(self) -> float:
        """When the last device has ended."""
        return max([*(s.end for s in self.spans), *(t.end for t in self.transfers)], default=0.0)


class Clock:
    """The times of the devices of a mesh."""

    def __init__(self, wire: Wire, mesh: Topology) -> None:
        self.wire, self._mesh = wire, mesh
        wire.devices = mesh.count
        self.now = [0.0] * wire.devices
        self._free: dict[Link, float] = {}  # when a link can carry another copy
        self._hbm = [0.0] * wire.devices  # when the HBM of a device can move other bytes
        self._open: list[list[Transfer]] = [[] for _ in self.now]  # since the last wait

    def sends(
        self, source: int, target: int, size: int, line: str, place: object, in_hbm: Sequence[bool]
    ) -> float:
        """When a copy lands that starts now; in_hbm: whether its source and target are there."""
        now, speeds = self.now[source], self.wire.speeds
        for device in compress((source, target), in_hbm):
            self._hbm[device] = max(self._hbm[device], self.now[device]) + size / speeds.hbm
        if source == target:
            return self._hbm[source] if any(in_hbm) else now
        links = self._mesh.links(source, target)
        begin = max([now, *(self._free.get(link, 0.0) for link in links)])
        left = begin + size / speeds.link
        self._free |= dict.fromkeys(links, left)
        end = left + len(links) * HOP_SECONDS
        transfer = Transfer(source, target, size, line, place, len(links), begin, end)
        self.wire.transfers.append(transfer)
        self._open[source].append(transfer)
        self.wire.at_once[source] = max(self.wire.at_once[source], len(self._open[source]))
        return transfer.end

    def works(self, device: int, flops: float) -> None:
        """A device multiplies matrices."""
        begin = self.now[device]
        self.now[device] += flops / self.wire.speeds.flops
        self.wire.spans.append(Span(device, "works", begin, self.now[device]))
        for transfer in self._open[device]:
            transfer.overlapped = True

    def waits(self, device: int, until: float, remote: bool) -> None:
        """A device waits until a time, if that is not over. remote: for copies between devices."""
        if until > self.now[device]:
            self.wire.spans.append(Span(device, "waits", self.now[device], until))
            self.now[device] = until
        if remote:
            self._open[device] = []
