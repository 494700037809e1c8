"""Which choice is best? A row for each."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from puzzles._check import say
from puzzles._launch import trace
from puzzles._receipt import step_seconds, times, wait_seconds
from puzzles._tpu import CHIPS

_IN_A_ROW, _ROWS = 10, 5  # calls that are started before the last is waited for, and how often


def sweep(
    fn: Callable, choices: Sequence[Mapping[str, int]], *args: Any, chip: str = "v5e"
) -> None:
    """Print what `fn(*args, **choice)` costs for each choice.

    Its time is measured on a TPU: after a call that compiles, ten calls are started in a row, and
    the last is waited for. Elsewhere it is the receipt's; the last line says which. Shapes will do
    for args.
    """
    measured = jax.default_backend() == "tpu"
    wide = max(5, *(len(name) + 1 for name in choices[0]))
    names = "".join(f"{name:>{wide}}" for name in choices[0])
    say(f"{names} VMEM MiB HBM MiB  steps FLOP/B     µs")  # so narrow that a phone has room for it
    for choice in choices:
        chosen = functools.partial(fn, **choice)
        costs, needed = _costs(chosen, args, chip)
        if measured:
            needed = _measured(chosen, args)
        say("".join(f"{one:{wide}}" for one in choice.values()) + f"{costs}{needed:7.0f}")
    receipt = f"µs on a {chip}, by the receipt (nothing was measured)"
    say("µs measured on this TPU" if measured else receipt)


def _costs(chosen: Callable, args: tuple, chip: str) -> tuple[str, float]:
    """What a choice costs, and the microseconds that it needs by the receipt."""
    launches, its = trace(chosen, *args), CHIPS[chip]
    moved, flops = (sum(getattr(one, n) for one in launches) for n in ("hbm_bytes", "dot_flops"))
    by_itself = step_seconds(launches, its), wait_seconds(launches, its)
    needed = 1e6 * max(*times(moved, flops, its), *by_itself)
    steps = sum(one.steps for one in launches)
    vmem = max((one.vmem_bytes for one in launches), default=0)
    memory = f"{vmem / 2**20:9.2f}{moved / 2**20:8.0f}"
    return f"{memory}{steps:7}{flops / max(1, moved):7.0f}", needed


def _measured(chosen: Callable, args: tuple) -> float:
    """Microseconds of a call, one of ten in a row: the median of five rows."""
    leaves = jax.tree.map(lambda one: jnp.ones(one.shape, one.dtype), args)
    run, taken = jax.jit(chosen), []
    jax.block_until_ready(run(*leaves))  # compiles
    for _ in range(_ROWS):
        start = time.perf_counter()
        jax.block_until_ready([run(*leaves) for _ in range(_IN_A_ROW)][-1])
        taken.append((time.perf_counter() - start) / _IN_A_ROW)
    return 1e6 * statistics.median(taken)
