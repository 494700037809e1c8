"""Above a kernel's gap, the shapes of its Refs, as the reference's kernels have them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from functools import cache

from nbformat import NotebookNode

from puzzles._author.cells import plain
from puzzles._judge import cases, traced_for
from puzzles._launch import Launch, keeping_traces
from puzzles._puzzle import Puzzle

Sizes = dict[str, tuple[int, ...]]  # of each Ref of a kernel, by its name


def with_shapes(puzzle: Puzzle, listed: Sequence[NotebookNode]) -> None:
    """Write a comment at the top of each kernel with a gap: `# x_ref: (64, 128)`.

    A size that differs from case to case stands by the name of its dim. Where it has none, or
    might be one of two, the kernel gets no comment at all.
    """
    comments = _comments(puzzle) if puzzle.kernel else {}
    for cell in (one for one in listed if one.cell_type == "code" and comments):
        lines = cell.source.split("\n")
        for node in reversed(ast.parse(plain(cell.source)).body):
            if isinstance(node, ast.FunctionDef) and node.name in puzzle.blanks:
                first = node.body[0].lineno - 1
                lines[first:first] = comments[node.name]
        cell.source = "\n".join(lines)


@cache
@keeping_traces()
def _comments(puzzle: Puzzle) -> dict[str, list[str]]:
    """The lines for each kernel with a gap: read once, however often a rung is shown."""
    runs = [(dict(case.dims), case.reference) for case in cases(puzzle)]
    if puzzle.scale is not None:  # there a function that chooses tiles by width chooses others
        usual = inspect.signature(puzzle.scale).parameters.values()
        dims = {one.name: one.default for one in usual}
        runs.append((dims, traced_for(puzzle, puzzle.solution, puzzle.scale())))
    parameters = inspect.signature(puzzle.solution).parameters
    chosen = {name: parameters[name].default for name in sorted(puzzle.settings)}
    called = [(chosen | dims, one) for dims, traced in runs for one in traced.launches]
    return {
        name: _alike([(dims, _sizes(one)) for dims, one in called if one.name == name])
        for name in puzzle.blanks
    }


def _sizes(launch: Launch) -> Sizes:
    """The sizes of a kernel's Refs; prefetched scalars and semaphores have no blocks."""
    refs = (*launch.inputs, *launch.outputs, *launch.scratch)
    data = [one for one in refs if one.space != "semaphore_mem"]
    return {one.name: tuple(size for size in one.block if size is not None) for one in data}


def _alike(launched: Sequence[tuple[dict[str, int], Sizes]]) -> list[str]:
    """A line for each shape, with the Refs that have it; none if one of them is not known."""
    alike: dict[str, list[str]] = {}
    for ref in launched[0][1] if launched else ():
        seen = [(dims, sizes.get(ref, ())) for dims, sizes in launched]
        if len({len(sizes) for _, sizes in seen}) > 1:
            return []
        names = [_size([(dims, sizes[n]) for dims, sizes in seen]) for n in range(len(seen[0][1]))]
        if None in names:
            return []
        shape = f"({', '.join(map(str, names))}{',' if len(names) == 1 else ''})"
        alike.setdefault(shape, []).append(ref)
    return [f"    # {', '.join(refs)}: {shape}" for shape, refs in alike.items()]


def _size(seen: Sequence[tuple[dict[str, int], int]]) -> int | str | None:
    """The only dim that it is in each case, or else the size that all of them have."""
    names = [name for name in seen[0][0] if all(dims.get(name) == size for dims, size in seen)]
    if len(names) == 1:  # it is chosen, even where each case chooses the same
        return names[0]
    return seen[0][1] if len({size for _, size in seen}) == 1 else None
