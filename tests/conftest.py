"""Settings of all tests: run on a CPU, and tests of a puzzle share a worker process."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before JAX looks for a TPU
import puzzles

puzzles.compile_quickly()  # as a notebook's first cell does

# XLA starts threads for all visible cores. Pin each worker to its own cores, so that their threads
# do not compete: this saved 3 to 40 % of the time of the puzzles' tests, depending on the machine.
if (count := os.environ.get("PYTEST_XDIST_WORKER_COUNT")) and hasattr(os, "sched_setaffinity"):
    mine = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    if cores := sorted(os.sched_getaffinity(0))[mine :: int(count)]:
        os.sched_setaffinity(0, cores)

# A worker keeps a million objects alive, and JAX searches its caches at every collection: with
# Python's default thresholds, this takes a tenth of the time.
gc.set_threshold(50_000, 20, 50)

# All tests of a puzzle compile the same programs, and a process compiles a program once; all tests
# of test_devices.py read the output of the same subprocess with four devices.
TOGETHER = re.compile(r"test_puzzles\.py::.*?\[(\w+)|(test_devices\.py)")


@pytest.fixture(autouse=True)
def nothing_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("puzzles._progress._solved", set())


@pytest.fixture
def no_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `examine` compile nothing."""
    monkeypatch.setattr("puzzles._compile.compiler.has_libtpu", lambda: False)


@pytest.fixture(scope="session")
def compiler() -> Iterator[Any]:
    """The real TPU compiler, one worker for all tests of a process."""
    from puzzles._compile import INSTALL_LIBTPU, Compiler, has_libtpu

    if not has_libtpu() or find_spec("flatbuffers") is None:
        pytest.skip(INSTALL_LIBTPU)
    with Compiler() as one:
        yield one


def together(nodeid: str) -> str:
    """The name of the group of a test, or the test's own name."""
    found = TOGETHER.search(nodeid)
    return found[found.lastindex or 0] if found else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    return Groups(config, log)
