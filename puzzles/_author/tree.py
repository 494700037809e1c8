"""Do a project's files fit together: names, rungs, notebooks, diagrams?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from puzzles._author.report import problem
from puzzles._author.repository import BuildError
from puzzles._ladders import front_page, ladder_module, ladders


def ladders_of(root: Path) -> tuple[str, ...]:
    """The ladders whose source lies in the project at `root`, in order."""
    return tuple(name for name in ladders() if _folder(name).is_relative_to(root))


def _folder(name: str) -> Path:
    return Path(str(ladder_module(name).__file__)).parent


def ladder_problems(name: str) -> Iterator[str]:
    """What is wrong in a ladder's `__init__.py` and folder, whether or not its rungs run."""
    yield from missing(name)
    module, page = ladder_module(name), front_page(name)
    for other in ladders():
        for rung in module.RUNGS if other != name else ():
            if rung in ladder_module(other).RUNGS:
                yield problem(f"{page}:1", "rung of two ladders", rung=rung, other=other)
    for path in sorted(_folder(name).glob("[!_]*.py")):
        if path.stem not in module.RUNGS:
            shown = page.removesuffix("__init__.py") + path.name
            yield problem(shown, "stray file", name=path.stem, page=page)


def missing(name: str) -> Iterator[str]:
    """What a ladder needs or names and does not have: without it nothing can be built."""
    module, at = ladder_module(name), f"{front_page(name)}:1"
    for needed in ("TITLE", "INTRO"):
        if not hasattr(module, needed):
            yield problem(at, "ladder needs", needed=needed)
    for rung in module.RUNGS:
        if not (_folder(name) / f"{rung}.py").exists():
            yield problem(at, "rung without a file", rung=rung)
    for rung in getattr(module, "PARTS", {}):
        if rung not in module.RUNGS:
            yield problem(at, "part without a rung", rung=rung)


def project_problems(root: Path, names: Sequence[str]) -> Iterator[str]:
    """Stray and stale files of the project at `root`, whose ladders are `names`."""
    for path in sorted(root.glob("*.ipynb")):
        if path.stem not in names:
            yield problem(path.name, "stray notebook", name=path.stem)
    if any(problem for name in names for problem in missing(name)):
        return  # of which nothing can be built
    from puzzles._author import notebook  # needs the author's extra

    try:
        for name in notebook.out_of_date(root, names):
            yield f"{name} is out of date: python -m puzzles build"
    except BuildError as error:
        yield str(error)
