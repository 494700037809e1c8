"""Are a rung's proofs worth something? Faults of its code and its data that would make them empty.

A fault that a rung may have for a reason has a name, and `waivers={name: reason}` in the Puzzle
says the reason. And how near the reference solution is to being refused: its margin.
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import CodeType
from typing import Any

import jax
import numpy as np

from puzzles._author.report import problem
from puzzles._judge import Case, cases, execute, largest_error, tolerance_of
from puzzles._launch import kernel_calls, trace_call
from puzzles._puzzle import Puzzle
from puzzles._rules import to_author

# What a rung may do without, if it says why: a mistake of stage 'work'; several blocks on an axis;
# finite results, data that vary, signs; a tolerance near its dtype's.
WAIVERS = ("work", "blocks", "finite", "constant", "signed", "tolerance")
LIMIT = 0.5  # another JAX, another chip, another key: the rest is theirs
_LENIENT = 10.0  # times the usual tolerance of a dtype

Fault = tuple[str, str]  # its name in `waivers`, "" where it has none, and a sentence


def soundness_problems(puzzle: Puzzle) -> Iterator[str]:
    """Every fault that is not waived, and every waiver that waives nothing."""
    found = list(_faults(puzzle))
    for name, says in found:
        if not name:
            yield says
        elif name not in puzzle.waivers:
            yield to_author("not waived", says=says, name=name)
    place = puzzle.place("waivers=")
    for name, reason in puzzle.waivers.items():
        if name not in WAIVERS:
            yield problem(place, "no such waiver", name=name, names=", ".join(WAIVERS))
        elif name not in dict(found):
            yield problem(place, "idle waiver", name=name)
        elif len(reason.split()) < 4:
            yield problem(place, "waiver without reason", name=name)


def _faults(puzzle: Puzzle) -> Iterator[Fault]:
    """Each as a sentence with its place and remedy."""
    for asked in (_unseeded, _circular, _not_interpreted):
        yield from (("", says) for says in asked(puzzle))
    for fault in (_unaudited, _one_block, _dull, _not_finite, _lenient):
        yield from fault(puzzle)


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
    """What judges the solution must not be made of it."""
    case = cases(puzzle)[0]
    judge, args = puzzle.spec, case.args
    if puzzle.accepts is not None:
        judge, args = puzzle.accepts, (case.plainly(puzzle.solution), *case.args)
    place = puzzle.place(f"def {judge.__name__}(", author=judge is not puzzle.spec)
    called, launches = _called(puzzle, judge, args)
    if name := min({*puzzle.blanks, puzzle.name} & called, default=None):
        yield problem(place, "circular", judge=judge.__name__, name=name)
    elif launches:
        yield problem(place, "spec launches")


def _called(puzzle: Puzzle, judge: Callable, args: tuple) -> tuple[set[str], bool]:
    """Names of the module's functions that `judge` calls, directly or through others; and whether
    it launches a kernel.
    """
    called: set[CodeType] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, value: called.add(frame.f_code))
    try:
        if puzzle.kernel:  # a function that was not traced before, so that all of it is called
            traced = trace_call(lambda *args: judge(*args), *args)
        else:
            judge(*args)
    finally:
        sys.setprofile(before)
    names = {code.co_name for code in called if code.co_filename == str(puzzle.path)}
    return names, puzzle.kernel and next(kernel_calls(traced.jaxpr.jaxpr), None) is not None


def _not_interpreted(puzzle: Puzzle) -> Iterator[str]:
    """README's central promise: the same cells run unchanged on a TPU."""
    for node in ast.walk(ast.parse(puzzle.text)):
        if not isinstance(node, ast.Call):
            continue
        launch = ast.unparse(node.func).rpartition(".")[2] == "pallas_call"
        options = {word.arg: word.value for word in node.keywords}
        if isinstance(value := options.get("interpret"), ast.Constant):
            at = f"{puzzle.file}:{value.lineno}"
            yield problem(at, "interpret fixed", value=ast.unparse(value))
        elif launch and not {"interpret", None} & options.keys():  # None: `**options`
            yield problem(f"{puzzle.file}:{node.lineno}", "interpret missing")


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
    grids = [[one.grid for one in case.reference.launches] for case in cases(puzzle)]
    if any(all(size > 1 for grid in case for size in grid) for case in grids):
        return
    shown = ", ".join(" and ".join(map(str, case)) for case in grids)
    yield "blocks", problem(puzzle.place("cases="), "one block", grids=shown)


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
        elif _floats(arrays[0]) and not any((one.astype(np.float64) < 0).any() for one in arrays):
            yield "signed", problem(place, "unsigned", position=position)


