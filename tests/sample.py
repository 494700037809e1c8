"""The share of the long tests that `make test` runs: a fixed sample.

`make graduate` sets PUZZLES_GRADUATE=1 and takes everything. `SEED` chose the sample once, and
`covering` completes it, so that it has every puzzle and every rule.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pytest

ALL = os.environ.get("PUZZLES_GRADUATE") == "1"
# Older versions of JAX run a part of the sample: every n-th item.
PARTS = 1 if ALL else int(os.environ.get("PUZZLES_SHARE", "1"))
SEED = 59  # it stays: a new line of source moves nothing
T = TypeVar("T")


def drill(test: T) -> T:
    """Mark a test that builds wheels or environments, in minutes: only `make graduate` runs it."""
    why = "it is long: `make graduate` runs it"
    return pytest.mark.graduate(pytest.mark.slow(pytest.mark.skipif(not ALL, reason=why)(test)))


def in_turn(test: T) -> T:
    """Marks a long test: one of four states of the package runs it, and `make graduate` always."""
    its_turn = random.Random(f"{SEED} {test.__name__}").randrange(4) == 0
    return pytest.mark.graduate(pytest.mark.slow(test)) if its_turn else drill(test)


def some(things: Sequence[T], count: int = 1) -> list[T]:
    """`count` neighbours of `things`, fewer if PUZZLES_SHARE is set; all under `make graduate`."""
    count = -(-count // PARTS)
    if ALL or count >= len(things):
        return list(things)
    first = SEED % len(things)
    return [things[(first + n) % len(things)] for n in range(count)]


def share(things: Sequence[T], every: int = 1) -> list[T]:
    """Each `every`-th of `things`, of those each n-th if PUZZLES_SHARE is n; or all."""
    step = 1 if ALL else every * PARTS
    return list(things[SEED % step :: step])


def covering(
    things: Sequence[T], kinds: Callable[[T], Mapping[str, int]], weight: Callable[[T], float]
) -> list[T]:
    """The lightest of `things` that cover each kind often enough; all under `make graduate`.

    kinds: the kinds of an item, each with the number of items that must have it.
    """
    if ALL:
        return list(things)
    seen: Counter[str] = Counter()
    chosen = []
    for n in sorted(range(len(things)), key=lambda n: weight(things[n])):
        wanted = kinds(things[n])
        if any(seen[kind] < count for kind, count in wanted.items()):
            seen.update(wanted.keys())
            chosen.append(n)
    for n in reversed(chosen.copy()):  # the heaviest first: lighter items may suffice
        wanted = kinds(things[n])
        if all(seen[kind] > count for kind, count in wanted.items()):
            seen.subtract(wanted.keys())
            chosen.remove(n)
    return [things[n] for n in sorted(chosen)]
