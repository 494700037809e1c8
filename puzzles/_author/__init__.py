"""The author's commands, which read a project's folder and print a report.

`verify` proves puzzles, and `build` writes their notebooks and diagrams. `new_project`,
`new_ladder` and `new_puzzle` write a scaffold. `record` adds an answer to a puzzle's record, and
`edit` shows an answer. Each command prints its results and returns the exit status; a `BuildError`
has the remedy. A project draws its diagrams with `strip`.
"""

from __future__ import annotations

from puzzles._author.commands import (
    build,
    edit,
    look_for_no_tpu,
    new_ladder,
    new_project,
    new_puzzle,
    record,
)
from puzzles._author.diagrams import strip
from puzzles._author.gate import verify
from puzzles._author.repository import BuildError
