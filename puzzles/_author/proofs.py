"""A cache of proofs: after an edit of a puzzle, `verify` proves only this puzzle again.

The key is a digest of everything that a proof depends on: the puzzle's module and record, the
modules of ladders that it imports or finds, the engine, the versions of Python, NumPy and JAX, and
libtpu's version if it compiles something.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path

from puzzles._author.report import Report
from puzzles._ladders import folder_of, ladder_of, ladders

HOME = Path(__file__).resolve().parents[1]
# the imports of a module, and the puzzles that it finds
_REACHED = re.compile(r"find\(\W{0,2}\w+|from [\w.]+ import (?:\([^)]*\)|.*)|import [\w.]+")


@dataclass(frozen=True)
class Proofs:
    """The proofs in the folder `.proofs` of the project at `root`.

    fresh: True to ignore them. digests: by puzzle and kind, computed at the first lookup.
    """

    root: Path
    fresh: bool = False
    digests: dict[tuple[str, str], str] = field(default_factory=dict)

    def taken(self, puzzle: str, kind: str) -> Report | None:
        """The report of a valid cached proof; None if there is none, or if CI=true."""
        key = self.digests.setdefault((puzzle, kind), digest(puzzle, kind))
        try:
            cached = json.loads(self._path(puzzle, kind).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if self.fresh or os.environ.get("CI") == "true" or cached["of"] != key:
            return None
        return Report(f"{ladder_of(puzzle)}/{puzzle}", cached["counts"], before=True)

    def keep(self, puzzle: str, kind: str, report: Report) -> None:
        """Store a proof that `taken` was called for, or remove it if it has problems."""
        path = self._path(puzzle, kind)
        if report.problems:
            path.unlink(missing_ok=True)
        elif not report.before:
            cached = dict(of=self.digests[puzzle, kind], counts=report.counts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(cached), encoding="utf-8")

    def _path(self, puzzle: str, kind: str) -> Path:
        return self.root / ".proofs" / ladder_of(puzzle) / f"{puzzle}-{kind}.json"


def digest(puzzle: str, kind: str) -> str:
    """A digest of everything that a proof depends on."""
    packages = ("numpy", "jax", "libtpu") if "compiled" in kind else ("numpy", "jax")
    settings = [kind, os.environ.get("JAX_PLATFORMS"), platform.python_version()]
    hashed = hashlib.sha256(repr([*settings, *map(version, packages)]).encode())
    hashed.update(_engine())
    for path in sorted(_rests_on(puzzle)):
        hashed.update(f"{path.parent.name}/{path.name}\n".encode() + path.read_bytes())
    return hashed.hexdigest()


@cache
def _engine() -> bytes:
    """A digest of the engine's files: code and tables."""
    hashed = hashlib.sha256()
    for path in sorted(HOME.rglob("*")):
        name = path.relative_to(HOME).as_posix()
        if name.startswith("_") and path.is_file() and "__pycache__" not in name:
            hashed.update(f"{name}\n".encode() + path.read_bytes())
    return hashed.digest()


def _rests_on(puzzle: str) -> set[Path]:
    """A puzzle's record, its module, and the modules of ladders that this module uses."""
    homes = [folder_of(name) for name in ladders()]
    folders = {*homes, *(home.parent for home in homes)}
    waiting = [folder_of(ladder_of(puzzle)) / f"{puzzle}.py"]
    paths = {path for path in [waiting[0].with_suffix(".toml")] if path.exists()}
    while waiting:
        path = waiting.pop()
        if path not in paths and path.exists():
            paths.add(path)
            waiting += [path.with_name("__init__.py")]
            reached = " ".join(_REACHED.findall(path.read_text(encoding="utf-8")))
            names = re.findall(r"\w+", reached)
            waiting += [folder / f"{name}.py" for name in names for folder in folders]
    return paths
