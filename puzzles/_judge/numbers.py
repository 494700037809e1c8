"""The `values` stage: does a result have the form and the numbers of the spec's?"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from puzzles._judge import rounding
from puzzles._judge.case import Case, cases, on_tpu
from puzzles._judge.copied import explains, hazard
from puzzles._judge.likeness import early, left_undone, likeness
from puzzles._judge.limits import as_imported
from puzzles._judge.origin import origin
from puzzles._judge.picture import block_map
from puzzles._judge.verdict import Rejected
from puzzles._launch import Launch, Operand, Traced, faults, fingerprint
from puzzles._puzzle import Mistake, Puzzle, Tolerance

# Relative tolerance by the width of the mantissa; a TPU rounds the operands of f32 dots to bf16.
_TOLERANCE = {"float32": 2e-5, "bfloat16": 1e-2, "float16": 2e-3, "float64": 1e-12}
_TPU_TOLERANCE = 2e-2
_NEAR = 10.0  # times the tolerance
_FEW = 1000  # elements that are compared before all are
_WHOLE = 20  # elements of a vector that is printed whole
# The flat results on another case of the function that is judged; None where it raises there.
Again = Callable[[Case], Sequence[np.ndarray] | None]


@dataclass(frozen=True)
class Mismatch:
    """Where two arrays of equal shape differ: `wrong` marks the elements, `first` indexes one.

    excess: the largest error, in units of what is allowed there.
    """

    wrong: np.ndarray
    first: tuple[int, ...]
    expected: Any
    got: Any
    count: int
    excess: float = np.inf


@as_imported()
def compare(want: np.ndarray, got: np.ndarray, tolerance: Tolerance) -> Mismatch | None:
    """The first disagreement of two arrays of one shape, or None.

    `tolerance` is relative, and absolute in units of the root mean square of `want`.
    """
    want, got = np.asarray(want), np.asarray(got)
    size = _size(want)
    wrong = _wrong(want, got, tolerance, size)
    if not wrong.any():
        return None
    excess = np.inf
    if want.dtype.kind not in "biu":
        w, g = (x[wrong].astype(np.float64) for x in (want, got))
        with np.errstate(all="ignore"):
            ratios = np.abs(g - w) / (tolerance_of(want, tolerance) * (np.abs(w) + size))
        excess = float(np.max(np.where(np.isnan(ratios), np.inf, ratios)))
    first = tuple(int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    return Mismatch(wrong, first, want[first], got[first], int(wrong.sum()), excess)


def _size(want: np.ndarray) -> float:
    """The root mean square of what is finite in `want`."""
    if want.dtype.kind in "biu":
        return 0.0
    w = want.astype(np.float64)
    finite = w[np.isfinite(w)]
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0


def _wrong(want: np.ndarray, got: np.ndarray, tolerance: Tolerance, size: float) -> np.ndarray:
    """Which elements are not `want`'s; `size` is what the absolute tolerance is a part of."""
    if want.dtype.kind in "biu":
        return want != got
    allowed = tolerance_of(want, tolerance)
    w, g = want.astype(np.float64), got.astype(np.float64)
    return ~np.isclose(g, w, rtol=allowed, atol=allowed * size, equal_nan=True)


def tolerance_of(want: np.ndarray, tolerance: Tolerance) -> float:
    """The tolerance that numbers like `want` are held to: the puzzle's, or their dtype's."""
    given = tolerance.get(want.dtype.name) if isinstance(tolerance, Mapping) else tolerance
    usual = _TOLERANCE.get(want.dtype.name, 1e-2) if given is None else given
    return max(usual, _TPU_TOLERANCE) if on_tpu() else usual


