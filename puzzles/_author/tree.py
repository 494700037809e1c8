"""Do a project's files fit together: names, rungs, notebooks, diagrams?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from puzzles._author.repository import BuildError, ladders_folder
from puzzles._ladders import (
    ENTRY_POINTS,
    UnknownPuzzle,
    find,
    front_page,
    ladder_module,
    ladders,
)


def ladders_of(root: Path) -> tuple[str, ...]:
    """The ladders whose source lies in the project at `root`, in order."""
    inside = [n for n in ladders() if Path(str(ladder_module(n).__file__)).is_relative_to(root)]
    return tuple(inside)


def unlisted(root: Path, name: str) -> str | None:
    """That a ladder's folder is there and Python does not find it, or None."""
    folder = ladders_folder(root)
    if name in ladders() or not (folder / name / "__init__.py").exists() or name.startswith("_"):
        return None
    if folder.name == "puzzles":
        return f"{folder.name}/{name}/__init__.py has no RUNGS, so it is no ladder: add them"
    return (
        f"{folder.name}/{name} is there, and no entry point names it: add `{name} = "
        f'"{folder.name}.{name}"` under [project.entry-points."{ENTRY_POINTS}"] in '
        "pyproject.toml, then pip install -e ."
    )


def front_problems(name: str) -> Iterator[str]:
    """What is wrong in a ladder's `__init__.py`, whether or not its rungs can be imported."""
    module, page = ladder_module(name), front_page(name)
    for needed in ("TITLE", "INTRO"):
        if not hasattr(module, needed):
            yield f"{page}:1: a ladder needs {needed}: say what it leads to"
    for earlier in getattr(module, "AFTER", ()):
        try:
            ladder_module(earlier)
        except UnknownPuzzle as error:
            yield f"{_line(name, 'AFTER')}: AFTER names no ladder: {error}"
    for other in ladders():
        if other != name and _order(name) and _order(name) == _order(other):
            yield f"{_line(name, 'ORDER')}: {other} has this ORDER, too: give each ladder its own"
    yield from duplicates([name])


def _order(name: str) -> tuple[str, int] | None:
    """A ladder's place among those of its package, if it says one."""
    module = ladder_module(name)
    order = getattr(module, "ORDER", None)
    return None if order is None else (module.__name__.rpartition(".")[0], order)


def _line(name: str, needle: str) -> str:
    """`file:line` of the first line of a ladder's `__init__.py` that holds `needle`."""
    text = Path(str(ladder_module(name).__file__)).read_text(encoding="utf-8")
    lines = (n for n, line in enumerate(text.splitlines(), 1) if needle in line)
    return f"{front_page(name)}:{next(lines, 1)}"


def tree_problems(root: Path, names: Sequence[str]) -> Iterator[str]:
    """What is wrong with the project at `root` as a whole, whose ladders are `names`."""
    wrong = [problem for name in names for problem in (*front_problems(name), *missing(name))]
    yield from wrong
    yield from strays(root, names)
    if not wrong:
        yield from _stale(root, names)


def strays(root: Path, names: Sequence[str]) -> Iterator[str]:
    """Files that belong to no rung and no ladder."""
    for name in names:
        yield from stray_files(root, name)
    yield from _stray_notebooks(root, names)
    yield from _stray_diagrams(root, names)


def duplicates(names: Sequence[str] | None = None) -> Iterator[str]:
    """Rung names that occur twice: `check` finds a puzzle by its function's name alone.

    names: the ladders whose second puzzles are told, all by default.
    """
    first: dict[str, str] = {}
    for name in ladders():
        for rung in ladder_module(name).RUNGS:
            if rung in first and (names is None or name in names):
                yield (
                    f"{front_page(name)}: a second puzzle called '{rung}', which {first[rung]} has "
                    "already: rename one, since check() finds a puzzle by its name"
                )
            first.setdefault(rung, name)


def absent(name: str, rung: str) -> str:
    """That a ladder names a rung which has no module."""
    return (
        f"{front_page(name)}: RUNGS names '{rung}', and there is no {rung}.py: write it, or "
        "take it out"
    )


def missing(name: str) -> Iterator[str]:
    """What a ladder names and does not have."""
    folder = Path(str(ladder_module(name).__file__)).parent
    for rung in ladder_module(name).RUNGS:
        if not (folder / f"{rung}.py").exists():
            yield absent(name, rung)
        elif find(rung).name != rung:
            path = f"{front_page(name).removesuffix('__init__.py')}{rung}.py"
            yield (
                f"{path}: its puzzle is called '{find(rung).name}': give file and function one name"
            )
    for rung in getattr(ladder_module(name), "PARTS", {}):
        if rung not in ladder_module(name).RUNGS:
            yield f"{front_page(name)}: PARTS begins a part at '{rung}', which is not among RUNGS"


def stray_files(root: Path, name: str) -> Iterator[str]:
    """Files in a ladder's folder that are none of its rungs."""
    folder = Path(str(ladder_module(name).__file__)).parent
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__pycache__")) or (
            path.suffix == ".py" and path.name.startswith("_")
        ):
            continue
        if path.suffix != ".py" or path.stem not in ladder_module(name).RUNGS:
            yield (
                f"{path.relative_to(root)}: a stray file: add '{path.stem}' to RUNGS in "
                f"{front_page(name)}, give a shared module a name that begins with _, or delete it"
            )


def _stray_notebooks(root: Path, names: Sequence[str]) -> Iterator[str]:
    for path in sorted(root.glob("*.ipynb")):
        if path.stem not in names:
            yield f"{path.name}: a stray notebook: no ladder is called '{path.stem}'; delete it"


def _stray_diagrams(root: Path, names: Sequence[str]) -> Iterator[str]:
    texts = {name: [find(rung).text for rung in ladder_module(name).RUNGS] for name in names}
    for path in sorted(root.glob("diagrams/*/*.*")):
        shown = path.relative_to(root).as_posix()
        if path.suffix in (".svg", ".png") and not any(
            f"]({shown})" in text for text in texts.get(path.parent.name, ())
        ):
            yield (
                f"{shown}: a stray diagram: no rung of {path.parent.name} shows it; link "
                "or delete it"
            )


def _stale(root: Path, names: Sequence[str]) -> Iterator[str]:
    try:
        from puzzles._author import notebook
    except ImportError as error:
        yield f"the notebooks cannot be checked: {error}; pip install 'pallas-puzzles[author]'"
        return
    try:
        for name in notebook.out_of_date(root, names):
            yield f"{name} is out of date: python -m puzzles build"
    except BuildError as error:
        yield str(error)
