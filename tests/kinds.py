"""Changes of an answer that a puzzle with too few cases accepts, by kind.

Each kind is a slip that small and even shapes hide: a quotient rounded another way, numbers that
are right up to a limit only, a mask that is not low enough, one slot instead of two, NaN turned
into numbers, and copies that move the same bytes again. `tests/ladders/test_kinds.py` requires that
`judge` refuses each of them in each puzzle, or remarks on it. Run as a program, it prints a table.

    python tests/kinds.py [NAME ...]
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from mutate import mutants

import puzzles
from puzzles import Puzzle, judge
from puzzles._author import gate
from puzzles._puzzle import load

LISTED = tomllib.loads(Path(__file__).with_name("kinds.toml").read_text(encoding="utf-8"))
_ROWS = 1024  # numbers of rows and of columns are right below it
_FEW = 16  # numbers of blocks, of pages and of entries of a list are right below it


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def quotients(node: ast.AST) -> Iterator[ast.AST]:
    """Round a quotient down, or down and add 1."""
    match node:
        case ast.Call(func=ast.Attribute(attr="cdiv"), args=[n, by]):
            n, by = ast.unparse(n), ast.unparse(by)
            yield _parsed(f"({n}) // ({by})")
            yield _parsed(f"({n}) // ({by}) + 1")
        case ast.BinOp(op=ast.FloorDiv()):
            yield _parsed(f"{ast.unparse(node)} + 1")


def small_numbers(node: ast.AST) -> Iterator[ast.AST]:
    """Take a number of a row, of a block or of a list's entry modulo a number that no case has."""
    match node:
        case ast.BinOp(op=ast.Add(), right=right) if "iota" in ast.unparse(right):
            yield _parsed(f"({ast.unparse(node)}) % {_ROWS}")
        case ast.Call(func=ast.Attribute(attr="program_id")):
            yield _parsed(f"{ast.unparse(node)} % {_FEW}")
        case ast.Subscript(value=ast.Name(id=name), slice=index, ctx=ast.Load()) if _is_list(node):
            yield _parsed(f"{name}[({ast.unparse(index)}) % {_FEW}]")
            if name.removesuffix("_ref") not in (
                "offsets",
                "lengths",
                "block_mask",
            ):  # block numbers
                yield _parsed(f"{ast.unparse(node)} % {_FEW}")


# The names of prefetched lists, as Refs of a kernel and as parameters of index maps.
_LISTS = {"rows", "cols", "masks", "tiles", "groups", "group_ids", "tile_ids", "table", "lengths",
          "offsets", "starts", "ends", "perm", "block_mask", "mask_index"}  # fmt: skip


def _is_list(node: ast.Subscript) -> bool:
    """Whether a number is read at an index that is computed."""
    one = isinstance(node.slice, ast.Name | ast.BinOp | ast.Call)
    return one and ast.unparse(node.value).removesuffix("_ref") in _LISTS


def limits(node: ast.AST) -> Iterator[ast.AST]:
    """Replace minus infinity by -100, or a cap below 20 by 20."""
    text = ast.unparse(node) if isinstance(node, ast.expr) else ""
    if text in ("-jnp.inf", "-1e+30"):
        yield _parsed("-100.0")
    if text in ("cap", "soft_cap") and isinstance(getattr(node, "ctx", None), ast.Load):
        yield _parsed(f"max({text}, 20)")


def one_slot(node: ast.AST) -> Iterator[ast.AST]:
    """Use one slot instead of two, of a pipeline or of the kernel's own copies."""
    match node:
        case ast.Call(func=ast.Attribute(attr="BlockSpec"), args=[shape, index_map]):
            buffered = "pipeline_mode=pl.Buffered(1)"
            shape, index_map = ast.unparse(shape), ast.unparse(index_map)
            yield _parsed(f"pl.BlockSpec({shape}, {index_map}, {buffered})")
        case ast.Name(id="slot" | "here" | "there", ctx=ast.Load()):
            yield _parsed("0")


def no_nan(node: ast.AST) -> Iterator[ast.AST]:
    """Turn NaN into a number, or multiply by a mask."""
    match node:
        case ast.Call(func=ast.Attribute(attr="where"), args=[mask, x, ast.Constant(value=0)]):
            mask, x = ast.unparse(mask), ast.unparse(x)
            yield _parsed(f"({x}) * ({mask})")
            yield _parsed(f"jnp.nan_to_num({x})")
        case ast.BinOp(op=ast.Div()):
            yield _parsed(f"jnp.nan_to_num({ast.unparse(node)})")


def twice_the_bytes(node: ast.AST) -> Iterator[ast.AST]:
    """Copy the same slice a second time."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="wait", value=copy), args=[])):
            name, wait = ast.unparse(copy), ast.unparse(node)
            yield ast.parse(f"if True:\n    {wait}\n    {name}.start()\n    {wait}").body[0]
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="sync_copy"))):
            yield ast.parse(f"for _ in range(2):\n    {ast.unparse(node)}").body[0]


KINDS: dict[str, Callable[[ast.AST], Iterator[ast.AST]]] = {
    "quotients": quotients,
    "small numbers": small_numbers,
    "limits": limits,
    "one slot": one_slot,
    "NaN": no_nan,
    "twice the bytes": twice_the_bytes,
}


def passing(puzzle: Puzzle, kind: str) -> Iterator[tuple[str, bool]]:
    """Judge the changes of a kind; yield (change, whether a remark names it) of those that pass."""
    for mutant in mutants(puzzle.text, KINDS[kind]):
        verdict = judge(puzzle, load(puzzle, mutant.text, kind)[puzzle.name])
        if verdict.passed:
            yield mutant.change, any(note.startswith("One thing: ") for note in verdict.notes)


def right(name: str) -> dict[str, str]:
    """The changes of a puzzle's answer that are right, each with the reason."""
    return {
        change: row["why"]
        for row in LISTED["right"]
        if row["puzzle"] == name
        for change in row["changes"]
    }


def main(names: list[str]) -> int:
    """Print for each puzzle and kind how many changes are refused, remarked on, right, accepted."""
    unexpected = 0
    for name in gate.selected(names, puzzles.ladders()):
        puzzle, excused = puzzles.find(name), right(name)
        for kind, changes in KINDS.items():
            made = sum(1 for _ in mutants(puzzle.text, changes))
            passed = dict(passing(puzzle, kind))
            remarked = sum(passed.values())
            listed = len(passed.keys() & excused.keys())
            accepted = [change for change, named in passed.items()
                        if not named and change not in excused]  # fmt: skip
            if made:
                counts = made - len(passed), remarked, listed, len(accepted)
                print(f"{name:<28}{kind:<17}" + "".join(f"{n:5}" for n in counts), flush=True)
            for change in accepted:
                print(f"    accepted: {change}", flush=True)
            unexpected += len(accepted)
    return int(unexpected > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
