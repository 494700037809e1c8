"""The address of this copy of the project, for badges, images and installs."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from puzzles._rules import home, to_author

ROOT = Path(__file__).resolve().parents[2]

_IMAGE = re.compile(r"""(!\[[^\]]*\]\(|<img\b[^>]*?\bsrc=["'])(?=diagrams/)""")

# Shared by all ladders. It must import all names that a puzzle's module imports, because imports
# before the first cell of a module do not reach a notebook.
_SETUP = (files("puzzles._author") / "setup.txt").read_text(encoding="utf-8")


class BuildError(Exception):
    """A module or a setting has a fault that stops the build; the text has the remedy."""


def at_line(file: str, error: Exception) -> str:
    """`file:line: message` of an error whose message begins with the line."""
    match = re.match(r"line (\d+): ", str(error))
    return f"{file}:{match[1]}: {str(error)[match.end() :]}" if match else f"{file}:1: {error}"


def project() -> Path:
    """The root of the project around the current folder; else this repository's.

    A project has a pyproject.toml with a table [tool.pallas-puzzles]: this repository, a fork of
    it, or another package that brings ladders of its own.
    """
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if "pallas-puzzles" in _settings(folder).get("tool", {}):
            return folder
    return ROOT


def _settings(root: Path) -> dict:
    """The tables of a folder's pyproject.toml; empty if there is no such file."""
    path = root / "pyproject.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def ladders_folder(root: Path) -> Path:
    """The folder of a project in which its ladders are: `package` under [tool.pallas-puzzles]."""
    own = _settings(root).get("tool", {}).get("pallas-puzzles", {})
    return root / own.get("package", "puzzles")


@dataclass(frozen=True)
class Repository:
    """The project's address and the refs in it.

    url: the address of a GitHub repository.
    branch: the ref that notebooks install from and load images from.
    release: the tag whose notebooks the badges open; "" if there is no release yet.
    """

    url: str
    branch: str
    release: str = ""

    @property
    def slug(self) -> str:
        """`owner/name`; BuildError if the address is not one of GitHub's."""
        match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", self.url)
        if match is None:
            raise BuildError(to_author("not_on_github", url=self.url))
        return match.group(1)

    def badge(self, ladder_name: str) -> str:
        """The badge, in Markdown, that opens a ladder's notebook in Colab."""
        colab = "https://colab.research.google.com"
        target = (
            f"{colab}/github/{self.slug}/blob/{self.release or self.branch}/{ladder_name}.ipynb"
        )
        return f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({target})"

    def with_images(self, markdown: str) -> str:
        """`markdown` with images under `diagrams/` by raw address, which Colab needs."""
        raw = f"https://raw.githubusercontent.com/{self.slug}/{self.branch}/"
        return _IMAGE.sub(lambda image: image.group() + raw, markdown)

    @property
    def install(self) -> str:
        """The requirement for `pip install`."""
        return f"git+https://github.com/{self.slug}@{self.branch}"


def repository(root: Path = ROOT) -> Repository:
    """The repository setting in `root`'s pyproject.toml; BuildError if it is missing."""
    if not (settings := _settings(root)):
        raise BuildError(to_author("no_project_here", root=root))
    try:
        url = settings["project"]["urls"]["Repository"]
        own = settings["tool"]["pallas-puzzles"]
        return Repository(url, own["branch"], own.get("release", ""))
    except KeyError as error:
        raise BuildError(to_author("setting_missing", error=error)) from None


def upstream() -> Repository:
    """The repository of this package: the setting in its clone, or else of its installation."""
    if (ROOT / "pyproject.toml").exists():
        return repository()
    return Repository(home(), "HEAD")


def setup_source(ladder: str, install: str = "", installed: str = "True") -> str:
    """The source of a setup cell, with the lines that the ladder in this package adds."""
    first, own = (getattr(sys.modules.get(ladder), name, "") for name in ("SETUP_FIRST", "SETUP"))
    lines = _SETUP.format(install=install, installed=installed, first=first).rstrip()
    return f"{lines}\n{own}".rstrip()
