"""`python -m puzzles new`: what works at once, with its manual in comments."""

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
_RUNG = "warm_up"
_MANUAL = re.compile(r"(?m)^ *# ✎.*\n(?: *#   \S.*\n)*")
_DRAWING = re.compile(r"# ```text\n.*?# ```\n", re.DOTALL)


def new_project(name: str, ladder_name: str, beside: Path) -> list[Path]:
    """Write a project called `name` into the folder `beside`: a package with one ladder."""
    root, first = beside / name, f"{ladder_name}_{_RUNG}"
    _check_name(name)
    _check_ladder(ladder_name, first)
    if root.exists():
        raise BuildError(to_author("path_exists", path=root))
    words = {
        "git+https://github.com/owner/pallas_puzzles": upstream().install,
        "my_project": name,
        "my-project": name.replace("_", "-"),
        "my_ladder": ladder_name,
        "my_rung": first,
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
    rung = root / name / ladder_name / f"{first}.py"
    picture = to_author("picture", ladder=ladder_name, rung=first)
    _write(rung, _DRAWING.sub(lambda _: picture, rung.read_text(encoding="utf-8")))
    return written


def new_ladder(name: str, root: Path, first: str | None = None) -> list[Path]:
    """Write a ladder called `name`, with one rung, into the project at `root`."""
    first = first or f"{name}_{_RUNG}"
    _check_ladder(name, first)
    folder = ladders_folder(root)
    if not (folder / "__init__.py").exists():
        raise BuildError(to_author("no_package", folder=folder))
    (folder / name).mkdir()
    front = (EXAMPLE / "__init__.py").read_text(encoding="utf-8")
    front = front.replace("Example", name.replace("_", " ").capitalize())
    last = max((getattr(ladder_module(one), "ORDER", 0) for one in ladders()), default=0)
    front = re.sub(r"(?m)^ORDER = \d+", f"ORDER = {last + 1}", front)
    _write(folder / name / "__init__.py", with_rung(front, first))
    written = [folder / name / "__init__.py", *_write_rung(folder / name, first)]
    if folder.name != "puzzles":
        path = root / "pyproject.toml"
        _write(path, with_entry_point(path.read_text(encoding="utf-8"), name, folder.name))
        written.append(path)
    return written


def new_puzzle(
    ladder_name: str, name: str, like: str | None = None, bare: bool = False
) -> list[Path]:
    """Write a puzzle called `name` as the last rung of a ladder.

    like: a rung to copy instead of the example. bare: without the manual.
    """
    _check_name(name)
    folder = folder_of(ladder_name)
    front, path = folder / "__init__.py", folder / f"{name}.py"
    _check_free(name)
    if path.exists():
        raise BuildError(to_author("rung_exists", path=path, name=name))
    text = with_rung(front.read_text(encoding="utf-8"), name)
    written = _write_rung(folder, name, like, bare)
    _write(front, text)
    return [*written, front]


def with_entry_point(settings: str, name: str, package: str) -> str:
    """A pyproject.toml in which a ladder of a package outside `puzzles` can be found."""
    table = f'[project.entry-points."{ENTRY_POINTS}"]\n'
    line = f'{name} = "{package}.{name}"\n'
    if table in settings:
        return settings.replace(table, table + line)
    return f"{settings.rstrip()}\n\n{table}{line}"


def with_rung(front: str, name: str) -> str:
    """A ladder's `__init__.py` with `name` added to its RUNGS."""
    for node in ast.parse(front).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RUNGS":
            rungs = [*ast.literal_eval(node.value), name]
            lines = front.splitlines(keepends=True)
            new = "".join(f'    "{rung}",\n' for rung in rungs)
            lines[node.lineno - 1 : node.end_lineno] = [f"RUNGS = (\n{new})\n"]
            return "".join(lines)
    raise BuildError(to_author("no_rungs", name=name))


def _write_rung(folder: Path, name: str, like: str | None = None, bare: bool = False) -> list[Path]:
    """Write a puzzle's module and its record."""
    paths = [folder / f"{name}{suffix}" for suffix in (".py", ".toml")]
    for path in paths:
        _write(path, rung_text(name, like, bare, path.suffix))
    return paths


def rung_text(name: str, like: str | None = None, bare: bool = False, suffix: str = ".py") -> str:
    """The text of the example, or of a rung like the new one, under another name.

    bare: without the example's manual; one comment is left, as in a copy. suffix: ".toml" for the
    text of its record.
    """
    path = (find(like).path if like else EXAMPLE / _RUNG).with_suffix(suffix)
    old = rf"(?<![\w/]){like or _RUNG}(?=\b|_)"  # not in the path of a picture
    text = re.sub(old, name, path.read_text(encoding="utf-8"))
    if like or bare:
        what = f"a copy of {like}" if like else "the scaffold's example"
        text = f"# ✎ Still {what}: make it yours.\n{_MANUAL.sub('', text)}"
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
        if name in ladder_module(ladder_name).RUNGS:
            raise BuildError(to_author("name_taken", ladder=ladder_name, name=name))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