def largest_error(
    want: np.ndarray, got: np.ndarray, tolerance: Tolerance, neighbours: bool = False
) -> float:
    """The largest error of two arrays of one shape in units of the tolerance; 1 is the limit.

    neighbours: forgives a last digit of the dtype, which one number rounded twice may differ by.
    """
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype.kind in "biu":
        return 0.0 if (want == got).all() else math.inf
    w, g = want.astype(np.float64), got.astype(np.float64)
    known = np.isfinite(w)
    if not (np.isfinite(g) == known).all() or not known.any():
        return 0.0 if np.array_equal(w, g, equal_nan=True) else math.inf
    digit = np.abs(np.spacing(want[known])).astype(np.float64)
    w, g = w[known], g[known]
    off = np.maximum(np.abs(g - w) - neighbours * digit, 0)
    allowed = tolerance_of(want, tolerance) * (_size(want) + np.abs(w))
    if ((allowed == 0) & (off > 0)).any():
        return math.inf
    return float((off / np.where(allowed == 0, 1, allowed)).max())


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
    shapes, wanted = ([np.shape(x) for x in jax.tree.leaves(tree)] for tree in (out, want))
    if shapes != wanted and sorted(shapes) == sorted(wanted):
        order = f"expected {_listed_shapes(wanted)}, got {_listed_shapes(shapes)}"
        says = f"The results come in another order than the spec's: shapes {order}."
        raise Rejected("values", says, case=case.label)
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


def _listed_shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))


def _form(tree: Any) -> str:
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "one array" if hasattr(tree, "shape") else f"a {type(tree).__name__}"


