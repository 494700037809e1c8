"""How ladders and their puzzles are found: this package's own, and those of others."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import pkgutil
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from puzzles._puzzle import Puzzle

ENTRY_POINTS = "pallas_puzzles.ladders"
MANY = 12  # names that are too many to read in a sentence


class UnknownPuzzleError(LookupError):
    """No puzzle or ladder has this name; the text suggests the nearest one."""


@cache
def _ladder_modules() -> dict[str, ModuleType]:
    found = {m.__name__.rpartition(".")[2]: m for m in (*_brought_ladders(), *_own_ladders())}
    return dict(sorted(found.items(), key=lambda item: (getattr(item[1], "ORDER", 99), item[0])))


def _own_ladders() -> Iterator[ModuleType]:
    """Subpackages of this package that have RUNGS."""
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if info.ispkg and not info.name.startswith("_"):
            module = importlib.import_module(f"{__package__}.{info.name}")
            if hasattr(module, "RUNGS"):
                yield module


def _brought_ladders() -> Iterator[ModuleType]:
    """Ladders of other installed packages; one that cannot be loaded is a warning, no more."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            module = entry.load()
            if not hasattr(module, "RUNGS"):
                raise AttributeError(f"{entry.value} has no RUNGS")
        except Exception as error:
            warnings.warn(
                f"the ladder {entry.name!r} of another package cannot be loaded: {error!r}. Mend "
                f"or remove its entry point in the group {ENTRY_POINTS}.",
                stacklevel=2,
            )
        else:
            yield module


def ladder_module(name: str) -> ModuleType:
    """The ladder's package, which holds RUNGS, TITLE and INTRO."""
    modules = _ladder_modules()
    if name not in modules:
        raise UnknownPuzzleError(f"no ladder is called {name!r}{_nearest(name, list(modules))}")
    return modules[name]


def folder_of(name: str) -> Path:
    """Where a ladder's modules lie."""
    return Path(str(ladder_module(name).__file__)).parent


def front_page(name: str) -> str:
    """A ladder's `__init__.py`, as messages name it."""
    return f"{ladder_module(name).__name__.replace('.', '/')}/__init__.py"


def ladders() -> tuple[str, ...]:
    """The names of all ladders, in the order in which they are meant to be climbed."""
    return tuple(_ladder_modules())


def ladder(name: str) -> tuple[Puzzle, ...]:
    """The puzzles of a ladder, in order."""
    return tuple(_rung(ladder_module(name), rung) for rung in ladder_module(name).RUNGS)


def find(name: str) -> Puzzle:
    """The puzzle called `name`; UnknownPuzzleError names the nearest one otherwise."""
    return _rung(ladder_module(ladder_of(name)), name)


def ladder_of(name: str) -> str:
    """The ladder of the puzzle called `name`, whose module is not imported; UnknownPuzzleError."""
    known = {rung: one for one, module in _ladder_modules().items() for rung in module.RUNGS}
    if name in known:
        return known[name]
    raise UnknownPuzzleError(f"no puzzle is called {name!r}{_nearest(name, list(known))}")


def _rung(ladder_package: ModuleType, rung: str) -> Puzzle:
    return importlib.import_module(f"{ladder_package.__name__}.{rung}").PUZZLE


def _nearest(name: str, known: list[str]) -> str:
    """The remedy for an unknown name: the first known one of which a word is most like it.

    Where none is like it, all names if they are few, else what kind of name is meant.
    """
    words = {word: one for one in reversed(known) for word in (*one.split("_"), one)}
    if near := difflib.get_close_matches(name, words, 1):
        return f"; did you mean {words[near[0]]!r}?"
    if len(known) > MANY:
        return f"; a puzzle is called as the function that you write, like {known[0]!r}"
    return f"; there are {', '.join(known)}"
