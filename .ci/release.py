"""Make a release: `make release VERSION=0.3.0`. RELEASING.md has the steps around it."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class ReleaseError(Exception):
    """A state of the checkout from which no release can be made; the text has the remedy."""


def replaced(text: str, pattern: str, line: str) -> str:
    """`text` with the only line that matches `pattern` replaced; ReleaseError if there is none."""
    text, count = re.subn(pattern, lambda _: line, text, flags=re.MULTILINE)
    if count != 1:
        raise ReleaseError(f"{count} lines match {pattern!r}; there has to be exactly one")
    return text


def point(root: Path, branch: str, release: str) -> None:
    """Set the ref that notebooks install from, and the tag that badges open, in pyproject.toml."""
    path = root / "pyproject.toml"
    text = re.sub(r"^release = .*\n", "", path.read_text("utf-8"), flags=re.MULTILINE)
    lines = f'branch = "{branch}"\nrelease = "{release}"'
    path.write_text(replaced(text, r'^branch = ".*"$', lines), encoding="utf-8")


def set_version(root: Path, version: str, day: str) -> None:
    """Set the version in the package, the citation and the changelog.

    Args:
        version: such as "0.3.0".
        day: the date of the release, such as "2026-12-01".

    Raises:
        ReleaseError: the changelog has no section *Unreleased*, or has this version already.
    """
    for name, pattern, line in (
        ("puzzles/__init__.py", r'^__version__ = ".*"$', f'__version__ = "{version}"'),
        ("CITATION.cff", r"^version: .*$", f"version: {version}"),
    ):
        path = root / name
        path.write_text(replaced(path.read_text("utf-8"), pattern, line), encoding="utf-8")
    path = root / "CHANGELOG.md"
    text = path.read_text("utf-8")
    if f"## [{version}]" in text:
        raise ReleaseError(f"CHANGELOG.md has a section {version} already")
    heading = f"## [Unreleased]\n\n## [{version}] - {day}"
    path.write_text(replaced(text, r"^## \[Unreleased\]$", heading), encoding="utf-8")


def section(text: str, version: str) -> str:
    """The section of a changelog about one version, without its heading."""
    found = re.search(rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## \[|\Z)", text, re.M | re.S)
    if found is None:
        raise ReleaseError(f"CHANGELOG.md has no section {version}")
    return found[1].strip()


def run(*command: str) -> str:
    """What a command prints; CalledProcessError if it fails."""
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def release(version: str) -> None:
    """Commit and tag a release, and point the branch's notebooks back to the branch."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"{version!r} is not a version such as 0.3.0")
    if run("git", "status", "--porcelain"):
        raise ReleaseError("the checkout has changes: commit or stash them first")
    tag, branch = f"v{version}", run("git", "rev-parse", "--abbrev-ref", "HEAD")
    set_version(ROOT, version, datetime.date.today().isoformat())
    point(ROOT, tag, tag)
    run("make", "build")
    run("git", "commit", "-qam", f"release: {tag}")
    run("git", "tag", "-a", tag, "-m", f"Pallas Puzzles {version}")
    point(ROOT, branch, tag)
    run("make", "build")
    run("git", "commit", "-qam", f"release: notebooks install from {branch} again")
    print(f"{tag} is made. Read it, then: git push --follow-tags origin {branch}")


def main(arguments: list[str]) -> int:
    """Make a release, or print the notes of one with `--notes VERSION`."""
    try:
        if arguments[:1] == ["--notes"]:
            print(section((ROOT / "CHANGELOG.md").read_text("utf-8"), arguments[1]))
        elif len(arguments) == 1:
            release(arguments[0])
        else:
            raise ReleaseError("give a version: make release VERSION=0.3.0")
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
