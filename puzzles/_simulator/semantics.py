"""What a TPU leaves open when it runs a launch, and what is seen of a launch that was run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from puzzles._jax import is_key, key_bits, keys_of
from puzzles._launch import Finding, Launch

EDGE = 3  # steps of an axis at its edges: the first two, and the last


class HazardError(Exception):
    """What must not be done on a TPU: `finding` says what, and where."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.says)
        self.finding = finding
        self.wire: Any = None  # of several devices, their traffic


@dataclass(frozen=True)
class Semantics:
    """What a TPU leaves open, and a run decides.

    late: copies by hand are made when they are waited for, not when they are started. backwards:
    parallel axes run so. unwritten: what memory holds at first, "nan", "zero", or "padding": NaN
    beyond the edges of inputs alone. most: steps after which a launch is cut off. edges: of a
    longer axis the first two steps and the last alone.
    """

    late: bool = True
    backwards: bool = True
    unwritten: str = "nan"
    most: int | None = None
    edges: bool = False


@dataclass(frozen=True)
class Observation:
    """A ref at a grid step: `what` is its contents, or the line that read them.

    begun: of a ref that is read, whether something was stored in it before.
    """

    operand: str | None
    step: tuple[int, ...]
    what: Any
    begun: bool = False


@dataclass
class RunLog:
    """What was seen of a launch while it ran.

    carried: the blocks on their way back to HBM, as numbers to compare. nans: each ref's first NaN
    that a line of the kernel reads. stored: the refs that something was stored in. cut: the step
    in which it was left, None if it ran whole. spent: it had run too many equations.
    """

    launch: Launch
    carried: list[Observation] = field(default_factory=list)
    nans: list[Observation] = field(default_factory=list)
    stored: set[str | None] = field(default_factory=set)
    cut: tuple[int, ...] | None = None
    spent: bool = False


def address(semaphore: np.ndarray) -> int:
    """What tells one semaphore from all others."""
    return semaphore.__array_interface__["data"][0]


def floating(value: np.ndarray) -> bool:
    """Whether it holds floats, narrow ones included."""
    return jnp.issubdtype(value.dtype, jnp.floating)


def comparable(value: np.ndarray) -> int:
    """A number that equal arrays share, NaNs of any kind included."""
    if floating(value):
        value = value.astype(np.float32)
        value = np.where(np.isnan(value), np.float32(np.nan), value)
    return hash((value.shape, value.tobytes()))


def drawn(form: Any, seed: int) -> Any:
    """Made-up data of a shape and dtype: floats around zero, everything else 0."""
    if is_key(form):
        return keys_of(jnp.zeros(key_bits(form).shape, jnp.uint32), form)
    if not jnp.issubdtype(form.dtype, jnp.floating):
        return np.zeros(form.shape, form.dtype)
    return np.random.default_rng(seed).standard_normal(form.shape, np.float32).astype(form.dtype)
