"""Fixtures for tests of pictures."""

from __future__ import annotations

import pytest

from puzzles import _show


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The list of pairs (text, page) that calls of `show` display."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(_show, "display", lambda text, page: found.append((text, page)))
    monkeypatch.setattr(_show, "say", lambda text: found.append((text, "")))
    return found
