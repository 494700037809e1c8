"""Are a rung's proofs worth something? Faults of its code and its data that would make them empty.

A fault that a rung may have for a reason has a name, and `waivers={name: reason}` in the Puzzle
says the reason. And whether the reference solution is near to being refused.
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

LIMIT = 0.5  # another JAX, another chip, another key: the rest is theirs
_LENIENT = 10.0  # times the usual tolerance of a dtype

Fault = tuple[str, str]  # its name in `waivers`, and a sentence


def soundness_problems(puzzle: Puzzle) -> Iterator[str]:
    """Every fault that is not waived, and every waiver that waives nothing."""
    for asked in (_unseeded, _circular, _not_interpreted):
        yield from asked(puzzle)
    waivable = (_unaudited, _one_block, _dull, _not_finite, _lenient)
    found = [fault for asked in waivable for fault in asked(puzzle)]
    for name, says in found:
        if name not in puzzle.waivers:
            yield to_author("not_waived", says=says, name=name)
    for name in puzzle.waivers:
        if name not in dict(found):
            yield problem(puzzle.place("waivers="), "idle_waiver", name=name)


def _unseeded(puzzle: Puzzle) -> Iterator[str]:
    """Verdicts must not differ from run to run."""
    for case in cases(puzzle):
        again = Case(puzzle, case.number, case.seed)
        if not _same(case.args, again.args):
            yield problem(puzzle.place("inputs="), "unseeded", case=case.label)
            return


def _same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(callable(x) or np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def _circular(puzzle: Puzzle) -> Iterator[str]:
    """What judges the solution must not name it, nor by way of other functions of its module."""
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
    """Names, attributes and constants: `find("row_sum")` names a function, too."""
    fields = ("id", "attr", "value")
    return {getattr(node, field, None) for node in ast.walk(tree) for field in fields}


def _not_interpreted(puzzle: Puzzle) -> Iterator[str]:
    """README's central promise: the same cells run unchanged on a TPU."""
    for node in ast.walk(ast.parse(puzzle.text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("pallas_call"):
            options = {word.arg: word.value for word in node.keywords}
            value = options.get("interpret")
            fixed = value is None or isinstance(value, ast.Constant)
            if fixed and None not in options:  # None: `**options`
                yield problem(f"{puzzle.file}:{node.lineno}", "not_interpreted")


def _unaudited(puzzle: Puzzle) -> Iterator[Fault]:
    """A check that cannot fail is a bug: a mistake on record must cost too much."""
    if puzzle.audit is None and puzzle.launches is None:
        return  # the production shape judges, and `scale_problems` asks for it
    if puzzle.audit is None or all(m.stage != "work" for m in puzzle.mistakes):
        place = puzzle.place("audit=" if puzzle.audit else "PUZZLE = ")
        yield "work", problem(place, "unaudited")


def _one_block(puzzle: Puzzle) -> Iterator[Fault]:
    """One case has more than one block on every axis, or a wrong index map is right by luck."""
    if not puzzle.kernel:
        return
    if puzzle.axes:
        if max(size for case in cases(puzzle) for size in case.axes.values()) < 3:
            yield "devices", problem(puzzle.place("cases="), "few_devices")
        return
    grids = [[one.grid for one in case.reference.launches] for case in cases(puzzle)]
    if any(all(size > 1 for grid in case for size in grid) for case in grids):
        return
    shown = ", ".join(" and ".join(map(str, case)) for case in grids)
    yield "blocks", problem(puzzle.place("cases="), "one_block", grids=shown)


def _dull(puzzle: Puzzle) -> Iterator[Fault]:
    """Data that would not show a lost sign, or a block taken for another."""
    place = puzzle.place("inputs=")
    drawn = [jax.tree.leaves(case.args) for case in cases(puzzle)]
    for position in range(min(map(len, drawn))):
        arrays = [np.asarray(leaves[position]) for leaves in drawn]
        if any(one.size < 2 or one.dtype == object for one in arrays):
            continue
        if all((one == one.flat[0]).all() for one in arrays):
            yield "constant", problem(place, "constant", position=position)
        elif floating(arrays[0]) and not any((one.astype(np.float64) < 0).any() for one in arrays):
            yield "signed", problem(place, "unsigned", position=position)


def _not_finite(puzzle: Puzzle) -> Iterator[Fault]:
    """NaN equals NaN here: what is not finite hides every mistake, unless the data asks for it."""
    for case in cases(puzzle) if puzzle.accepts is None else ():
        if _finite(case.args) and not _finite(case.expected):
            place = puzzle.place(f"def {puzzle.spec.__name__}(", author=False)
            yield "finite", problem(place, "not_finite", case=case.label)
            return


def _lenient(puzzle: Puzzle) -> Iterator[Fault]:
    """Real faults are as small as a wide tolerance."""
    if puzzle.tolerance is None or puzzle.accepts is not None:
        return
    for leaf in (np.asarray(x) for one in cases(puzzle) for x in jax.tree.leaves(one.expected)):
        given, most = tolerance_of(leaf, puzzle.tolerance), _LENIENT * tolerance_of(leaf, None)
        if floating(leaf) and given > most:
            place = puzzle.place("tolerance=")
            facts = dict(given=given, most=most, dtype=leaf.dtype.name, lenient=_LENIENT)
            yield "tolerance", problem(place, "lenient", **facts)
            return


def _finite(tree: Any) -> bool:
    arrays = map(np.asarray, jax.tree.leaves(tree))
    return all(np.isfinite(x.astype(np.float64)).all() for x in arrays if floating(x))


def margin_problems(puzzle: Puzzle, seeds: Sequence[int]) -> Iterator[str]:
    """That the reference is right by little, where no predicate judges."""
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
