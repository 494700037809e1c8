"""Modules of production's wheels, which `make graduate` unpacks without their dependencies."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / ".production"


def module(name: str) -> types.ModuleType:
    """A module by its full name; the test is skipped if its wheel is not there.

    The packages around it are entered without their `__init__`, which imports all they depend on.
    """
    if not FOLDER.exists():
        pytest.skip("`make graduate` installs the wheels")
    packages = name.split(".")[:-1]
    for n in range(1, len(packages) + 1):
        package = types.ModuleType(".".join(packages[:n]))
        package.__path__ = [str(FOLDER.joinpath(*packages[:n]))]
        sys.modules.setdefault(package.__name__, package)
    return importlib.import_module(name)


def version(wheel: str) -> str:
    """The name and the version of an unpacked wheel."""
    (folder,) = FOLDER.glob(f"{wheel}-*.dist-info")
    return folder.stem.replace("-", " ")
