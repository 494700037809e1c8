"""What devices send to each other, when, and what they do meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

# Bytes per second of one link in one direction. Scaling book, "TPU specs", ICI BW/link (one-way):
# https://jax-ml.github.io/scaling-book/tpus. It has no TPU7x, whose nominal 1,200 GB/s of six links
# in both directions (https://cloud.google.com/tpu/docs/tpu7x) are those of v5p, so its figure is
# v5p's.
LINK_BYTES = {"v4": 45e9, "v5e": 45e9, "v5p": 90e9, "v6e": 90e9, "7x": 90e9}
# Seconds for each link on the way: the scaling book's figure for v5e, in an exercise.
HOP_SECONDS = 1e-6
# The machine's clock is that of a v5e: bf16 operations and bytes of HBM per second.
_FLOPS, _HBM_BYTES = 197e12, 819e9


@dataclass(eq=False)
class Transfer:
    """A copy to another device: who sends to whom, when it starts and lands, in seconds.

    overlapped: whether the sender multiplied matrices between the start and its next wait.
    """

    source: int
    target: int
    bytes: int
    line: str
    begin: float
    end: float
    overlapped: bool = False


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

    A link carries one copy at a time in each direction, a copy lands `HOP_SECONDS` after it has
    left, a dot takes its operations, a wait ends when its last copy has landed.
    """

    transfers: list[Transfer] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    at_once: Counter[int] = field(default_factory=Counter)  # of a device: most copies in flight

    def sent(self, device: int = 0) -> dict[int, int]:
        """Bytes that a device sends, by receiver."""
        sent: Counter[int] = Counter()
        for each in self.transfers:
            if each.source == device:
                sent[each.target] += each.bytes
        return dict(sent)

    def copies(self, device: int = 0) -> list[Transfer]:
        """The copies that a device sends, in the order of their starts."""
        return [each for each in self.transfers if each.source == device]

    @property
    def seconds(self) -> float:
        """When the last device has ended."""
        return max((each.end for each in (*self.spans, *self.transfers)), default=0.0)


class Clock:
    """The times of devices that share links."""

    def __init__(self, wire: Wire, count: int, link_bytes: float = LINK_BYTES["v5e"]) -> None:
        self.wire, self.link_bytes = wire, link_bytes
        self.now = [0.0] * count
        self._free: dict[tuple[int, int], float] = {}  # when a link can carry another copy
        self._open: list[list[Transfer]] = [[] for _ in range(count)]  # since the last wait

    def sends(self, source: int, target: int, size: int, line: str) -> float:
        """When a copy lands that starts now."""
        now = self.now[source]
        if source == target:
            return now + size / _HBM_BYTES
        begin = max(now, self._free.get((source, target), 0.0))
        end = self._free[source, target] = begin + size / self.link_bytes
        transfer = Transfer(source, target, size, line, begin, end + HOP_SECONDS)
        self.wire.transfers.append(transfer)
        self._open[source].append(transfer)
        self.wire.at_once[source] = max(self.wire.at_once[source], len(self._open[source]))
        return transfer.end

    def works(self, device: int, flops: float) -> None:
        """A device multiplies matrices."""
        begin = self.now[device]
        self.now[device] += flops / _FLOPS
        self.wire.spans.append(Span(device, "works", begin, self.now[device]))
        for transfer in self._open[device]:
            transfer.overlapped = True

    def waits(self, device: int, until: float, for_copies: bool) -> None:
        """A device waits until a time, if that is not over."""
        if until > self.now[device]:
            self.wire.spans.append(Span(device, "waits", self.now[device], until))
            self.now[device] = until
        if for_copies:
            self._open[device] = []
