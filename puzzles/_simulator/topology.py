"""The shape of a mesh: the coordinates of its devices, their parts of arrays, and their links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

Link = tuple[int, int, int]  # a device, an axis, and a direction: 1 or -1


class Topology:
    """The names and lengths of a mesh's axes, which are rings; the last axis counts fastest."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes, self.sizes = axes, tuple(axes.values())
        self.count = math.prod(self.sizes)

    def coordinates(self, device: int) -> list[int]:
        """The coordinates of a device, along all axes."""
        return [*map(int, np.unravel_index(device, self.sizes))]

    def name(self, device: int) -> str:
        """A device's number; on a mesh of several axes, its coordinates: "(1, 0)"."""
        return str(device if len(self.sizes) == 1 else tuple(self.coordinates(device)))

    def names(self, devices: Sequence[int]) -> str:
        """ "device 2", or "devices 0, 1 and 3"."""
        names = [*map(self.name, devices)]
        if len(names) == 1:
            return f"device {names[0]}"
        return f"devices {', '.join(names[:-1])} and {names[-1]}"

    def coordinates_of(self, given: Any, device: int) -> list[int]:
        """The coordinates in a device id; an id by names has those of `device` along other axes."""
        if isinstance(given, Mapping):
            own = zip(self.axes, self.coordinates(device), strict=True)
            return [int(given.get(name, at)) for name, at in own]
        return [*map(int, jax.tree.leaves(given))]

    def index(self, device: int, names: Any) -> int:
        """The index of a device along an axis or several of them; 0 along None."""
        index, places = 0, dict(zip(self.axes, self.coordinates(device), strict=True))
        for name in _each(names):
            if name not in places:
                raise NameError(f"unbound axis name: {name}")
            index = index * self.axes[name] + places[name]
        return index

    def part(self, spec: Any, shape: Sequence[int], device: int) -> tuple[slice, ...]:
        """The slices of a global array that a device holds by a `PartitionSpec`."""
        slices = []
        for names, size in zip(spec, shape, strict=False):
            block = size // math.prod(self.axes[name] for name in _each(names))
            start = self.index(device, names) * block
            slices.append(slice(start, start + block))
        return tuple(slices)

    def links(self, source: int, target: int) -> list[Link]:
        """The links on the shortest way from a device to another one."""
        here, links = self.coordinates(source), []
        for axis, place in enumerate(self.coordinates(target)):
            size = self.sizes[axis]
            ahead = (place - here[axis]) % size
            way = 1 if 2 * ahead <= size else -1
            for _ in range(min(ahead, size - ahead)):
                links.append((int(np.ravel_multi_index(here, self.sizes)), axis, way))
                here[axis] = (here[axis] + way) % size
        return links


def _each(names: Any) -> tuple[str, ...]:
    """The axes that are named by None, a name or a tuple of names."""
    return () if names is None else names if isinstance(names, tuple) else (names,)
