"""The `values` stage: does a result have the form and the numbers of the spec's?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from puzzles import _faults, _values
from puzzles._launch import Launch
from puzzles._puzzle import Puzzle
from puzzles._verdict import Rejected


def same_form(puzzle: Puzzle, out: Any, case: int, label: str, seed: int) -> None:
    """The result's structure, shapes and dtypes are the spec's."""
    want = _values.expected(puzzle, case, seed)
    if out is None:
        raise Rejected(
            "values", f"`{puzzle.name}` returns None: is a `return` missing?", case=label
        )
    if jax.tree.structure(out) != jax.tree.structure(want):
        raise Rejected(
            "values",
            f"`{puzzle.name}` returns {_form(out)}; the spec returns {_form(want)}.",
            case=label,
        )
    look = " Look at `out_shape`." if puzzle.kernel else ""
    for mine, theirs in zip(jax.tree.leaves(out), jax.tree.leaves(want), strict=True):
        mine = mine if hasattr(mine, "shape") else np.asarray(mine)
        for what in ("shape", "dtype"):
            a, b = getattr(mine, what), getattr(theirs, what)
            if a != b:
                shown = {"expected": b, "got": a}
                raise Rejected(
                    "values",
                    f"The result has the wrong {what}: expected {shown['expected']}, "
                    f"got {shown['got']}.{look}",
                    case=label,
                )


def _form(tree: Any) -> str:
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "one array" if hasattr(tree, "shape") else f"a {type(tree).__name__}"


def same_numbers(
    puzzle: Puzzle,
    flat: list[np.ndarray],
    case: int,
    label: str,
    seed: int,
    launches: tuple[Launch, ...] = (),
) -> None:
    """The result's numbers are the spec's; says which mistake they fit, or where they are wrong."""
    wanted = jax.tree.leaves(_values.expected(puzzle, case, seed))
    for position, (want, got) in enumerate(zip(wanted, flat, strict=True)):
        wrong = _values.compare(want, got, puzzle.tolerance)
        if wrong is None:
            continue
        which = f" of {named(puzzle, position)}" if len(wanted) > 1 else ""
        says = (
            f"{wrong.count} of {want.size} elements{which} are wrong. The first is "
            f"{index_words(wrong.first)}: expected {number_words(wrong.expected)}, "
            f"got {number_words(wrong.got)}."
        )
        step, picture = None, None
        operand = next(_outputs_like(launches, want.shape), None)
        if operand is not None:
            block = _values.block_of(operand, wrong.first)
            step = _values.writer(launches[-1], operand, block)
            if launches[-1].grid:
                says += f" It lies in block {block} of `{operand.name}`, "
                says += f"held last by grid step {step}." if step else "which no grid step holds."
            picture = _values.block_map(operand, wrong.wrong)
        diagnosis = _diagnosis(puzzle, flat, case, seed)
        faults = () if diagnosis else (f for one in launches for f in _faults.faults(one))
        raise Rejected(
            "values",
            says,
            diagnosis=diagnosis,
            case=label,
            step=step,
            picture=picture,
            notes=tuple(f"Look here first: {fault.says}" for fault in list(faults)[:1]),
        )


def named(puzzle: Puzzle, position: int) -> str:
    """What the puzzle calls its result at this position."""
    return puzzle.results[position] if puzzle.results else f"result {position}"


def _diagnosis(puzzle: Puzzle, flat: list[np.ndarray], case: int, seed: int) -> str | None:
    mistake = _values.diagnose(puzzle, flat, case, seed)
    if mistake is None:
        return None
    what = "kernel" if puzzle.kernel else "function"
    return f"Your numbers are those of a {what} that {mistake.name}: {mistake.says}."


def index_words(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"


def _outputs_like(launches: tuple[Launch, ...], shape: tuple[int, ...]) -> Iterator[Any]:
    if launches:
        yield from (o for o in launches[-1].outputs if o.shape == shape and len(o.blocks))


def number_words(x: Any) -> str:
    if np.asarray(x).dtype.kind in "biu":
        return str(x)
    return f"{float(x):.6g}"
