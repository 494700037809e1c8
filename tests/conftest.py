"""Where tests run: on a CPU; and which share a process, where several run them."""

from __future__ import annotations

import gc
import math
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before JAX looks for a TPU, which libtpu notes
import puzzles

puzzles.compile_quickly()  # as a notebook's first cell does

# XLA starts threads for all cores that it sees. Where each worker sees only its own, the threads of
# two do not meet: tests of the puzzles took 3 to 40 % less, by machine.
if (count := os.environ.get("PYTEST_XDIST_WORKER_COUNT")) and hasattr(os, "sched_setaffinity"):
    mine = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    if cores := sorted(os.sched_getaffinity(0))[mine :: int(count)]:
        os.sched_setaffinity(0, cores)

# A worker keeps some million objects alive, and JAX looks through its caches at every collection:
# by Python's own thresholds a tenth of the time goes there.
gc.set_threshold(50_000, 20, 50)

# All tests of one puzzle compile the same programs, and a process compiles a program once; all of
# test_devices.py ask of what one process of four devices said.
TOGETHER = re.compile(r"test_rungs\.py::.*?\[(\w+)|(test_devices\.py)")


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a verdict says must not depend on how busy the machine is."""
    monkeypatch.setattr("puzzles._judge.answer.PATIENCE", math.inf)


@pytest.fixture
def no_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`examine` compiles nothing."""
    monkeypatch.setattr("puzzles._examine.examining.has_libtpu", lambda: False)


@pytest.fixture(scope="session")
def compiler() -> Iterator[Any]:
    """The real TPU compiler, one worker for all tests of a process."""
    from puzzles._compile import INSTALL_LIBTPU, Compiler, has_libtpu

    if not has_libtpu() or find_spec("flatbuffers") is None:
        pytest.skip(INSTALL_LIBTPU)
    with Compiler() as one:
        yield one


def together(nodeid: str) -> str:
    """The name of the group that a test belongs to, or its own."""
    found = TOGETHER.search(nodeid)
    return found[found.lastindex or 0] if found else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    return Groups(config, log)
