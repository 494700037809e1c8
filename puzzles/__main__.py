"""The author's commands: python -m puzzles new | build | verify."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from puzzles._ladders import UnknownPuzzle
from puzzles._repository import BuildError, project
from puzzles._tree import ladders_of, missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if all is well, 1 if something has to be fixed."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (BuildError, UnknownPuzzle) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m puzzles", description="Author's commands.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="write the notebooks and the README's table")
    build.set_defaults(run=_build)
    instead = build.add_mutually_exclusive_group()
    instead.add_argument("--check", action="store_true", help="write nothing, fail if out of date")
    instead.add_argument("--solved", metavar="DIR", type=Path, help="write solved notebooks to DIR")

    verify = commands.add_parser("verify", help="prove puzzles: mistakes, alternatives, TPUs")
    verify.set_defaults(run=_verify)
    verify.add_argument("--quick", action="store_true", help="one random key, nothing compiled")
    verify.add_argument("names", metavar="NAME", nargs="*", help="puzzles, ladders; all by default")

    new = commands.add_parser("new", help="a ladder or a puzzle to start from")
    kinds = new.add_subparsers(required=True, metavar="ladder | puzzle")
    ladder = kinds.add_parser("ladder", help="a new ladder, with one puzzle")
    ladder.set_defaults(run=_new_ladder)
    ladder.add_argument("name", metavar="NAME", help="for example layer_norm")
    ladder.add_argument("first", metavar="FIRST", nargs="?", help="its first puzzle, NAME_warm_up")
    puzzle = kinds.add_parser("puzzle", help="a new puzzle, the last of its ladder")
    puzzle.set_defaults(run=_new_puzzle)
    puzzle.add_argument("ladder", metavar="LADDER")
    puzzle.add_argument("name", metavar="NAME", help="its module's and its function's name")
    return parser


def _new_ladder(options: argparse.Namespace) -> int:
    from puzzles import _scaffold

    root = project()
    _wrote(_scaffold.new_ladder(options.name, root, options.first))
    lines = _scaffold.entry_point(options.name, root)
    if lines:
        print(f"add to pyproject.toml, then install this project again:\n\n{lines}\n")
    print(f"next: python -m puzzles verify {options.name}")
    return 0


def _new_puzzle(options: argparse.Namespace) -> int:
    from puzzles import _scaffold

    _wrote(_scaffold.new_puzzle(options.ladder, options.name))
    print(f"next: python -m puzzles verify {options.ladder}/{options.name}")
    return 0


def _wrote(paths: Sequence[Path]) -> None:
    for path in paths:
        print(f"wrote {os.path.relpath(path)}")


def _build(options: argparse.Namespace) -> int:
    try:
        from puzzles import _notebook
    except ModuleNotFoundError as error:
        if error.name not in ("jupytext", "nbformat"):
            raise
        raise BuildError(
            f"building notebooks needs {error.name}: pip install -e '.[author]'"
        ) from None
    root = project()
    names = ladders_of(root)
    if not names:
        raise BuildError(
            f"no ladder that Python finds lies in {root}: install this project (pip install -e .), "
            "so that its entry points are known"
        )
    for problem in (problem for name in names for problem in missing(name)):
        raise BuildError(problem)
    if options.check:
        return _report(_notebook.out_of_date(root, names))
    if options.solved:
        written = _notebook.write_solved(options.solved, root, names)
    else:
        written = _notebook.write(root, names)
    _wrote(written)
    if not written:
        print("everything is up to date")
    return 0


def _report(stale: Sequence[str]) -> int:
    if stale:
        print(f"out of date: {', '.join(stale)}. Run python -m puzzles build", file=sys.stderr)
    return 1 if stale else 0


def _verify(options: argparse.Namespace) -> int:
    from puzzles import _verify

    return _verify.main(options.names, options.quick)


if __name__ == "__main__":
    sys.exit(main())
