"""Are a rung's proofs worth something? Faults of a rung's code that would make them empty.

A fault that a rung may have for a reason has a name, and `waivers={name: reason}` in the Puzzle
says the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from puzzles import _regions
from puzzles._author import evidence
from puzzles._author.circular import circular
from puzzles._author.evidence import Fault
from puzzles._author.report import plural
from puzzles._judge import Case, cases
from puzzles._launch import Launch
from puzzles._puzzle import Puzzle

# What a rung may do without, if it says why.
WAIVERS = {
    "work": "no mistake of stage 'work'",
    "blocks": "an axis of the grid that always has one block",
    "single": "an axis along which a block of a result stays, and that never has one step",
    "finite": "results that are not finite though the data are",
    "constant": "an argument whose numbers are all the same",
    "same": "a result whose numbers are all the same in some case",
    "sizes": "an axis that is equally long in all cases, fresh ones too",
    "signed": "an argument without negative numbers",
    "tolerance": "a tolerance far above its dtype's",
}


def soundness_problems(puzzle: Puzzle) -> Iterator[str]:
    """Every fault that is not waived, and every waiver that waives nothing."""
    found = list(_faults(puzzle))
    for fault in found:
        if not fault.name:
            yield fault.says
        elif fault.name not in puzzle.waivers:
            yield f"{fault.says}, or say why not: waivers={{{fault.name!r}: '...'}}"
    place = puzzle.place("waivers=")
    for name, reason in puzzle.waivers.items():
        if name not in WAIVERS:
            yield f"{place}: no waiver is called {name!r}; there are {', '.join(WAIVERS)}"
        elif all(fault.name != name for fault in found):
            yield f"{place}: nothing asks for the waiver {name!r} any more: take it out"
        elif len(reason.split()) < 4:
            yield f"{place}: the waiver {name!r} has no reason: say in a sentence why"


def _faults(puzzle: Puzzle) -> Iterator[Fault]:
    for asked in (_unseeded, circular, _not_interpreted, _too_few_others, _alike):
        yield from map(Fault, asked(puzzle))
    yield from _unaudited(puzzle)
    yield from _one_block(puzzle)
    yield from _one_step(puzzle)
    yield from evidence.faults(puzzle)


def _unseeded(puzzle: Puzzle) -> Iterator[str]:
    """Verdicts must not differ from run to run."""
    for case in cases(puzzle):
        again = Case(puzzle, case.number, case.seed)
        if not _same(case.args, again.args):
            yield (
                f"{puzzle.place('inputs=')}: `inputs` gives other data for the same key "
                f"({case.label}): draw all of it from `rng(key)`"
            )
            return


def _same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(callable(x) or np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def _not_interpreted(puzzle: Puzzle) -> Iterator[str]:
    """README's central promise: the same cells run unchanged on a TPU."""
    tree = ast.parse(puzzle.text)
    passed_on = {
        parameter.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.Lambda)
        for parameter in (*node.args.args, *node.args.kwonlyargs)
    }
    remedy = "write `interpret=INTERPRET`, so that the same cell runs on a TPU"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = next((word for word in node.keywords if word.arg == "interpret"), None)
        launch = ast.unparse(node.func).rpartition(".")[2] == "pallas_call"
        if given is not None:
            value = given.value
            named = isinstance(value, ast.Name) and value.id not in {"INTERPRET", *passed_on}
            if isinstance(value, ast.Constant) or named:
                at = f"{puzzle.file}:{value.lineno}"
                yield f"{at}: `interpret={ast.unparse(value)}` in a launch: {remedy}"
        elif launch and all(word.arg is not None for word in node.keywords):
            yield f"{puzzle.file}:{node.lineno}: a launch without `interpret`: {remedy}"


def _too_few_others(puzzle: Puzzle) -> Iterator[str]:
    """An audit that nothing but the solution passes may be too strict for all other answers."""
    if (count := len(puzzle.alternatives)) < 2:
        yield (
            f"{puzzle.place('alternatives=')}: {plural(count, 'alternative')}: at least 2 are "
            "wanted; how else would an expert write it?"
        )
    seen = {_program(_regions.without_marks(puzzle.text)): "the solution"}
    for one in puzzle.alternatives:
        try:
            program = _program(_regions.without_marks(one.apply(puzzle.text)))
        except (_regions.RegionError, SyntaxError):
            continue  # `alternative_problem` says so
        if program in seen:
            place = puzzle.place(f'"{one.name}"')
            yield (
                f"{place}: alternative '{one.name}' is {seen[program]} in other layout: write "
                "another correct answer, or take it out"
            )
        seen.setdefault(program, f"'{one.name}'")


def _program(text: str) -> str:
    return ast.dump(ast.parse(text))


def _alike(puzzle: Puzzle) -> Iterator[str]:
    for number, dims in enumerate(puzzle.cases):
        if dims in puzzle.cases[:number]:
            yield (
                f"{puzzle.place('cases=')}: two cases are {dict(dims)}: make one differ, or take "
                "it out"
            )


def _unaudited(puzzle: Puzzle) -> Iterator[Fault]:
    """A check that cannot fail is a bug: a mistake on record must cost too much."""
    if puzzle.audit is None and puzzle.launches is None:
        return  # the production shape judges, and `scale_problems` asks for it
    if puzzle.audit is None or all(m.stage != "work" for m in puzzle.mistakes):
        place = puzzle.place("audit=" if puzzle.audit else "PUZZLE = ")
        yield Fault(
            f"{place}: no mistake of stage 'work' shows that the audit can fail: record the launch "
            "that it is there to refuse",
            "work",
        )


def _one_block(puzzle: Puzzle) -> Iterator[Fault]:
    """One case has more than one block on every axis, or a wrong index map is right by luck."""
    if not puzzle.kernel:
        return
    grids = [[one.grid for one in case.reference.launches] for case in cases(puzzle)]
    if any(all(size > 1 for grid in case for size in grid) for case in grids):
        return
    shown = ", ".join(" and ".join(map(str, case)) for case in grids)
    yield Fault(
        f"{puzzle.place('cases=')}: no case has more than one block on every axis of its grid "
        f"(grids {shown}): make one larger",
        "blocks",
    )


def _one_step(puzzle: Puzzle) -> Iterator[Fault]:
    """Where a result is finished over several steps, the first one is the last in some case."""
    if not puzzle.kernel:
        return
    stays: dict[tuple[str, int], list[bool]] = {}
    single: set[tuple[str, int]] = set()
    for case in cases(puzzle):
        for launch in case.reference.launches:
            for axis, size in enumerate(launch.grid) if launch.steps else ():
                if size == 1:
                    single.add((launch.name, axis))
                else:
                    stays.setdefault((launch.name, axis), []).append(_stays(launch, axis))
    kernels = {name for name in puzzle.blanks if name.endswith("_kernel")}
    for (name, axis), each in stays.items():
        if all(each) and (name, axis) not in single and name in kernels:
            yield Fault(
                f"{puzzle.place('cases=')}: no case has a single step on axis {axis} of {name}'s "
                "grid, along which a block of the result stays: who begins in one step and ends in "
                "another is right by luck. Make one smaller",
                "single",
            )


def _stays(launch: Launch, axis: int) -> bool:
    """Whether some output's block is the same all along an axis of the grid."""
    return any(
        one.piped and not np.diff(one.blocks.reshape(*launch.grid, -1), axis=axis).any()
        for one in launch.outputs
    )
