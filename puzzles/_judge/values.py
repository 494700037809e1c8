"""The `values` stage: does a result have the form and the numbers of the spec's?"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from puzzles._judge import rounding
from puzzles._judge.again import Again
from puzzles._judge.case import Case, on_tpu
from puzzles._judge.copied import explains, hazard
from puzzles._judge.diagnosis import diagnosis
from puzzles._judge.exchanged import exchanged
from puzzles._judge.likeness import early, left_undone, likeness, unstored
from puzzles._judge.narrowing import foreign, narrowings
from puzzles._judge.numbers import Mismatch, compare, index_words, number_words, tolerance_of
from puzzles._judge.origin import origin, own_launches
from puzzles._judge.picture import block_map
from puzzles._judge.source import handed_out
from puzzles._judge.verdict import Rejected
from puzzles._launch import Launch, Operand, Traced, faults, first_not_finite
from puzzles._puzzle import Puzzle

_NEAR = 10.0  # times the tolerance
_ROUNDED = 0.05  # relatively: a number and a sum of some, rounded to bf16, are no farther off
_WHOLE = 20  # elements of a vector that is printed whole


def same_form(case: Case, out: Any) -> None:
    """The result's structure, shapes and dtypes are the spec's."""
    puzzle, want = case.puzzle, case.expected
    if out is None:
        raise Rejected(
            "none", f"`{puzzle.name}` returns None: is a `return` missing?", case=case.label
        )
    if jax.tree.structure(out) != jax.tree.structure(want):
        raise Rejected(
            "structure",
            f"`{puzzle.name}` returns {_form(out)}; the spec returns {_form(want)}.",
            case=case.label,
        )
    look = " Look at `out_shape`." if puzzle.kernel else ""
    shapes, wanted = ([np.shape(x) for x in jax.tree.leaves(tree)] for tree in (out, want))
    if shapes != wanted and sorted(shapes) == sorted(wanted):
        order = f"expected {_listed_shapes(wanted)}, got {_listed_shapes(shapes)}"
        says = f"The results come in another order than the spec's: shapes {order}."
        raise Rejected("order", says, case=case.label)
    for mine, theirs in zip(jax.tree.leaves(out), jax.tree.leaves(want), strict=True):
        mine = mine if hasattr(mine, "shape") else np.asarray(mine)
        for what in ("shape", "dtype"):
            a, b = getattr(mine, what), getattr(theirs, what)
            if a != b:
                raise Rejected(
                    what,
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
    case: Case,
    flat: Sequence[np.ndarray],
    again: Again,
    traced: Traced | None = None,
    program: Callable[[], Traced] | None = None,
) -> None:
    """The result's numbers are the spec's; says which mistake they fit, or where they are wrong.

    traced: the launches that gave them; program: where there are none, the function's trace.
    """
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
    own = own_launches(case, traced) if traced is not None else ()
    fault = _first_fault(own)
    named = diagnosis(case, flat, again, traced, None if fault is None else fault[0])
    launches = own if place is None else tuple(one for one in own if one is place.launch)
    look = None if fault is None else fault[1]
    if look is None and math.isnan(float(wrong.got)):
        look = _first_of(early, launches, case) or _first_of(unstored, launches, case)
    if named is None:
        tolerance = tolerance_of(want, case.puzzle.tolerance)
        if look is None and math.isfinite(wrong.expected) and not math.isfinite(wrong.got):
            if again.in_time():
                look = _not_finite(case, traced or (program() if program is not None else None))
        if look is None:
            look = _first_of(left_undone, launches, case) or hazard(launches)
        if look is None and traced is not None and wrong.excess * tolerance < _ROUNDED:
            rounds = foreign(narrowings(traced), narrowings(case.reference))
            look = rounds[0].words if rounds else None
        if look is None and traced is not None and not on_tpu():
            look = exchanged(
                traced,
                case.reference,
                lambda flat: mismatches(case, flat) is None,
                _written_kernel(case.puzzle),
                again.in_time,
            )
        whole = None if place is None or place.marks is not wrong.wrong else place.operand
        same = 2 * tolerance
        names = inspect.signature(case.puzzle.spec).parameters
        given = dict(zip(names, case.args, strict=False))
        like = likeness(want, flat[position], wrong.wrong, given, whole, same)
        says += _close(wrong) or (f" {like}" if like else "")
    if traced is None and want.ndim == 1 and want.size <= _WHOLE:
        says += f"\nexpected {_listed(want)}\ngot      {_listed(flat[position])}"
    raise Rejected(
        "numbers",
        says,
        diagnosis=named,
        case=case.label,
        step=step,
        picture=picture,
        first=None if look is None else f"Look here first: {look}",
    )


def _not_finite(case: Case, traced: Traced | None) -> str | None:
    """The learner's line that makes the first number that is not finite, if that can be found."""
    if traced is None or on_tpu():
        return None
    try:
        found = first_not_finite(traced)
    except Exception:  # it ran once, without being watched: then nothing more is known
        return None
    return None if found and found.split("`")[1] in handed_out(case.puzzle) else found


def mismatches(case: Case, flat: Sequence[np.ndarray]) -> tuple[int, np.ndarray, Mismatch] | None:
    """The first result that is not the spec's: its position, what was wanted, where it differs."""
    wanted = jax.tree.leaves(case.expected)
    for position, (want, got) in enumerate(zip(wanted, flat, strict=True)):
        wrong = compare(want, got, case.puzzle.tolerance)
        if wrong is not None:
            return position, want, wrong
    return None


def of_which(case: Case, position: int) -> str:
    """' of dq', or ' of result 1', where there are several results; else nothing."""
    if len(jax.tree.leaves(case.expected)) < 2:
        return ""
    names = case.puzzle.results
    return f" of {names[position] if names else f'result {position}'}"


def rounded_once(case: Case, flat: Sequence[np.ndarray], again: Again) -> None:
    """The right numbers are not rounded more often than the puzzle allows."""
    if says := rounding.roundings(case, flat):
        raise Rejected(
            "rounded-twice", says, diagnosis=diagnosis(case, flat, again), case=case.label
        )


def _written_kernel(puzzle: Puzzle) -> str | None:
    """The kernel's name, where the learner writes both it and its launch."""
    kernel = f"{puzzle.name}_kernel"
    return kernel if {puzzle.name, kernel} <= set(puzzle.blanks) else None


def _first_of(
    fact: Callable[[Launch, Sequence[Launch]], str | None], launches: Sequence[Launch], case: Case
) -> str | None:
    """The first launch's words about a fact, where there is one that is not the reference's."""
    return next(filter(None, (fact(one, case.reference.launches) for one in launches)), None)


def _first_fault(launches: Sequence[Launch]) -> tuple[str, str] | None:
    """Kind and words of a fault that may explain wrong numbers, however the kernel computes."""
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


def _writer(launch: Launch, operand: Operand, block: tuple[int, ...]) -> tuple[int, ...] | None:
    """Program ids of the last step that writes `block`, or None if no step does."""
    steps = np.flatnonzero((operand.blocks == np.asarray(block)).all(axis=1))
    if not len(steps):
        return None
    return launch.at(steps[-1])
