"""Comments with the shapes of a kernel's Refs, from the reference's launches."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from functools import cache

from nbformat import NotebookNode

from puzzles._author.cells import plain
from puzzles._judge import cases, traced_for, usual_dims
from puzzles._launch import Launch, keeping_traces
from puzzles._puzzle import Puzzle

Sizes = dict[str, tuple[int, ...]]  # of each Ref of a kernel, by its name


def with_shapes(puzzle: Puzzle, listed: Sequence[NotebookNode]) -> None:
    """Write a comment at the top of each kernel with a gap: `# x_ref: (64, 128)`.

    A size that differs between cases is shown as the name of its dim. If it has no such name, or
    two names are possible, the kernel gets no comment.
    """
    comments = _comments(puzzle) if puzzle.kernel else {}
    for cell in (cell for cell in listed if cell.cell_type == "code" and comments):
        lines = cell.source.split("\n")
        for node in reversed(ast.parse(plain(cell.source)).body):
            if isinstance(node, ast.FunctionDef) and node.name in puzzle.blanks:
                first = min(n.lineno for n in ast.walk(node.body[0]) if hasattr(n, "lineno")) - 1
                lines[first:first] = comments[node.name]
        cell.source = "\n".join(lines)


@cache
@keeping_traces()
def _comments(puzzle: Puzzle) -> dict[str, list[str]]:
    """The comment lines for each kernel with a gap; cached for each puzzle."""
    runs = [(dict(case.dims), case.reference) for case in cases(puzzle)]
    if puzzle.scale is not None:  # a function may choose other tiles for wide arrays
        dims = usual_dims(puzzle)
        runs.append((dims, traced_for(puzzle, puzzle.solution, dims)))
    parameters = inspect.signature(puzzle.solution).parameters
    chosen = {name: parameters[name].default for name in sorted(puzzle.settings)}
    called = [(chosen | dims, launch) for dims, traced in runs for launch in traced.launches]
    return {
        name: _alike([(dims, _sizes(launch)) for dims, launch in called if launch.name == name])
        for name in puzzle.blanks
    }


def _sizes(launch: Launch) -> Sizes:
    """The sizes of a kernel's Refs; prefetched scalars and semaphores have no blocks."""
    refs = (*launch.inputs, *launch.outputs, *launch.scratch)
    data = [ref for ref in refs if ref.space != "semaphore_mem"]
    return {ref.name: tuple(size for size in ref.block if size is not None) for ref in data}


def _alike(launched: Sequence[tuple[dict[str, int], Sizes]]) -> list[str]:
    """A line for each shape, with its Refs; no lines if the shape of a Ref is unclear."""
    alike: dict[str, list[str]] = {}
    for ref in launched[0][1] if launched else ():
        shapes = [(dims, sizes.get(ref, ())) for dims, sizes in launched]
        if len({len(sizes) for _, sizes in shapes}) > 1:
            return []
        axes = range(len(shapes[0][1]))
        names = [_size([(dims, sizes[n]) for dims, sizes in shapes]) for n in axes]
        if None in names:
            return []
        shape = f"({', '.join(map(str, names))}{',' if len(names) == 1 else ''})"
        alike.setdefault(shape, []).append(ref)
    return [f"    # {', '.join(refs)}: {shape}" for shape, refs in alike.items()]


def _size(cases: Sequence[tuple[dict[str, int], int]]) -> int | str | None:
    """The name of the only dim that equals this size in every case.

    If there is no such name, the size itself if it never changes, and otherwise None.
    """
    names = [name for name in cases[0][0] if all(dims.get(name) == size for dims, size in cases)]
    if len(names) == 1:  # a name says more than a number that all cases share
        return names[0]
    return cases[0][1] if len({size for _, size in cases}) == 1 else None
