"""`make size`: how large the engine is, beside the limits it is to come under.

Lines are those of Python files, blank ones and comments included. Names of `jax._src` are counted
by what the engine's text imports, reads or writes out as a string: a name under `callback` is
`callback.io_callback_impl`. A patch is a place that assigns to an attribute of something of JAX's,
or calls `setattr`. A recursion is a function that reads `.eqns` and comes back to itself through
the functions of its own file.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from puzzles._launch import Launch

ROOT = Path(__file__).parents[1]
PRIVATE = "jax._src."


@dataclass(frozen=True)
class Measure:
    """A number that ought to fall. `limit`: where it is to go; `ratchet`: what it was, and may be
    at most. Whoever brings it down lowers the ratchet."""

    what: str
    found: tuple[str, ...] | int
    limit: int
    ratchet: int

    @property
    def count(self) -> int:
        """The number."""
        return self.found if isinstance(self.found, int) else len(self.found)


def engine() -> dict[str, str]:
    """The text of each Python file of the engine by its path below `puzzles/`."""
    folder = ROOT / "puzzles"
    files = sorted([*folder.glob("_*.py"), *folder.glob("_*/*.py")])
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}


def lines_of_tests() -> int:
    """Lines of Python below `tests/`."""
    files = (ROOT / "tests").rglob("*.py")
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def wings(files: Mapping[str, str]) -> dict[str, int]:
    """Lines of each wing; those of modules that stand alone are summed under "flat"."""
    lines: dict[str, int] = {}
    for path, text in files.items():
        wing = path.partition("/")[0] if "/" in path else "flat"
        lines[wing] = lines.get(wing, 0) + len(text.splitlines())
    return lines


def private_names(text: str) -> set[str]:
    """The names of `jax._src` that a file's text takes, with the module they come from."""
    tree, names = ast.parse(text), set()
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(PRIVATE):
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                if _is_module(path):
                    modules[alias.asname or alias.name] = path
                else:
                    names.add(path)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith(PRIVATE)}
        elif isinstance(node, ast.Constant) and str(node.value).startswith(PRIVATE):
            names.add(str(node.value))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in modules:
                names.add(f"{modules[owner]}.{name}")
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr"),
                args=[ast.Name(id=owner), ast.Constant(value=str(name)), *_],
            ) if owner in modules:
                names.add(f"{modules[owner]}.{name}")
    return {name.removeprefix(PRIVATE) for name in names}


def _is_module(path: str) -> bool:
    try:
        return find_spec(path) is not None
    except ModuleNotFoundError:  # its parent is none
        return False


def patches(text: str) -> set[str]:
    """What a file's text assigns to that is JAX's, as it is written there."""
    tree, of_jax = ast.parse(text), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("jax."):
            of_jax |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            of_jax |= {
                (alias.asname or alias.name).partition(".")[0]
                for alias in node.names
                if f"{alias.name}.".startswith("jax.")
            }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            found.add(ast.unparse(node))
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute | ast.Subscript):
                if _root(target) in of_jax:
                    found.add(ast.unparse(target))
            elif isinstance(target, ast.Name) and _reads(node.value, of_jax):
                of_jax.add(target.id)  # another name for something of JAX's
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _reads(value: ast.expr | None, of_jax: set[str]) -> bool:
    """Whether a value is an attribute of something of JAX's: `getattr(x, "y")` or `x.y`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "getattr":
        return _root(value.args[0]) in of_jax
    return isinstance(value, ast.Attribute) and _root(value) in of_jax


def recursions(text: str) -> set[str]:
    """The functions of a file that read `.eqns` and come back to themselves."""
    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    uses: dict[str, set[str]] = {function.name: set() for function in functions}
    readers = set()
    for function in functions:
        own = list(_own(function))
        if any(isinstance(node, ast.Attribute) and node.attr == "eqns" for node in own):
            readers.add(function.name)
        for node in own:
            name = getattr(node, "attr" if isinstance(node, ast.Attribute) else "id", "")
            if isinstance(node, ast.Attribute | ast.Name) and name in uses:
                uses[function.name].add(name)
    return {name for name in readers if name in _reached(name, uses)}


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions that are defined within it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _own(node)


def _reached(name: str, uses: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    stack = [*uses[name]]
    while stack:
        if (next_ := stack.pop()) not in reached:
            reached.add(next_)
            stack += uses[next_]
    return reached


@cache
def measures() -> list[Measure]:
    """All that is measured."""
    files = engine()
    private = {name for text in files.values() for name in private_names(text)}
    patched = {one for text in files.values() for one in patches(text)}
    walked = {f"{path}:{name}" for path, text in files.items() for name in recursions(text)}
    fields = tuple(Launch.__dataclass_fields__)
    return [
        Measure("lines of the engine", sum(wings(files).values()), 13_000, 20_250),
        Measure("lines of tests", lines_of_tests(), 14_000, 19_560),
        Measure("names of jax._src", tuple(sorted(private)), 16, 16),
        Measure("patches of JAX", tuple(sorted(patched)), 4, 4),
        Measure("fields of Launch", fields, 14, 14),
        Measure("recursions over .eqns", tuple(sorted(walked)), 1, 12),
    ]


def main() -> int:
    """Print them; what is counted by name is named."""
    for wing, lines in wings(engine()).items():
        print(f"{wing:24}{lines:7,}")
    for measure in measures():
        print(f"{measure.what:24}{measure.count:7,}   to be at most {measure.limit:,}")
        if not isinstance(measure.found, int):
            print(f"{'':10}{' '.join(measure.found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
