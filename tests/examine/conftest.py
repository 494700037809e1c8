"""Fixtures for tests of `examine`."""

from __future__ import annotations

from pathlib import Path

import pytest

from puzzles._examine import shell, subprocesses


@pytest.fixture
def folder_here(tmp_path: Path, no_libtpu: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, and let the shell examine in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shell, "run_request", lambda asked, _: subprocesses.looked_at(asked))
    return tmp_path
