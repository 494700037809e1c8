"""What was proven before, and of what: an edit of one rung proves one rung anew.

A proof is known by all that it rests on: the rung's module and record, the modules of ladders that
it imports or finds, the engine, the versions of Python, NumPy and JAX, and libtpu's where its
compiler is asked.
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
# What a module imports or finds.
_REACHED = re.compile(r"find\(\W{0,2}\w+|from [\w.]+ import (?:\([^)]*\)|.*)|import [\w.]+")


@dataclass(frozen=True)
class Proofs:
    """Those in the folder `.proofs` of the project at `root`.

    fresh: none of them is taken. digests: of what is proven, as it was when it was first asked for.
    """

    root: Path
    fresh: bool = False
    digests: dict[tuple[str, str], str] = field(default_factory=dict)

    def taken(self, rung: str, kind: str) -> Report | None:
        """What the same proof gave before, if it is kept; never where CI=true."""
        of = self.digests.setdefault((rung, kind), digest(rung, kind))
        try:
            kept = json.loads(self._path(rung, kind).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if self.fresh or os.environ.get("CI") == "true" or kept["of"] != of:
            return None
        return Report(f"{ladder_of(rung)}/{rung}", kept["counts"], before=True)

    def keep(self, rung: str, kind: str, report: Report) -> None:
        """Keep a proof that holds and was asked for before; one that fails is forgotten."""
        path = self._path(rung, kind)
        if report.problems:
            path.unlink(missing_ok=True)
        elif not report.before:
            kept = dict(of=self.digests[rung, kind], counts=report.counts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(kept), encoding="utf-8")

    def _path(self, rung: str, kind: str) -> Path:
        return self.root / ".proofs" / ladder_of(rung) / f"{rung}-{kind}.json"


def digest(rung: str, kind: str) -> str:
    """Of all that a proof rests on."""
    packages = ("numpy", "jax", "libtpu") if "compiled" in kind else ("numpy", "jax")
    said = [kind, os.environ.get("JAX_PLATFORMS"), platform.python_version()]
    found = hashlib.sha256(repr([*said, *map(version, packages)]).encode())
    found.update(_engine())
    for path in sorted(_rests_on(rung)):
        found.update(f"{path.parent.name}/{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()


@cache
def _engine() -> bytes:
    """A digest of all in this package that is no ladder: code, words, tables."""
    found = hashlib.sha256()
    for path in sorted(HOME.rglob("*")):
        name = path.relative_to(HOME).as_posix()
        if name.startswith("_") and path.is_file() and "__pycache__" not in name:
            found.update(f"{name}\n".encode() + path.read_bytes())
    return found.digest()


def _rests_on(rung: str) -> set[Path]:
    """The record of a rung, its module and the modules of ladders that it reaches."""
    homes = [folder_of(name) for name in ladders()]
    folders = {*homes, *(home.parent for home in homes)}
    waiting = [folder_of(ladder_of(rung)) / f"{rung}.py"]
    found = {path for path in [waiting[0].with_suffix(".toml")] if path.exists()}
    while waiting:
        path = waiting.pop()
        if path not in found and path.exists():
            found.add(path)
            waiting += [path.with_name("__init__.py")]
            reached = " ".join(_REACHED.findall(path.read_text(encoding="utf-8")))
            names = re.findall(r"\w+", reached)
            waiting += [folder / f"{name}.py" for name in names for folder in folders]
    return found
