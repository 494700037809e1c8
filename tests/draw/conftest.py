"""What tests of pictures share."""

from __future__ import annotations

import pytest

from puzzles import _show


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What `show` displays: (text, page), one entry a call."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(_show, "display", lambda text, page: found.append((text, page)))
    monkeypatch.setattr(_show, "say", lambda text: found.append((text, "")))
    return found
