"""Is this puzzle fit to be shown? The author's commands: a project's folder in, a report out.

`verify` proves puzzles, `build` writes their notebooks and diagrams, `new_project`, `new_ladder`
and `new_puzzle` write what to start from, `record` adds an answer to a puzzle's record and `edit`
shows one. Each prints what it did and returns the exit status; a
`BuildError` says what to mend. `strip` is what a project's diagrams are drawn with.
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
