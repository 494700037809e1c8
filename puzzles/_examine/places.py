"""Where a finding stands: the file and the line behind its "file:number: text"."""

from __future__ import annotations

import linecache
import os
import re
import sys
from typing import Any

from puzzles._judge import unwrap

_LINE = re.compile(r"(?P<name>[^:]+):(?P<number>\d+)(?:: (?P<text>.*))?", re.DOTALL)


def place(line: str | None) -> tuple[str, int] | None:
    """The path and the number of a line; None where no imported module holds it.

    A finding names a file by its last part. Of the modules whose file is called so, it is the one
    that has this text there; where several have, one below the folder that this runs in.
    """
    found = _LINE.fullmatch(line or "")
    if found is None:
        return None
    number, text = int(found["number"]), found["text"] or ""
    here = os.getcwd() + os.sep
    fits = [f for f in _files(found["name"]) if linecache.getline(f, number).strip() == text]
    fits.sort(key=lambda file: not file.startswith(here))
    return (fits[0], number) if fits else None


def _files(name: str) -> list[str]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    paths = (os.path.abspath(f) for f in files if isinstance(f, str))
    return sorted({path for path in paths if os.path.basename(path) == name})


def home_of(fn: Any) -> tuple[str, int] | None:
    """The path and the first line of a function, where a file holds it."""
    code = getattr(unwrap(fn), "__code__", None)
    if code is None or not os.path.isfile(code.co_filename):
        return None
    return os.path.abspath(code.co_filename), code.co_firstlineno
