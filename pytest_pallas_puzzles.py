"""A pytest plugin: `examined(fn, *args)` fails a test with what `puzzles.examine` finds.

Importing this module imports pytest alone: JAX reads its settings when it is imported, and a
project's conftest may still have some to make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from puzzles import Examination


@pytest.fixture
def examined() -> Callable[..., Examination]:
    """`examined(fn, *args, chips=("v5e",), seed=0, fail_on="error")`: the examination.

    The test fails where it has a finding of `fail_on` or worse, or where `fn` could not be read.
    """

    def examined(
        fn: Callable,
        *args: object,
        chips: tuple[str, ...] = ("v5e",),
        seed: int = 0,
        fail_on: str = "error",
    ) -> Examination:
        from puzzles import examine

        __tracebackhide__ = True
        found = examine(fn, *args, chips=chips, seed=seed)
        if found.unread or found.fails(fail_on):
            pytest.fail(str(found), pytrace=False)
        return found

    return examined


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Leave the `assert`s of `puzzles` as they are: in an audit they are what a learner reads.

    pytest rewrites those of every package that is installed with a plugin, and adds to their words.
    """
    hook = early_config.pluginmanager.rewrite_hook
    getattr(hook, "_must_rewrite", set()).discard("puzzles")