def same_numbers(
    case: Case, flat: Sequence[np.ndarray], again: Again, traced: Traced | None = None
) -> None:
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
    place = origin(traced, position, wrong.wrong) if traced is not None else None
    if place is not None:
        launch, operand = place.launch, place.operand
        corner = np.unravel_index(int(np.argmax(place.marks)), operand.shape)
        block = tuple(int(n) // (b or 1) for n, b in zip(corner, operand.block, strict=True))
        step = _writer(launch, operand, block)
        if launch.grid:
            says += f" It lies in block {block} of `{operand.name}`, "
            says += f"held last by grid step {step}." if step else "which no grid step holds."
        picture = block_map(operand, place.marks)
    fault = _first_fault(traced)
    named = diagnosis(case, flat, again, traced, None if fault is None else fault[0])
    launches = (place.launch,) if place is not None else traced.launches if traced else ()
    look = None if fault is None else fault[1]
    if look is None and math.isnan(float(wrong.got)):
        look = _first_of(early, launches, case)
    if named is None:
        if look is None:
            look = _first_of(left_undone, launches, case) or hazard(launches)
        whole = None if place is None or place.marks is not wrong.wrong else place.operand
        same = 2 * tolerance_of(want, case.puzzle.tolerance)
        names = inspect.signature(case.puzzle.spec).parameters
        given = dict(zip(names, case.args, strict=False))
        like = likeness(want, flat[position], wrong.wrong, given, whole, same)
        says += _close(wrong) or (f" {like}" if like else "")
    if traced is None and want.ndim == 1 and want.size <= _WHOLE:
        says += f"\nexpected {_listed(want)}\ngot      {_listed(flat[position])}"
    raise Rejected(
        "values",
        says,
        diagnosis=named,
        case=case.label,
        step=step,
        picture=picture,
        first=None if look is None else f"Look here first: {look}",
    )


def _first_of(
    fact: Callable[[Launch, Sequence[Launch]], str | None], launches: Sequence[Launch], case: Case
) -> str | None:
    """The first launch's words about a fact, where there is one that is not the reference's."""
    return next(filter(None, (fact(one, case.usual) for one in launches)), None)


def _first_fault(traced: Traced | None) -> tuple[str, str] | None:
    """Kind and words of a fault that may explain wrong numbers, however the kernel computes."""
    launches = traced.launches if traced is not None else ()
    found = (f for one in launches for f in faults(one) if f.kind != "misaligned")
    return next(((f.kind, f.words) for f in found), None) or explains(launches)


def _close(wrong: Mismatch) -> str:
    if wrong.excess > _NEAR:
        return ""
    return (
        f" You are close: the largest error is {wrong.excess:.1f} times what is allowed, so look "
        "for precision (a dtype, a rounding, the order of a sum), or a formula that is nearly the "
        "spec's, before you look at indices."
    )


def _listed(values: np.ndarray) -> str:
    return f"[{', '.join(map(number_words, values))}]"


def rounded_once(case: Case, flat: Sequence[np.ndarray], again: Again) -> None:
    """The right numbers are not rounded more often than the puzzle allows."""
    if says := rounding.roundings(case, flat):
        raise Rejected("values", says, diagnosis=diagnosis(case, flat, again), case=case.label)


def of_which(case: Case, position: int) -> str:
    """' of dq', or ' of result 1', where there are several results; else nothing."""
    if len(jax.tree.leaves(case.expected)) < 2:
        return ""
    names = case.puzzle.results
    return f" of {names[position] if names else f'result {position}'}"


def diagnosis(
    case: Case,
    flat: Sequence[np.ndarray],
    again: Again,
    traced: Traced | None = None,
    fault: str | None = None,
) -> str | None:
    """The mistake on record whose numbers on this case these are, in its own words, or None.

    On the cases before it, and on the next, it has to give what the judged function gives there.
    traced: the judged function on the case, where it has a kernel; a mistake that is the same
    program needs no more cases. fault: a kind that explains the numbers by itself, so that the
    mistake must have it, too.
    """
    if case.fresh:  # every mistake on record is wrong on a listed case, and all of those passed
        return None
    mistakes = (
        m
        for m in case.puzzle.mistakes
        if m.stage == "values" and (fault is None or fault in case.faults_of(m))
    )
    program = None if traced is None else fingerprint(traced.jaxpr)
    mistake = next((m for m in mistakes if _same_values(case, m, flat, again, program)), None)
    if mistake is None:
        return None
    what = "kernel" if case.puzzle.kernel else "function"
    if _only_nan(case, flat):
        example = f"as for example in a {what} that {mistake.name}: {mistake.says}."
        return f"All that is wrong is NaN, {example}"
    return f"Your numbers are those of a {what} that {mistake.name}: {mistake.says}."


def _only_nan(case: Case, flat: Sequence[np.ndarray]) -> bool:
    """Whether every wrong number is NaN, which tells little: many causes have the same."""
    wanted = jax.tree.leaves(case.expected)
    found = [
        (got, compare(want, got, case.puzzle.tolerance))
        for want, got in zip(wanted, flat, strict=True)
    ]
    wrong = [got[one.wrong] for got, one in found if one is not None]
    return bool(wrong) and all(np.isnan(x.astype(np.float32)).all() for x in wrong)


def _same_values(
    case: Case,
    mistake: Mistake,
    flat: Sequence[np.ndarray],
    again: Again,
    program: Hashable | None,
) -> bool:
    """Whether a mistake gives these numbers here, the right ones before, and the same on the next.

    One case alone may not tell: whatever reads a huge number that it should not, gives that.
    """

    def gives(one: Case, numbers: Sequence[np.ndarray] | None) -> bool:
        theirs = one.mistaken(mistake)
        if theirs is None or numbers is None:
            return theirs is numbers
        return alike(case.puzzle, theirs, numbers)

    listed = cases(case.puzzle, case.seed)
    return (
        all(gives(one, jax.tree.leaves(one.expected)) for one in listed[: case.number])
        and gives(case, flat)
        and (
            (program is not None and program == case.program_of(mistake))
            or all(gives(one, again(one)) for one in listed[case.number + 1 : case.number + 2])
        )
    )


def equal(one: Sequence[np.ndarray], other: Sequence[np.ndarray], tolerance: Tolerance) -> bool:
    """Whether two flat results agree in number, form and values."""
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and _agree(a, b, tolerance)
        for a, b in zip(one, other, strict=True)
    )


@as_imported()
def _agree(want: np.ndarray, got: np.ndarray, tolerance: Tolerance) -> bool:
    """Whether no element is wrong; what differs everywhere, a few elements tell."""
    size, few = _size(want), slice(None, None, max(1, want.size // _FEW))
    return not any(
        _wrong(a, b, tolerance, size).any()
        for a, b in ((want.ravel()[few], got.ravel()[few]), (want, got))
    )


def alike(puzzle: Puzzle, one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Whether a puzzle tells two flat results apart, by their numbers or by their roundings."""
    return equal(one, other, puzzle.tolerance) and all(
        rounding.rounded_alike(puzzle, a, b) for a, b in zip(one, other, strict=True)
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
