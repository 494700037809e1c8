"""Faults of a puzzle's code and data that would make its proofs worthless.

A fault that a puzzle may have for a reason has a name; give the reason as `waivers={name: reason}`
in the Puzzle. `margin_problems` reports a reference solution that nearly fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from puzzles import _regions
from puzzles._author.report import problem
from puzzles._judge import Case, cases, execute, largest_error, tolerance_of
from puzzles._puzzle import Puzzle
from puzzles._rules import to_author
from puzzles._simulator import floating

LIMIT = 0.5  # of the tolerance; leaves a margin for another JAX, chip or key
_LENIENT = 10.0  # at most so many times the default tolerance of a dtype

Fault = tuple[str, str]  # its name in `waivers`, and a sentence


def soundness_problems(puzzle: Puzzle) -> Iterator[str]:
    """Yield every fault that is not waived, and every waiver without a fault."""
    for question in (_unseeded, _circular, _not_interpreted):
        yield from question(puzzle)
    waivable = (_unaudited, _one_block, _dull, _not_finite, _lenient)
    shortcomings = [fault for question in waivable for fault in question(puzzle)]
    for name, says in shortcomings:
        if name not in puzzle.waivers:
            yield to_author("not_waived", says=says, name=name)
    for name in puzzle.waivers:
        if name not in dict(shortcomings):
            yield problem(puzzle.place("waivers="), "idle_waiver", name=name)


def _unseeded(puzzle: Puzzle) -> Iterator[str]:
    """Inputs that differ between runs: verdicts must be reproducible."""
    for case in cases(puzzle):
        again = Case(puzzle, case.number, case.seed)
        if not _same(case.args, again.args):
            yield problem(puzzle.place("inputs="), "unseeded", case=case.label)
            return


def _same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(callable(x) or np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def _circular(puzzle: Puzzle) -> Iterator[str]:
    """A spec that uses the solution, directly or through other functions of the module."""
    judge = puzzle.accepts or puzzle.spec
    functions = _regions.functions(puzzle.path.read_text(encoding="utf-8"))
    reached: set[Any] = set()
    waiting = {judge.__name__}
    while waiting:
        reached |= waiting
        trees = [functions[name] for name in waiting if name in functions]
        waiting = {name for tree in trees for name in _names(tree)} - reached
    place = puzzle.place(f"def {judge.__name__}(", author=judge is not puzzle.spec)
    if name := min({*puzzle.blanks, puzzle.name} & reached, default=None):
        yield problem(place, "circular", judge=judge.__name__, name=name)
    elif "pallas_call" in reached:
        yield problem(place, "spec_launches")


def _names(tree: ast.AST) -> set[Any]:
    """Names, attributes and constants: a string such as "row_sum" may name a function."""
    fields = ("id", "attr", "value")
    return {getattr(node, field, None) for node in ast.walk(tree) for field in fields}


def _not_interpreted(puzzle: Puzzle) -> Iterator[str]:
    """Launches without `interpret=INTERPRET`, which the promise of the README needs."""
    for node in ast.walk(ast.parse(puzzle.text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("pallas_call"):
            options = {word.arg: word.value for word in node.keywords}
            value = options.get("interpret")
            fixed = value is None or isinstance(value, ast.Constant)
            if fixed and None not in options:  # None: `**options`
                yield problem(f"{puzzle.file}:{node.lineno}", "not_interpreted")


def _unaudited(puzzle: Puzzle) -> Iterator[Fault]:
    """An audit that no known mistake fails: a check that cannot fail is a bug."""
    if puzzle.audit is None and puzzle.launches is None:
        return  # costs are compared at the production shape, which is required
    if puzzle.audit is None or all(m.stage != "work" for m in puzzle.mistakes):
        place = puzzle.place("audit=" if puzzle.audit else "PUZZLE = ")
        yield "work", problem(place, "unaudited")


def _one_block(puzzle: Puzzle) -> Iterator[Fault]:
    """No case with several blocks on every axis: a wrong index map would be right by luck."""
    if not puzzle.kernel:
        return
    if puzzle.axes:
        if max(size for case in cases(puzzle) for size in case.axes.values()) < 3:
            yield "devices", problem(puzzle.place("cases="), "few_devices")
        return
    grids = [[launch.grid for launch in case.reference.launches] for case in cases(puzzle)]
    if any(all(size > 1 for grid in case for size in grid) for case in grids):
        return
    shown = ", ".join(" and ".join(map(str, case)) for case in grids)
    yield "blocks", problem(puzzle.place("cases="), "one_block", grids=shown)


def _dull(puzzle: Puzzle) -> Iterator[Fault]:
    """Data that hide a lost sign or a wrong block: constant, or never negative."""
    place = puzzle.place("inputs=")
    drawn = [jax.tree.leaves(case.args) for case in cases(puzzle)]
    for position in range(min(map(len, drawn))):
        arrays = [np.asarray(leaves[position]) for leaves in drawn]
        if any(array.size < 2 or array.dtype == object for array in arrays):
            continue
        if all((array == array.flat[0]).all() for array in arrays):
            yield "constant", problem(place, "constant", position=position)
        elif floating(arrays[0]) and all((a.astype(np.float64) >= 0).all() for a in arrays):
            yield "signed", problem(place, "unsigned", position=position)


def _not_finite(puzzle: Puzzle) -> Iterator[Fault]:
    """Results that are not finite, for finite data: NaN equals NaN, so they hide mistakes."""
    for case in cases(puzzle) if puzzle.accepts is None else ():
        if _finite(case.args) and not _finite(case.expected):
            place = puzzle.place(f"def {puzzle.spec.__name__}(", author=False)
            yield "finite", problem(place, "not_finite", case=case.label)
            return


def _lenient(puzzle: Puzzle) -> Iterator[Fault]:
    """A tolerance so wide that real faults pass."""
    if puzzle.tolerance is None or puzzle.accepts is not None:
        return
    for leaf in (np.asarray(x) for case in cases(puzzle) for x in jax.tree.leaves(case.expected)):
        own, most = tolerance_of(leaf, puzzle.tolerance), _LENIENT * tolerance_of(leaf, None)
        if floating(leaf) and own > most:
            place = puzzle.place("tolerance=")
            facts = dict(given=own, most=most, dtype=leaf.dtype.name, lenient=_LENIENT)
            yield "tolerance", problem(place, "lenient", **facts)
            return


def _finite(tree: Any) -> bool:
    arrays = map(np.asarray, jax.tree.leaves(tree))
    return all(np.isfinite(x.astype(np.float64)).all() for x in arrays if floating(x))


def margin_problems(puzzle: Puzzle, seeds: Sequence[int]) -> Iterator[str]:
    """Yield a problem if the reference passes only by a small margin; not with `accepts`."""
    if puzzle.accepts is not None:
        return
    for case in (case for seed in seeds for case in cases(puzzle, seed)):
        for leaf, got in zip(jax.tree.leaves(case.expected), _results(case), strict=True):
            want = np.asarray(leaf)
            error = largest_error(want, got, puzzle.tolerance)
            if error >= LIMIT:
                place = puzzle.place("tolerance=" if puzzle.tolerance else "PUZZLE = ")
                allowed = tolerance_of(want, puzzle.tolerance)
                facts = dict(error=error, tolerance=allowed, case=case.label, seed=case.seed)
                yield problem(place, "passes_by_little", **facts)
                return


def _results(case: Case) -> list[np.ndarray]:
    if case.puzzle.kernel:
        return execute(case.reference)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(case.plainly(case.puzzle.solution))]
