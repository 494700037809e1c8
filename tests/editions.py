"""Record what an edition hands out, so that its notebooks are known when a launch has moved on.

python tests/editions.py EDITION GIT-REF        for example 0.2.0 HEAD, at a release
"""

from __future__ import annotations

import json
import subprocess
import sys

import puzzles
from puzzles import _regions
from puzzles._judge import edition


def record(version: str, ref: str) -> None:
    """Write the digest of every function that the edition at a commit hands out whole."""
    data = json.loads(edition._EDITIONS.read_text(encoding="utf-8"))
    data[version] = {}
    for ladder in puzzles.ladders():
        for puzzle in puzzles.ladder(ladder):
            text = subprocess.run(
                ["git", "show", f"{ref}:{puzzle.file}"], capture_output=True, text=True
            )
            if text.returncode:  # the edition did not have this rung
                continue
            module = _regions.without_author(text.stdout)
            whole = {n: edition.digest(t) for n, t in edition.given(module).items()}
            data[version][puzzle.name] = {"given": whole, "around": edition.around(module)}
    lines = json.dumps(data, sort_keys=True)
    edition._EDITIONS.write_text(f"{lines}\n", encoding="utf-8")


if __name__ == "__main__":
    record(*sys.argv[1:])
