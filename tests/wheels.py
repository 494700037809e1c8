"""Modules of production's wheels, unpacked by `make graduate` with few of their dependencies."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import re
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import jax
import pytest

FOLDER = Path(__file__).parent.parent / ".production"
# Packages that serve, log and time kernels. No kernel computes with them.
AROUND = {"vllm", "xprof", "torch", "torchax", "tensorboardX"}


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of AROUND in which every name exists."""

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        around = name.partition(".")[0] in AROUND
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if around else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        vars(module)["__getattr__"] = lambda name: MagicMock(name=f"{spec.name}.{name}")
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: every name is made when it is read."""


def module(name: str) -> types.ModuleType:
    """A module by its full name; the test is skipped if its wheel is not there.

    The packages of tpu_inference are entered without their `__init__`, which imports all of vLLM.
    """
    if not FOLDER.exists():
        pytest.skip("`make graduate` installs the wheels")
    if not any(isinstance(finder, _StandIns) for finder in sys.meta_path):
        sys.path.append(str(FOLDER))
        sys.meta_path.append(_StandIns())
    packages = name.split(".")[:-1] if name.startswith("tpu_inference.") else []
    for n in range(1, len(packages) + 1):
        package = types.ModuleType(".".join(packages[:n]))
        package.__path__ = [str(FOLDER.joinpath(*packages[:n]))]
        sys.modules.setdefault(package.__name__, package)
    return importlib.import_module(name)


def needs_newer_jax(wheel: str) -> bool:
    """Whether an unpacked wheel asks for a JAX newer than the installed one."""
    (folder,) = FOLDER.glob(f"{wheel}-*.dist-info")
    asked = re.search(r"^Requires-Dist: jax>=([\d.]+)", (folder / "METADATA").read_text(), re.M)
    return bool(asked) and tuple(map(int, asked[1].split("."))) > jax.__version_info__


def version(wheel: str) -> str:
    """The name and the version of an unpacked wheel."""
    (folder,) = FOLDER.glob(f"{wheel}-*.dist-info")
    return folder.stem.replace("-", " ")
