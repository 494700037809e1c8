"""Above a kernel's gap, the shapes of its Refs, as the reference's launches have them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from functools import cache

from nbformat import NotebookNode

from puzzles._author.cells import plain
from puzzles._judge import Case, cases, fresh_cases
from puzzles._launch import Launch, trace_call
from puzzles._puzzle import Puzzle

_DRAWS = 30  # of the fresh case: what listed cases have in common may differ there

# The sizes of each Ref of a kernel, by its name, in one launch; with the dims of its case.
Sizes = dict[str, tuple[int, ...]]
Launched = tuple[dict[str, int], str, Sizes]


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
def _comments(puzzle: Puzzle) -> dict[str, list[str]]:
    """The lines for each kernel with a gap: read once, however often a rung is shown."""
    drawn = {case.label: case for case in (*fresh_cases(puzzle, _DRAWS), *cases(puzzle))}
    launched = [one for case in drawn.values() for one in _launched(case)]
    if puzzle.scale is not None:  # there a function that chooses tiles by width chooses others
        usual = inspect.signature(puzzle.scale).parameters.values()
        dims = _chosen(puzzle) | {one.name: one.default for one in usual}
        judged = puzzle.observe(puzzle.solution) if puzzle.observe else puzzle.solution
        launched += _read(trace_call(judged, *puzzle.scale()).launches, dims)
    return {name: _alike([one for one in launched if one[1] == name]) for name in puzzle.blanks}


def _launched(case: Case) -> list[Launched]:
    """What the reference launches on a case."""
    dims = _chosen(case.puzzle) | dict(case.dims)
    return _read(trace_call(case.judged(case.puzzle.solution), *case.args).launches, dims)


def _chosen(puzzle: Puzzle) -> dict[str, int]:
    """The sizes of blocks that the reference takes unless it is told others."""
    usual = inspect.signature(puzzle.solution).parameters
    return {name: usual[name].default for name in sorted(puzzle.settings)}


def _read(launches: Sequence[Launch], dims: dict[str, int]) -> list[Launched]:
    """The sizes of each launch's Refs; prefetched scalars and semaphores have no blocks."""
    found = []
    for one in launches:
        refs = (*one.inputs, *one.outputs, *one.scratch)
        data = [ref for ref in refs if ref.space != "semaphore_mem"]
        sizes = {ref.name: tuple(n for n in ref.block if n is not None) for ref in data}
        found.append((dims, one.name, sizes))
    return found


def _alike(launched: Sequence[Launched]) -> list[str]:
    """A line for each shape, with the Refs that have it; none if one of them is not known."""
    alike: dict[str, list[str]] = {}
    for ref in launched[0][2] if launched else ():
        seen = [(dims, sizes.get(ref, ())) for dims, _, sizes in launched]
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
