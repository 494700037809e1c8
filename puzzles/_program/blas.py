"""One BLAS thread while programs run step by step.

The products of a kernel are small. OpenBLAS shares those of 64 x 128 blocks among all cores, whose
threads then spin while they wait for each other: beside another busy process a run took up to 17
times as long.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_")  # in NumPy's wheels
_FOLDERS = ("../numpy.libs", ".dylibs")  # of Linux and Windows, and of macOS


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit NumPy's matrix products to one thread, and restore the number of threads afterwards.

    Finds the OpenBLAS of NumPy's own wheels; another BLAS (such as Accelerate, which has no such
    setting) is left alone.
    """
    before = [(write, read()) for read, write in _openblas()]
    for write, _ in before:
        write(1)
    try:
        yield
    finally:
        for write, threads in before:
            write(threads)


@cache
def _openblas() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """The functions that read and write the number of threads of each OpenBLAS of NumPy."""
    root = Path(np.__file__).parent
    libraries: list[tuple[Any, Any]] = []
    for path in (path for folder in _FOLDERS for path in (root / folder).glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(path))  # the library that NumPy has already loaded
        except OSError:
            continue
        for name in _NAMES:
            if hasattr(library, name.format("set")):
                libraries.append((library[name.format("get")], library[name.format("set")]))
    return libraries
