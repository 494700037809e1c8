"""Run a trace, run a spec, and compare the two in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from puzzles._jax import jaxpr_as_fun
from puzzles._launch import Launch, Operand
from puzzles._puzzle import Mistake, Puzzle, mutate
from puzzles._simulate import quickly
from puzzles._trace import Traced, as_function, trace_call

# Relative tolerance by the width of the mantissa; a TPU rounds the operands of f32 dots to bf16.
_TOLERANCE = {"float32": 2e-5, "bfloat16": 1e-2, "float16": 2e-3, "float64": 1e-12}
_TPU_TOLERANCE = 2e-2


@dataclass(frozen=True)
class Mismatch:
    """Where two arrays of equal shape differ: `wrong` marks the elements, `first` indexes one."""

    wrong: np.ndarray
    first: tuple[int, ...]
    expected: Any
    got: Any
    count: int


def on_tpu() -> bool:
    """True if JAX's default backend is a TPU."""
    return jax.default_backend() == "tpu"


def execute(traced: Traced) -> list[np.ndarray]:
    """The flat results of a trace: interpreted, except on a TPU, where it runs as written."""
    if on_tpu():
        return [np.asarray(x) for x in jax.jit(jaxpr_as_fun(traced.jaxpr))(*traced.leaves)]
    return quickly(as_function(traced, True), *traced.leaves)


def observed(puzzle: Puzzle, fn: Callable) -> Callable:
    """What is judged of `fn`: itself, or what the puzzle observes of it."""
    return fn if puzzle.observe is None else puzzle.observe(fn)


def plainly(puzzle: Puzzle, fn: Callable, args: tuple) -> Any:
    """What is judged of a function without a kernel, under `jit` where the puzzle asks for it."""
    fn = observed(puzzle, fn)
    if not puzzle.jit:
        return fn(*args)
    traced = trace_call(fn, *args)
    flat = quickly(as_function(traced, True), *traced.leaves)
    return jax.tree.unflatten(jax.tree.structure(traced.out), flat)


@lru_cache(maxsize=512)
def arguments(puzzle: Puzzle, case: int, seed: int) -> tuple:
    """The arguments of a case, drawn once."""
    return puzzle.arguments(case, seed)


@lru_cache(maxsize=512)
def expected(puzzle: Puzzle, case: int, seed: int) -> Any:
    """What the spec gives for a case, as a tree of NumPy arrays, computed once.

    On the CPU also where there is a TPU, with dots at the highest precision.
    """
    args = arguments(puzzle, case, seed)
    spec = observed(puzzle, puzzle.spec)
    if not puzzle.kernel:
        return jax.tree.map(np.asarray, spec(*args))
    with jax.default_matmul_precision("highest"):
        traced = trace_call(spec, *args)
    flat = quickly(as_function(traced, True), *traced.leaves)
    return jax.tree.unflatten(jax.tree.structure(traced.out), flat)


def compare(want: np.ndarray, got: np.ndarray, tolerance: float | None) -> Mismatch | None:
    """The first disagreement of two arrays of one shape, or None.

    `tolerance` is relative, and absolute in units of the root mean square of `want`.
    """
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype.kind in "biu":
        wrong = want != got
    else:
        if tolerance is None:
            tolerance = _TPU_TOLERANCE if on_tpu() else _TOLERANCE.get(want.dtype.name, 1e-2)
        w, g = want.astype(np.float64), got.astype(np.float64)
        finite = w[np.isfinite(w)]
        scale = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
        wrong = ~np.isclose(g, w, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if not wrong.any():
        return None
    first = tuple(int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    return Mismatch(wrong, first, want[first], got[first], int(wrong.sum()))


@lru_cache(maxsize=512)
def mistaken(puzzle: Puzzle, mistake: Mistake, case: int, seed: int) -> tuple | None:
    """The flat results of a wrong solution on a case; None if it raises."""
    try:
        fn = mutate(puzzle, mistake)
        args = arguments(puzzle, case, seed)
        if not puzzle.kernel:
            return tuple(np.asarray(x) for x in jax.tree.leaves(plainly(puzzle, fn, args)))
        return tuple(execute(trace_call(observed(puzzle, fn), *args)))
    except Exception:
        return None


def diagnose(puzzle: Puzzle, got: list[np.ndarray], case: int, seed: int) -> Mistake | None:
    """The first mistake whose numbers on this case are the learner's."""
    for mistake in puzzle.mistakes:
        if mistake.stage != "values":
            continue
        theirs = mistaken(puzzle, mistake, case, seed)
        if theirs is not None and len(theirs) == len(got):
            if all(
                a.shape == b.shape
                and a.dtype == b.dtype
                and compare(a, b, puzzle.tolerance) is None
                for a, b in zip(theirs, got, strict=True)
            ):
                return mistake
    return None


def block_of(operand: Operand, index: tuple[int, ...]) -> tuple[int, ...]:
    """The block index that holds an element."""
    return tuple(n // (b or 1) for n, b in zip(index, operand.block, strict=True))


def writer(launch: Launch, operand: Operand, block: tuple[int, ...]) -> tuple[int, ...] | None:
    """Program ids of the last step that writes `block`, or None if no step does."""
    steps = np.flatnonzero((operand.blocks == np.asarray(block)).all(axis=1))
    if not len(steps):
        return None
    return tuple(int(n) for n in launch.program_ids[steps[-1]])


def block_map(operand: Operand, wrong: np.ndarray, limit: int = 32) -> str | None:
    """Right and wrong output blocks as rows of `.` and `x`; None if there is nothing to draw."""
    counts = [-(-s // (b or 1)) for s, b in zip(operand.shape, operand.block, strict=True)]
    if int(np.prod(counts)) < 2 or len(counts) > 3:
        return None
    bad = wrong
    for axis, size in enumerate(b or 1 for b in operand.block):
        bad = np.logical_or.reduceat(bad, np.arange(0, bad.shape[axis], size), axis=axis)
    planes = bad.reshape((-1, *bad.shape[-2:])) if bad.ndim > 1 else bad.reshape(1, 1, -1)
    rows = []
    for number, plane in enumerate(planes[:4]):
        if len(planes) > 1:
            rows.append(f"[{number}]")
        for row in plane[:limit]:
            marks = ["x" if b else "." for b in row[:limit]] + ["…"] * (len(row) > limit)
            rows.append(" ".join(marks))
        rows += ["…"] * (len(plane) > limit)
    return f"output blocks (. right, x wrong) of {operand.name}:\n" + "\n".join(rows)
