"""python -m puzzles examine, for your kernels; new, record, edit, verify, build, for authors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from puzzles import _author, _examine, _rules
from puzzles._ladders import UnknownPuzzleError
from puzzles._record import RecordError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 if all is well, 1 for an error to fix, 2 if work is left."""
    options = _parser().parse_args(arguments)
    _author.look_for_no_tpu()
    try:
        return options.run(options)
    except (_author.BuildError, RecordError, UnknownPuzzleError) as error:
        says = str(error)
    except ModuleNotFoundError as error:
        if error.name not in ("jupytext", "nbformat"):
            raise
        says = f"this needs {error.name}: pip install -e '.[author]'"
    print(f"error: {says}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m puzzles", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="write the notebooks and the README's table")
    build.set_defaults(run=lambda args: _author.build(args.check))
    build.add_argument("--check", action="store_true", help="write nothing, fail if out of date")

    verify = commands.add_parser("verify", help="prove puzzles: mistakes, alternatives, TPUs")
    verify.set_defaults(run=lambda args: _author.verify(args.names, args.quick, args.fresh))
    verify.add_argument("--quick", action="store_true", help="one random key, nothing compiled")
    verify.add_argument("--fresh", action="store_true", help="prove again what was proven before")
    verify.add_argument("names", metavar="NAME", nargs="*", help="puzzles, ladders; all by default")

    record = commands.add_parser("record", help="add an answer that somebody wrote to a puzzle")
    record.set_defaults(
        run=lambda args: _author.record(args.puzzle, args.answer, args.name, args.says)
    )
    record.add_argument("puzzle", metavar="PUZZLE")
    record.add_argument("answer", metavar="FILE", help="code, a notebook, an issue; - for stdin")
    record.add_argument("--name", default="", help="what the kernel does; by default FILE's name")
    record.add_argument("--says", default="", help="why its numbers are wrong, and the remedy")

    edit = commands.add_parser("edit", help="a known answer beside the solution, and its verdict")
    edit.set_defaults(run=lambda args: _author.edit(args.puzzle, args.name))
    edit.add_argument("puzzle", metavar="PUZZLE")
    edit.add_argument("name", metavar="NAME", help="its name, or a part of it")

    rules = commands.add_parser("rules", help="why answers are refused, and how often on record")
    rules.set_defaults(run=lambda args: _rules.listed())

    examine = commands.add_parser("examine", help="what is wrong or dear in a kernel's launch")
    examine.set_defaults(run=_examine.command)
    _examine.options(examine)

    new = commands.add_parser("new", help="a project, a ladder or a puzzle to start from")
    kinds = new.add_subparsers(required=True, metavar="project | ladder | puzzle")
    own = kinds.add_parser("project", help="a package of your own, with one ladder")
    own.set_defaults(run=lambda args: _author.new_project(args.name, args.ladder))
    own.add_argument("name", metavar="NAME", type=Path, help="a new folder, as ../acme_kernels")
    own.add_argument("ladder", metavar="LADDER", nargs="?", help="its first ladder")
    ladder = kinds.add_parser("ladder", help="a new ladder, with one puzzle")
    ladder.set_defaults(run=lambda args: _author.new_ladder(args.name, args.first))
    ladder.add_argument("name", metavar="NAME", help="for example layer_norm")
    ladder.add_argument("first", metavar="FIRST", nargs="?", help="its first puzzle, NAME_warm_up")
    puzzle = kinds.add_parser("puzzle", help="a new puzzle, the last of its ladder")
    puzzle.set_defaults(
        run=lambda args: _author.new_puzzle(args.ladder, args.name, args.like, args.bare)
    )
    puzzle.add_argument("ladder", metavar="LADDER")
    puzzle.add_argument("name", metavar="NAME", help="its module's and its function's name")
    puzzle.add_argument("--like", metavar="PUZZLE", help="a puzzle to copy instead of the example")
    puzzle.add_argument("--bare", action="store_true", help="the example without its manual")
    return parser


if __name__ == "__main__":
    sys.exit(main())
