"""The author's commands: python -m puzzles build | verify."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from puzzles._puzzle import UnknownPuzzle
from puzzles._repository import BuildError


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
    verify.add_argument("names", metavar="NAME", nargs="*", help="puzzles; all, if none is named")
    return parser


def _build(options: argparse.Namespace) -> int:
    try:
        from puzzles import _notebook
    except ModuleNotFoundError as error:
        if error.name not in ("jupytext", "nbformat"):
            raise
        raise BuildError(
            f"building notebooks needs {error.name}: pip install -e '.[author]'"
        ) from None
    if options.check:
        return _report(_notebook.out_of_date())
    if options.solved:
        written = _notebook.write_solved(options.solved)
    else:
        written = _notebook.write()
    for path in written:
        print(f"wrote {os.path.relpath(path)}")
    if not written:
        print("everything is up to date")
    return 0


def _report(stale: Sequence[str]) -> int:
    if stale:
        print(f"out of date: {', '.join(stale)}. Run python -m puzzles build", file=sys.stderr)
    return 1 if stale else 0


def _verify(options: argparse.Namespace) -> int:
    from puzzles import _verify

    return _verify.main(options.names)


if __name__ == "__main__":
    sys.exit(main())