def _not_finite(puzzle: Puzzle) -> Iterator[Fault]:
    """NaN equals NaN here: what is not finite hides every mistake, unless the data asks for it."""
    if puzzle.accepts is not None:
        return
    for case in cases(puzzle):
        share = min(map(_finite, jax.tree.leaves(case.expected)), default=1.0)
        needed = 0.5 if min(map(_finite, jax.tree.leaves(case.args)), default=1.0) < 1 else 1.0
        if share < needed:
            place = puzzle.place(f"def {puzzle.spec.__name__}(", author=False)
            shown = math.floor(100 * (1 - share)) or "some"
            yield "finite", problem(place, "not finite", share=shown, case=case.label)
            return


def _lenient(puzzle: Puzzle) -> Iterator[Fault]:
    """Real faults are as small as a wide tolerance."""
    if puzzle.tolerance is None or puzzle.accepts is not None:
        return
    for leaf in (np.asarray(x) for one in cases(puzzle) for x in jax.tree.leaves(one.expected)):
        given, most = tolerance_of(leaf, puzzle.tolerance), _LENIENT * tolerance_of(leaf, None)
        if _floats(leaf) and given > most:
            place = puzzle.place("tolerance=")
            facts = dict(given=given, most=most, dtype=leaf.dtype.name, lenient=_LENIENT)
            yield "tolerance", problem(place, "lenient", **facts)
            return


def _finite(leaf: Any) -> float:
    """The share of finite numbers in a leaf; 1 for what holds no floats."""
    array = np.asarray(leaf)
    if not array.size or not _floats(array):
        return 1.0
    return float(np.isfinite(array.astype(np.float64)).mean())


def _floats(array: np.ndarray) -> bool:
    """Whether an array's numbers are floats, bf16 among them."""
    return jax.dtypes.issubdtype(array.dtype, np.floating)


@dataclass(frozen=True)
class Margin:
    """The solution's largest error over cases and keys; 1 is the tolerance, 0 where it is exact."""

    error: float
    tolerance: float
    case: str
    seed: int

    def __str__(self) -> str:
        return "exact" if self.error == 0 else f"{self.error:.2g}"


def margin(puzzle: Puzzle, seeds: Sequence[int]) -> Margin | None:
    """The largest error of the reference solution; None where a predicate judges."""
    if puzzle.accepts is not None:
        return None
    found = []
    for case in (case for seed in seeds for case in cases(puzzle, seed)):
        for leaf, got in zip(jax.tree.leaves(case.expected), _results(case), strict=True):
            want = np.asarray(leaf)
            error = largest_error(want, got, puzzle.tolerance)
            allowed = tolerance_of(want, puzzle.tolerance)
            found.append(Margin(error, allowed, case.label, case.seed))
    return max(found, key=lambda one: one.error)


def _results(case: Case) -> list[np.ndarray]:
    if case.puzzle.kernel:
        return execute(case.reference)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(case.plainly(case.puzzle.solution))]


def margin_problem(puzzle: Puzzle, found: Margin | None) -> str | None:
    """That the reference is right by little, or None."""
    if found is None or found.error < LIMIT:
        return None
    place = puzzle.place("tolerance=" if puzzle.tolerance else "PUZZLE = ")
    return problem(place, "passes by little", **asdict(found))
