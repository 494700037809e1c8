"""The `values` stage: does a result have the form and the numbers of the spec's?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from puzzles._judge.case import Case, cases, on_tpu
from puzzles._judge.verdict import Rejected
from puzzles._launch import Launch, Operand, faults
from puzzles._puzzle import Mistake

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


def mismatches(case: Case, flat: Sequence[np.ndarray]) -> tuple[int, np.ndarray, Mismatch] | None:
    """The first result that is not the spec's: its position, what was wanted, where it differs."""
    wanted = jax.tree.leaves(case.expected)
    for position, (want, got) in enumerate(zip(wanted, flat, strict=True)):
        wrong = compare(want, got, case.puzzle.tolerance)
        if wrong is not None:
            return position, want, wrong
    return None


def same_form(case: Case, out: Any) -> None:
    """The result's structure, shapes and dtypes are the spec's."""
    puzzle, want = case.puzzle, case.expected
    if out is None:
        raise Rejected(
            "values", f"`{puzzle.name}` returns None: is a `return` missing?", case=case.label
        )
    if jax.tree.structure(out) != jax.tree.structure(want):
        raise Rejected(
            "values",
            f"`{puzzle.name}` returns {_form(out)}; the spec returns {_form(want)}.",
            case=case.label,
        )
    look = " Look at `out_shape`." if puzzle.kernel else ""
    for mine, theirs in zip(jax.tree.leaves(out), jax.tree.leaves(want), strict=True):
        mine = mine if hasattr(mine, "shape") else np.asarray(mine)
        for what in ("shape", "dtype"):
            a, b = getattr(mine, what), getattr(theirs, what)
            if a != b:
                raise Rejected(
                    "values",
                    f"The result has the wrong {what}: expected {b}, got {a}.{look}",
                    case=case.label,
                )


def _form(tree: Any) -> str:
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "one array" if hasattr(tree, "shape") else f"a {type(tree).__name__}"


def same_numbers(case: Case, flat: Sequence[np.ndarray], launches: tuple[Launch, ...] = ()) -> None:
    """The result's numbers are the spec's; says which mistake they fit, or where they are wrong."""
    found = mismatches(case, flat)
    if found is None:
        return
    position, want, wrong = found
    says = (
        f"{wrong.count} of {want.size} elements{of_which(case, position)} are wrong. The "
        f"first is {index_words(wrong.first)}: expected {number_words(wrong.expected)}, "
        f"got {number_words(wrong.got)}."
    )
    step, picture = None, None
    outputs = launches[-1].outputs if launches else ()
    operand = next((o for o in outputs if o.shape == want.shape and len(o.blocks)), None)
    if operand is not None:
        block = tuple(n // (b or 1) for n, b in zip(wrong.first, operand.block, strict=True))
        step = _writer(launches[-1], operand, block)
        if launches[-1].grid:
            says += f" It lies in block {block} of `{operand.name}`, "
            says += f"held last by grid step {step}." if step else "which no grid step holds."
        picture = _block_map(operand, wrong.wrong)
    mistake = diagnosis(case, flat)
    suspects = () if mistake else (f for one in launches for f in faults(one))
    raise Rejected(
        "values",
        says,
        diagnosis=mistake,
        case=case.label,
        step=step,
        picture=picture,
        notes=tuple(f"Look here first: {fault.says}" for fault in list(suspects)[:1]),
    )


def of_which(case: Case, position: int) -> str:
    """' of dq', or ' of result 1', where there are several results; else nothing."""
    if len(jax.tree.leaves(case.expected)) < 2:
        return ""
    names = case.puzzle.results
    return f" of {names[position] if names else f'result {position}'}"


def diagnosis(case: Case, flat: Sequence[np.ndarray]) -> str | None:
    """The mistake on record whose numbers on this case these are, in its own words, or None."""
    if case.fresh:  # every mistake on record is wrong on a listed case, and all of those passed
        return None
    mistakes = (m for m in case.puzzle.mistakes if m.stage == "values")
    mistake = next((m for m in mistakes if _same_values(case, m, flat)), None)
    if mistake is None:
        return None
    what = "kernel" if case.puzzle.kernel else "function"
    return f"Your numbers are those of a {what} that {mistake.name}: {mistake.says}."


def _same_values(case: Case, mistake: Mistake, flat: Sequence[np.ndarray]) -> bool:
    """Whether a mistake gives these numbers here, and the right ones on every case before."""

    def gives(one: Case, numbers: Sequence[np.ndarray]) -> bool:
        theirs = one.mistaken(mistake)
        return theirs is not None and equal(theirs, numbers, case.puzzle.tolerance)

    before = cases(case.puzzle, case.seed)[: case.number]
    return all(gives(one, jax.tree.leaves(one.expected)) for one in before) and gives(case, flat)


def equal(one: Sequence[np.ndarray], other: Sequence[np.ndarray], tolerance: float | None) -> bool:
    """Whether two flat results agree in number, form and values."""
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and compare(a, b, tolerance) is None
        for a, b in zip(one, other, strict=True)
    )


def index_words(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"


def number_words(x: Any) -> str:
    if np.asarray(x).dtype.kind in "biu":
        return str(x)
    return f"{float(x):.6g}"


def _writer(launch: Launch, operand: Operand, block: tuple[int, ...]) -> tuple[int, ...] | None:
    """Program ids of the last step that writes `block`, or None if no step does."""
    steps = np.flatnonzero((operand.blocks == np.asarray(block)).all(axis=1))
    if not len(steps):
        return None
    return tuple(int(n) for n in launch.program_ids[steps[-1]])


def _block_map(operand: Operand, wrong: np.ndarray, limit: int = 32) -> str | None:
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
