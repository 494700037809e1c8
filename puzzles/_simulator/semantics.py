"""The choices that a TPU leaves open when it runs a launch, and the log of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._equations import is_key, key_bits, keys_of
from puzzles._launch import Finding, Launch

EDGE = 3  # steps of an axis at its edges: the first two, and the last


class HazardError(Exception):
    """The kernel does something that a TPU must not do; `finding` has the fault and its place."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.says)
        self.finding = finding
        self.wire: Any = None  # the traffic between several devices


@dataclass(frozen=True)
class Semantics:
    """The choices of one run among those that a TPU leaves open.

    late: a copy by hand lands at its wait, not at its start. backwards: parallel axes run in
    reverse. unwritten: the first contents of memory: "nan"; "zero"; "one"; "garbage", NaN and
    integers whose sum is never zero; "padding", garbage beyond the edges of inputs only. only: the
    number of the launch that `unwritten` is about, the others find zeros; None for all. most: steps
    after which a launch is cut off; None for no limit. edges: run only the first two steps and the
    last step of each axis.
    """

    late: bool = True
    backwards: bool = True
    unwritten: str = "nan"
    only: int | None = None
    most: int | None = None
    edges: bool = False


@dataclass(frozen=True)
class Observation:
    """A ref at a grid step: `what` is a hash of its contents, or the line that read them.

    begun: True if the kernel had stored something in the ref that is read. array: a whole output
    that has no blocks, at the end.
    """

    operand: str | None
    step: tuple[int, ...]
    what: Any
    begun: bool = False
    array: np.ndarray | None = field(default=None, compare=False)


@dataclass
class RunLog:
    """The log of one run of a launch.

    carried: hashes of the blocks written back to HBM. nans: the first NaN that the kernel reads
    from each ref. stored: the refs that the kernel stored in. cut: the step at which the run was
    cut off, None if it was whole. spent: True if it was cut off after too many equations.
    """

    launch: Launch
    carried: list[Observation] = field(default_factory=list)
    nans: list[Observation] = field(default_factory=list)
    stored: set[str | None] = field(default_factory=set)
    cut: tuple[int, ...] | None = None
    spent: bool = False


@dataclass
class ProgramRun:
    """The flat results of a program, and the logs of its launches.

    The launches after a launch that was cut off run on sampled results of it.
    """

    results: list[np.ndarray] = field(default_factory=list)
    trails: list[RunLog] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        """True if a launch ended before its last step."""
        return any(trail.cut is not None for trail in self.trails)


def address(semaphore: np.ndarray) -> int:
    """A key that is unique to this semaphore."""
    return semaphore.__array_interface__["data"][0]


def floating(value: np.ndarray) -> bool:
    """Return True for an array of floats, narrow floats included."""
    return jnp.issubdtype(value.dtype, jnp.floating)


def comparable(value: np.ndarray) -> int:
    """Return a hash of the array; all NaNs hash alike."""
    if floating(value):
        value = value.astype(np.float32)
        value = np.where(np.isnan(value), np.float32(np.nan), value)
    return hash((value.shape, value.tobytes()))


def drawn(form: Any, seed: int) -> Any:
    """Sampled data of a shape and dtype: floats around zero; 0 for other dtypes."""
    if is_key(form):
        return keys_of(jnp.zeros(key_bits(form).shape, jnp.uint32), form)
    if not jnp.issubdtype(form.dtype, jnp.floating):
        return np.zeros(form.shape, form.dtype)
    return np.random.default_rng(seed).standard_normal(form.shape, np.float32).astype(form.dtype)


def drawn_leaves(leaves: Sequence[Any], seed: int = 0) -> tuple[Any, ...]:
    """Return arguments with data; sample data for those that are only shapes."""
    return tuple(
        drawn(x, seed + n) if isinstance(x, jax.ShapeDtypeStruct) else x
        for n, x in enumerate(leaves)
    )
