"""Lookup of ladders and puzzles, in this package and in other installed packages."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import pkgutil
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from puzzles._puzzle import Puzzle

ENTRY_POINTS = "pallas_puzzles.ladders"
MANY = 12  # a message lists fewer names than that


class UnknownPuzzleError(LookupError):
    """No puzzle or ladder has this name; the text suggests the most similar name."""


@cache
def _ladder_modules() -> dict[str, ModuleType]:
    modules = {m.__name__.rpartition(".")[2]: m for m in (*_brought_ladders(), *_own_ladders())}
    return dict(sorted(modules.items(), key=lambda item: (getattr(item[1], "ORDER", 99), item[0])))


def _own_ladders() -> Iterator[ModuleType]:
    """Subpackages of this package that have PUZZLES."""
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if info.ispkg and not info.name.startswith("_"):
            module = importlib.import_module(f"{__package__}.{info.name}")
            if hasattr(module, "PUZZLES"):
                yield module


def _brought_ladders() -> Iterator[ModuleType]:
    """Ladders of other installed packages; a ladder that fails to load becomes a warning."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            module = entry.load()
            if not hasattr(module, "PUZZLES"):
                raise AttributeError(f"{entry.value} has no PUZZLES")
        except Exception as error:
            warnings.warn(
                f"the ladder {entry.name!r} of another package cannot be loaded: {error!r}. Mend "
                f"or remove its entry point in the group {ENTRY_POINTS}.",
                stacklevel=2,
            )
        else:
            yield module


def ladder_module(name: str) -> ModuleType:
    """The ladder's package, which holds PUZZLES, TITLE and INTRO."""
    modules = _ladder_modules()
    if name not in modules:
        raise UnknownPuzzleError(f"no ladder is called {name!r}{_nearest(name, list(modules))}")
    return modules[name]


def folder_of(name: str) -> Path:
    """The folder of a ladder's modules."""
    return Path(str(ladder_module(name).__file__)).parent


def front_page(name: str) -> str:
    """The path of a ladder's `__init__.py`, for messages."""
    return f"{ladder_module(name).__name__.replace('.', '/')}/__init__.py"


def ladders() -> tuple[str, ...]:
    """The names of all ladders, in the order in which to solve them."""
    return tuple(_ladder_modules())


def ladder(name: str) -> tuple[Puzzle, ...]:
    """The puzzles of a ladder, in order."""
    return tuple(_puzzle(ladder_module(name), puzzle) for puzzle in ladder_module(name).PUZZLES)


def find(name: str) -> Puzzle:
    """The puzzle called `name`; UnknownPuzzleError names the most similar name otherwise."""
    return _puzzle(ladder_module(ladder_of(name)), name)


def ladder_of(name: str) -> str:
    """The ladder of the puzzle called `name`, or UnknownPuzzleError; imports no puzzle."""
    owners = {puzzle: owner for owner, m in _ladder_modules().items() for puzzle in m.PUZZLES}
    if name in owners:
        return owners[name]
    raise UnknownPuzzleError(f"no puzzle is called {name!r}{_nearest(name, list(owners))}")


def on_main_road(names: Sequence[str]) -> list[str]:
    """The puzzles among `names` that a ladder's `MAIN_ROAD` lists; the others are side roads."""
    return [name for name in names if name in _main_roads()]


def star(name: str) -> str:
    """The mark of a puzzle on the main road, after its heading; "" for all others."""
    return " ★" if name in _main_roads() else ""


def numbered_heading(number: int, heading: str, name: str) -> str:
    """A puzzle's heading as its notebook shows it, with its number and its mark."""
    return f"{number}. {heading}{star(name)}"


@cache
def _main_roads() -> frozenset[str]:
    return frozenset().union(*(getattr(m, "MAIN_ROAD", ()) for m in _ladder_modules().values()))


def _puzzle(ladder_package: ModuleType, name: str) -> Puzzle:
    return importlib.import_module(f"{ladder_package.__name__}.{name}").PUZZLE


def _nearest(name: str, names: list[str]) -> str:
    """The remedy for an unknown name: the first of `names` with a similar word.

    If no name is similar: all `names` if there are few, otherwise an example.
    """
    words = {word: full for full in reversed(names) for word in (*full.split("_"), full)}
    if near := difflib.get_close_matches(name, words, 1):
        return f"; did you mean {words[near[0]]!r}?"
    if len(names) > MANY:
        return f"; a puzzle is called as the function that you write, like {names[0]!r}"
    return f"; there are {', '.join(names)}"
