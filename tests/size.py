"""`make size`: the size of the engine, next to its limits.

Lines are counted in Python files, with blank lines and comments. Names of `jax._src` are counted if
the engine imports them, reads them from a module or writes them as a string. A patch is a call of
`setattr`, or an assignment to an attribute in `_jax.py`, the only file with private names of JAX. A
recursion is a function that reads `.eqns` and calls itself through functions of its file or through
methods of a subclass; four are intended: to visit, rewrite, run and compare programs.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from puzzles._launch import Launch

ROOT = Path(__file__).parents[1]
PRIVATE = "jax._src."
# The files about several devices.
DEVICES = (
    "_program/mapped.py", "_simulator/clocks.py", "_simulator/device.py", "_simulator/devices.py",
    "_simulator/mesh.py", "_simulator/topology.py", "_simulator/turns.py", "_simulator/wire.py",
)  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A number that should fall.

    limit: the goal. ratchet: the last value, and the upper bound; lower it when the number falls.
    found: the names of the counted things, if they have names.
    """

    what: str
    count: int
    limit: int
    ratchet: int
    found: Iterable[str] = ()


def engine() -> dict[str, str]:
    """The text of each Python file of the engine by its path below `puzzles/`."""
    folder = ROOT / "puzzles"
    files = sorted([*folder.glob("_*.py"), *folder.glob("_*/*.py"), *folder.glob("_judge/*/*.py")])
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}


def wings() -> Counter[str]:
    """Lines of each wing; those of modules that stand alone are summed under "flat"."""
    lines: Counter[str] = Counter()
    for path, text in engine().items():
        lines[path.partition("/")[0] if "/" in path else "flat"] += text.count("\n")
    return lines


def private_names(text: str) -> set[str]:
    """The names of `jax._src` that a file uses, with their modules."""
    nodes = list(ast.walk(ast.parse(text)))
    strings = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
    names = {one for one in strings if one.startswith(PRIVATE)}
    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith(PRIVATE):
            continue
        for alias in node.names:
            path, own = f"{node.module}.{alias.name}", alias.asname or alias.name
            held = getattr(import_module(str(node.module)), alias.name)
            if not isinstance(held, ModuleType):
                names.add(path)
            else:  # attributes of the module, by name or in a string
                read = re.findall(rf'\b{own}(?:\.|, ")(\w+)', text)
                names |= {f"{path}.{name}" for name in read}
    return {name.removeprefix(PRIVATE) for name in names}


def patches(text: str, of_jax: bool) -> set[str]:
    """The assignments to attributes of JAX in a file. of_jax: True for `_jax.py`."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Assign) and of_jax:
            changed = [one for one in node.targets if isinstance(one, ast.Attribute)]
            found |= {ast.unparse(one) for one in changed}
    return found


def recursions(text: str) -> set[str]:
    """The functions of a file that read `.eqns` and call themselves, directly or not."""
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    names = {function.name for function in functions}
    read = {function.name: _read(function) for function in functions}
    uses = {name: read[name] & names for name in names}
    uses |= {name: names for name in names if "NotImplementedError" in read[name]}
    for _ in names:
        uses = {name: used.union(*(uses[one] for one in used)) for name, used in uses.items()}
    return {name for name in names if "eqns" in read[name] and name in uses[name]}


def _read(node: ast.AST) -> set[str]:
    """Names and attributes in a function, without those of functions that are defined within it."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef):
            found |= {getattr(child, "id", ""), getattr(child, "attr", "")} | _read(child)
    return found


@cache
def measures() -> list[Measure]:
    """All measures."""
    files = engine()
    private = {name for text in files.values() for name in private_names(text)}
    patched = {one for path, text in files.items() for one in patches(text, path == "_jax.py")}
    walked = {f"{path}:{name}" for path, text in files.items() for name in recursions(text)}
    lines, devices = wings(), 0
    examine = lines.pop("_examine")
    for path in DEVICES:
        lines[path.partition("/")[0]] -= files[path].count("\n")
        devices += files[path].count("\n")
    fields = Launch.__dataclass_fields__
    tests = sum(one.read_text("utf-8").count("\n") for one in (ROOT / "tests").rglob("*.py"))
    return [
        Measure("lines of the engine, those below aside", lines.total(), 13_300, 18_470),
        Measure("lines of _examine", examine, 1_150, 1_150),
        Measure("lines of several devices", devices, 700, 1_261),
        Measure("lines of tests", tests, 14_000, 22_175),
        Measure("names of jax._src", len(private), 16, 13, sorted(private)),
        Measure("patches of JAX", len(patched), 4, 4, sorted(patched)),
        Measure("fields of Launch", len(fields), 14, 14, fields),
        Measure("recursions over .eqns", len(walked), 4, 4, sorted(walked)),
    ]


def main() -> None:
    """Print the measures, with the names of the counted things."""
    for wing, lines in wings().items():
        print(f"{wing:24}{lines:7,}")
    for measure in measures():
        print(f"{measure.what:24}{measure.count:7,}   to be at most {measure.limit:,}")
        if measure.found:
            print(f"{'':10}{' '.join(measure.found)}")


if __name__ == "__main__":
    main()
