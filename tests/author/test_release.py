"""A release pins the notebooks to its tag, and the branch's notebooks to the branch."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

import puzzles
from puzzles._author import repository

pytestmark = pytest.mark.newest  # JAX changes nothing here

TOOL = runpy.run_path(str(repository.ROOT / ".ci" / "release.py"))
FILES = ("pyproject.toml", "CHANGELOG.md", "CITATION.cff", "puzzles/__init__.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(repository.ROOT / name, tmp_path / name)
    return tmp_path


def test_a_release_installs_from_its_tag_and_the_branch_from_itself(checkout: Path) -> None:
    TOOL["point"](checkout, "v9.8.7", "v9.8.7")
    tagged = repository.repository(checkout)
    TOOL["point"](checkout, "main", "v9.8.7")
    later = repository.repository(checkout)
    assert tagged.install.endswith("@v9.8.7")
    assert later.install.endswith("@main")
    assert "/blob/v9.8.7/basics.ipynb" in tagged.badge("basics") == later.badge("basics")
    assert "/v9.8.7/diagrams/" in tagged.with_images("![](diagrams/a.svg)")


def test_versions_agree_after_a_release(checkout: Path) -> None:
    TOOL["set_version"](checkout, "9.8.7", "2030-01-02")
    assert '__version__ = "9.8.7"' in (checkout / "puzzles/__init__.py").read_text("utf-8")
    assert "version: 9.8.7" in (checkout / "CITATION.cff").read_text("utf-8")
    changelog = (checkout / "CHANGELOG.md").read_text("utf-8")
    before = (repository.ROOT / "CHANGELOG.md").read_text("utf-8")
    assert "## [Unreleased]\n\n## [9.8.7] - 2030-01-02\n" in changelog
    assert TOOL["section"](changelog, "9.8.7") == TOOL["section"](before, "Unreleased")


def test_a_version_is_released_once(checkout: Path) -> None:
    TOOL["set_version"](checkout, "9.8.7", "2030-01-02")
    with pytest.raises(TOOL["ReleaseError"], match=r"9\.8\.7 already"):
        TOOL["set_version"](checkout, "9.8.7", "2030-01-03")


def test_a_checkout_without_the_setting_is_refused(checkout: Path) -> None:
    path = checkout / "pyproject.toml"
    path.write_text(path.read_text("utf-8").replace('branch = "', 'other = "'), encoding="utf-8")
    with pytest.raises(TOOL["ReleaseError"], match="exactly one"):
        TOOL["point"](checkout, "main", "")


@pytest.mark.parametrize("version", ["v0.3.0", "0.3", ""])
def test_a_tag_is_no_version(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert TOOL["main"]([version]) == 1
    assert "is not a version" in capsys.readouterr().err


def test_the_package_and_the_citation_have_one_version() -> None:
    citation = (repository.ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {puzzles.__version__}\n" in citation
