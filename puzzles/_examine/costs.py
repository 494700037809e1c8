"""The costs of launches, kept in a file: a later launch that costs more is a finding."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from puzzles._launch import Finding, Launch, told

Costs = dict[str, dict[str, int]]  # by the launch's name, then by the name of the count

_WORDS = {
    "steps": "grid steps",
    "bytes": "bytes of HBM read and written",
    "vmem": "bytes of VMEM",
    "dots": "dots",
    "times": "runs of the launch",
}


def costs(launches: Sequence[Launch]) -> Costs:
    """The costs of each launch by its name; a second launch of a name is `name #2`."""
    named: Costs = {}
    for launch in launches:
        again = sum(name.partition(" #")[0] == launch.name for name in named)
        named[f"{launch.name} #{again + 1}" if again else launch.name] = _cost(launch)
    return named


def _cost(one: Launch) -> dict[str, int]:
    counted = {
        "steps": one.steps,
        "bytes": one.hbm_bytes,
        "vmem": one.vmem_bytes,
        "dots": sum(int(dot.executed.sum()) for dot in one.dots),
    }
    return counted if one.times is None else counted | {"times": one.times}


def dearer(
    launches: Sequence[Launch], before: Costs, file: str, tolerance: float = 0
) -> Iterator[Finding]:
    """Yield a finding for each new launch, and if a cost rose by more than `tolerance` percent."""
    for launch, (name, now) in zip(launches, costs(launches).items(), strict=True):
        where = dict(launch=launch.name, line=launch.line, name=name, file=file)
        if (then := before.get(name)) is None:
            yield told("dearer", "not_in_the_file", **where)
            continue
        most = 1 + tolerance / 100
        more = [key for key in _WORDS if now.get(key, 0) > most * then.get(key, math.inf)]
        if more:
            counts = "; ".join(f"{now[key]:,} {_WORDS[key]}, not {then[key]:,}" for key in more)
            yield told("dearer", "dearer", counts=counts, **where)


def lowered(before: Costs, now: Costs) -> Costs:
    """The costs from before, lowered to those of now; without launches that are gone."""
    pairs = ((name, old, now[name]) for name, old in before.items() if name in now)
    return {
        name: {key: min(n, own.get(key, n)) for key, n in old.items()} for name, old, own in pairs
    }


def read(file: Path) -> dict[str, Costs]:
    """The costs of every target in a file, empty without a file; ValueError if it is broken."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError:
        raise ValueError(f"{file} holds no costs: delete it, and it is written anew") from None
