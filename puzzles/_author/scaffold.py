"""`python -m puzzles new`: examples that pass `verify`, with a manual in comments."""

from __future__ import annotations

import ast
import keyword
import re
from pathlib import Path

from puzzles._author.repository import BuildError, ladders_folder, upstream
from puzzles._ladders import ENTRY_POINTS, find, folder_of, ladder_module, ladders
from puzzles._rules import to_author

EXAMPLE = Path(__file__).parent / "_example"
PROJECT = Path(__file__).parent / "_project"
_WARM_UP = "warm_up"
_MANUAL = re.compile(r"(?m)^ *# ✎.*\n(?: *#   \S.*\n)*")
_DRAWING = re.compile(r"# ```text\n.*?# ```\n", re.DOTALL)


def new_project(name: str, ladder_name: str, parent: Path) -> list[Path]:
    """Write a project called `name` into the folder `parent`: a package with one ladder."""
    root, first = parent / name, f"{ladder_name}_{_WARM_UP}"
    _check_name(name)
    _check_ladder(ladder_name, first)
    if root.exists():
        raise BuildError(to_author("path_exists", path=root))
    words = {
        "git+https://github.com/owner/pallas_puzzles": upstream().install,
        "my_project": name,
        "my-project": name.replace("_", "-"),
        "my_ladder": ladder_name,
        "my_puzzle": first,
    }
    written = []
    for path in sorted(PROJECT.rglob("*")):
        if path.is_dir() or path.suffix == ".pyc":
            continue
        text = path.read_text(encoding="utf-8")
        for old, new in words.items():
            text = text.replace(old, new)
        written.append(root / path.relative_to(PROJECT).as_posix().replace("my_project", name))
        written[-1].parent.mkdir(parents=True, exist_ok=True)
        _write(written[-1], text)
    written += [path for path in new_ladder(ladder_name, root) if path not in written]
    puzzle = root / name / ladder_name / f"{first}.py"
    picture = to_author("picture", ladder=ladder_name, puzzle=first)
    _write(puzzle, _DRAWING.sub(lambda _: picture, puzzle.read_text(encoding="utf-8")))
    return written


def new_ladder(name: str, root: Path, first: str | None = None) -> list[Path]:
    """Write a ladder called `name`, with one puzzle, into the project at `root`."""
    first = first or f"{name}_{_WARM_UP}"
    _check_ladder(name, first)
    folder = ladders_folder(root)
    if not (folder / "__init__.py").exists():
        raise BuildError(to_author("no_package", folder=folder))
    (folder / name).mkdir()
    front = (EXAMPLE / "__init__.py").read_text(encoding="utf-8")
    front = front.replace("Example", name.replace("_", " ").capitalize())
    last = max((getattr(ladder_module(ladder), "ORDER", 0) for ladder in ladders()), default=0)
    front = re.sub(r"(?m)^ORDER = \d+", f"ORDER = {last + 1}", front)
    _write(folder / name / "__init__.py", with_puzzle(front, first))
    written = [folder / name / "__init__.py", *_write_puzzle(folder / name, first)]
    if folder.name != "puzzles":
        path = root / "pyproject.toml"
        _write(path, with_entry_point(path.read_text(encoding="utf-8"), name, folder.name))
        written.append(path)
    return written


def new_puzzle(
    ladder_name: str, name: str, like: str | None = None, bare: bool = False
) -> list[Path]:
    """Write a puzzle called `name` as the last puzzle of a ladder.

    like: a puzzle to copy instead of the example. bare: leave the manual out.
    """
    _check_name(name)
    folder = folder_of(ladder_name)
    front, path = folder / "__init__.py", folder / f"{name}.py"
    _check_free(name)
    if path.exists():
        raise BuildError(to_author("puzzle_exists", path=path, name=name))
    text = with_puzzle(front.read_text(encoding="utf-8"), name)
    written = _write_puzzle(folder, name, like, bare)
    _write(front, text)
    return [*written, front]


def with_entry_point(settings: str, name: str, package: str) -> str:
    """The text of a pyproject.toml with an entry point for a ladder outside `puzzles`."""
    table = f'[project.entry-points."{ENTRY_POINTS}"]\n'
    line = f'{name} = "{package}.{name}"\n'
    if table in settings:
        return settings.replace(table, table + line)
    return f"{settings.rstrip()}\n\n{table}{line}"


def with_puzzle(front: str, name: str) -> str:
    """A ladder's `__init__.py` with `name` added to its PUZZLES."""
    for node in ast.parse(front).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PUZZLES":
            puzzles = [*ast.literal_eval(node.value), name]
            lines = front.splitlines(keepends=True)
            new = "".join(f'    "{puzzle}",\n' for puzzle in puzzles)
            lines[node.lineno - 1 : node.end_lineno] = [f"PUZZLES = (\n{new})\n"]
            return "".join(lines)
    raise BuildError(to_author("no_puzzles", name=name))


def _write_puzzle(
    folder: Path, name: str, like: str | None = None, bare: bool = False
) -> list[Path]:
    """Write a puzzle's module and its record."""
    paths = [folder / f"{name}{suffix}" for suffix in (".py", ".toml")]
    for path in paths:
        _write(path, puzzle_text(name, like, bare, path.suffix))
    return paths


def puzzle_text(name: str, like: str | None = None, bare: bool = False, suffix: str = ".py") -> str:
    """The text of the example, or of the puzzle `like`, with another name.

    bare: leave the example's manual out, except for a comment at the top.
    suffix: ".toml" for the text of the record.
    """
    path = (find(like).path if like else EXAMPLE / _WARM_UP).with_suffix(suffix)
    old = rf"(?<![\w/]){like or _WARM_UP}(?=\b|_)"  # not in the path of a picture
    text = re.sub(old, name, path.read_text(encoding="utf-8"))
    if like or bare:
        origin = f"a copy of {like}" if like else "the scaffold's example"
        text = f"# ✎ Still {origin}: make it yours.\n{_MANUAL.sub('', text)}"
    return text


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise BuildError(to_author("not_a_name", name=name))


def _check_ladder(name: str, first: str) -> None:
    _check_name(name)
    if name in ladders():
        raise BuildError(to_author("ladder_exists", name=name))
    _check_name(first)
    _check_free(first)


def _check_free(name: str) -> None:
    for ladder_name in ladders():
        if name in ladder_module(ladder_name).PUZZLES:
            raise BuildError(to_author("name_taken", ladder=ladder_name, name=name))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
