"""`python -m puzzles new`: a ladder or a puzzle that works at once, with its manual in comments."""

from __future__ import annotations

import ast
import keyword
import re
from pathlib import Path

from puzzles._author.repository import BuildError, ladders_folder
from puzzles._ladders import ENTRY_POINTS, ladder_module, ladders

EXAMPLE = Path(__file__).parent / "_example"
_RUNG = "warm_up"
_FACTS = """\
# What the prose of this ladder states, word for word, and where it is from: `source` is a URL, or a
# file of JAX with the function's name; or `test` is the test that shows it, file::function.
"""
_FACT = """\
says = "A kernel sees one block at a time."
source = "https://docs.jax.dev/en/latest/pallas/grid_blockspec.html (BlockSpec)"
"""


def new_ladder(name: str, root: Path, first: str | None = None) -> list[Path]:
    """Write a ladder called `name`, with one rung, into the project at `root`."""
    _check_name(name)
    folder = ladders_folder(root)
    if name in ladders() or (folder / name).exists():
        raise BuildError(f"there is a ladder called '{name}' already: choose another name")
    if not (folder / "__init__.py").exists():
        raise BuildError(
            f"{folder} is no Python package: name yours as `package` under "
            "[tool.pallas-puzzles] in pyproject.toml, and give it an __init__.py"
        )
    first = first or f"{name}_{_RUNG}"
    _check_name(first)
    _check_free(first)
    (folder / name).mkdir()
    title = name.replace("_", " ").capitalize()
    front = (EXAMPLE / "__init__.py").read_text(encoding="utf-8").replace("Example", title)
    _write(folder / name / "__init__.py", with_rung(front, first))
    _write(folder / name / f"{first}.py", rung_text(first))
    written = [folder / name / "__init__.py", folder / name / f"{first}.py"]
    return [*written, _with_fact(root / "tests" / "facts" / f"{name}.toml", first)]


def new_puzzle(ladder_name: str, name: str) -> list[Path]:
    """Write a puzzle called `name` as the last rung of a ladder."""
    _check_name(name)
    front = Path(str(ladder_module(ladder_name).__file__))
    path = front.parent / f"{name}.py"
    _check_free(name)
    if path.exists():
        raise BuildError(f"{path} exists: choose another name, or add '{name}' to RUNGS yourself")
    text = with_rung(front.read_text(encoding="utf-8"), name)
    _write(path, rung_text(name))
    _write(front, text)
    root = front.parents[ladder_module(ladder_name).__name__.count(".") + 1]
    return [path, front, _with_fact(root / "tests" / "facts" / f"{ladder_name}.toml", name)]


def _with_fact(path: Path, rung: str) -> Path:
    """Add to a ladder's list of facts the one that the example's prose states."""
    text = path.read_text(encoding="utf-8") if path.exists() else _FACTS
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, f'{text.rstrip()}\n\n[[fact]]\nrung = "{rung}"\n{_FACT}')
    return path


def entry_point(name: str, root: Path) -> str | None:
    """The lines that pyproject.toml needs for a ladder outside the package `puzzles`, or None."""
    folder = ladders_folder(root)
    if folder.name == "puzzles":
        return None
    value = f'{name} = "{folder.name}.{name}"'
    return f'[project.entry-points."{ENTRY_POINTS}"]\n{value}'


def with_rung(front: str, name: str) -> str:
    """A ladder's `__init__.py` with `name` added to its RUNGS."""
    for node in ast.parse(front).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RUNGS":
            rungs = [*ast.literal_eval(node.value), name]
            lines = front.splitlines(keepends=True)
            new = "".join(f'    "{rung}",\n' for rung in rungs)
            lines[node.lineno - 1 : node.end_lineno] = [f"RUNGS = (\n{new})\n"]
            return "".join(lines)
    raise BuildError(f"no tuple RUNGS = (...) in the ladder's __init__.py: add '{name}' yourself")


def rung_text(name: str) -> str:
    """The example's text with another name."""
    text = (EXAMPLE / f"{_RUNG}.py").read_text(encoding="utf-8")
    return re.sub(rf"\b{_RUNG}(?=\b|_)", name, text)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise BuildError(
            f"'{name}' cannot name a Python function as this project writes them: use lower case "
            "and underscores, as in 'layer_norm'"
        )


def _check_free(name: str) -> None:
    for ladder_name in ladders():
        if name in ladder_module(ladder_name).RUNGS:
            raise BuildError(
                f"the ladder {ladder_name} has a puzzle called '{name}', and check() finds "
                "a puzzle by its name: choose another"
            )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
