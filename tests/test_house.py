"""How the package is built: wings with front doors, and imports that run one way."""

from __future__ import annotations

import ast
import io
import re
import runpy
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FrameType

import pytest

import puzzles
from puzzles._puzzle import mutate

pytestmark = pytest.mark.newest  # JAX changes nothing here

ROOT = Path(__file__).parents[1]
WINGS = (
    "_rules", "_program", "_launch", "_simulator", "_compile", "_draw", "_judge", "_examine",
    "_author",
)  # fmt: skip
# A part may import every part of the lines before its own; parts of one line are neighbours.
FLOORS = (
    ("_jax",), ("_equations",), ("_rules",), ("_program",), ("_launch",),
    ("_simulator", "_compile"), ("_receipt",), ("_draw", "_judge"), ("_check", "_author"),
    ("_examine",), ("_show",), ("__init__",),
)  # fmt: skip
GROUND = ("_regions", "_record", "_puzzle", "_ladders")  # for `_judge` and all above it


def allowed(floor: str) -> set[str]:
    """The parts of the package that a part may import."""
    if floor in GROUND:
        return set(GROUND[: GROUND.index(floor)])
    if floor == "__main__":
        return {"_author", "_examine", "_rules", *GROUND}
    level = 0 if floor == "_progress" else _level(floor)
    below = {part for line in FLOORS[:level] for part in line} - {"_author"}
    ground = GROUND if level >= _level("_judge") else ()
    return {*below, *ground, *(["_progress"] if floor == "_check" else [])}


def _level(floor: str) -> int:
    """The line of FLOORS that a part is in."""
    return next(n for n, line in enumerate(FLOORS) if floor in line)


def part(module: str) -> str:
    """The part of the package that a module belongs to: a wing, a ladder, a flat module."""
    names = module.split(".")[1:]
    if {"_example", "_project"} & {*names}:
        return "example"
    return names[0] if names else "__init__"


def sources() -> dict[str, str]:
    """Every module of the package and its text, by dotted name."""
    found = {}
    for path in sorted((ROOT / "puzzles").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


@cache
def imports(text: str) -> list[tuple[str, str]]:
    """(module, name) of every import from this package, in functions, too."""
    return list(_imports(text))


def _imports(text: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "puzzles":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level, "a relative import"
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.split(".")[0] == "puzzles")


@cache
def exported(text: str) -> set[str]:
    """The names that a door hands on: all that it imports."""
    return {name for _, name in imports(text)}


def problems(files: Mapping[str, str]) -> Iterator[str]:
    """Imports that go up, past a door or in a circle, and doors that hide a module."""
    within: dict[str, set[str]] = {}
    for module, text in files.items():
        own = part(module)
        for source, name in imports(text):
            target = f"{source}.{name}" if f"{source}.{name}" in files else source
            there, who = part(target), f"{module} imports {name} from {source}"
            if source.startswith("."):
                yield f"{who}: write it out"
            elif there == own:
                if module != f"puzzles.{own}":  # a door imports all that it opens to
                    within.setdefault(module, set()).add(target)
            elif there in WINGS and target != f"puzzles.{there}":
                yield f"{who}: past the door of {there}"
            elif there in WINGS and source == target and name not in exported(files[target]):
                yield f"{who}: its door does not have it"
            elif not is_ladder(own) and there not in allowed(own):
                yield f"{who}: {own} does not know {there}"
            elif is_ladder(own) and there not in (*WINGS, "__init__") and not is_ladder(there):
                yield f"{who}: a ladder knows `puzzles` and front doors"
    try:
        TopologicalSorter(within).prepare()
    except CycleError as error:
        yield f"a circle: {' -> '.join(error.args[1])}"
    for wing in WINGS:
        modules = {m.split(".")[2] for m in files if m.startswith(f"puzzles.{wing}.")}
        for name in sorted(modules & exported(files.get(f"puzzles.{wing}", ""))):
            yield f"puzzles.{wing}: the name {name} hides the module {name}"


def is_ladder(name: str) -> bool:
    return not name.startswith("_")


def test_imports_run_one_way_and_through_the_doors() -> None:
    assert list(problems(sources())) == []


def test_whoever_opens_the_package_sees_a_handful_of_names() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "puzzles"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = {line.split("/")[1] for line in listed.stdout.splitlines()}
    assert set(WINGS) <= names
    assert len(names - {"py.typed"}) <= 26


@pytest.mark.parametrize(
    "path", [*ROOT.glob("d*/draw.py"), *ROOT.glob("tests/[!t]*.py")], ids=lambda path: path.name
)
def test_each_command_and_tool_finds_what_it_imports(path: Path) -> None:
    """CI does not run all of them."""
    runpy.run_path(str(path), run_name="imported")


def test_each_door_says_what_goes_in_and_what_comes_out() -> None:
    for wing in WINGS:
        text = sources()[f"puzzles.{wing}"]
        assert len((ast.get_docstring(ast.parse(text)) or "").split()) > 25, wing
        assert exported(text), wing


@pytest.mark.parametrize(
    ("module", "line", "says"),
    [
        ("_launch.log", "from puzzles._judge import judge", "_launch does not know _judge"),
        ("_compile.chips", "from puzzles._draw import cell", "_compile does not know _draw"),
        ("_launch.log", "from puzzles._puzzle import Puzzle", "_launch does not know _puzzle"),
        ("_judge.case", "from puzzles._progress import add", "_judge does not know _progress"),
        ("_author.review", "from puzzles._check import check", "_author does not know _check"),
        ("_regions", "from puzzles._ladders import find", "_regions does not know _ladders"),
        ("_judge.case", "from puzzles import find", "_judge does not know __init__"),
        ("_judge.case", "from puzzles._program.run import by_jax", "past the door of _program"),
        ("_judge.case", "from puzzles._program import run", "past the door of _program"),
        ("_judge.case", "import puzzles._program.run", "past the door of _program"),
        ("_judge.case", "from puzzles._launch import Log", "its door does not have it"),
        ("_judge.case", "from .verdict import Verdict", "write it out"),
        ("_launch.log", "from puzzles._launch.traces import trace", "a circle: "),
        ("_program", "from puzzles._program.run import run", "the name run hides the module run"),
        ("basics.add_ten", "from puzzles._compile.chips import CHIPS", "past the door of _compile"),
        ("basics.add_ten", "from puzzles._regions import starter", "`puzzles` and front doors"),
        ("_program.run", "def f():\n    from puzzles._compile import lowered", "not know _compile"),
        ("_judge.case", "from puzzles._draw import cell", "_judge does not know _draw"),
        ("_compile.chips", "from puzzles._simulator import simulate", "does not know _simulator"),
    ],
)
def test_a_forbidden_import_is_found(module: str, line: str, says: str) -> None:
    files = sources()
    planted = {**files, f"puzzles.{module}": f"{line}\n{files[f'puzzles.{module}']}"}
    found = list(problems(planted))
    assert any(says in problem for problem in found), found


@pytest.mark.parametrize("puzzle", ["row_sum", "group_offsets"])
@pytest.mark.parametrize("wrong", [False, True])
def test_judging_comes_back_to_no_module_with_the_function(puzzle: str, wrong: bool) -> None:
    puzzle = puzzles.find(puzzle)
    fn = mutate(puzzle, puzzle.mistakes[0]) if wrong else puzzle.solution
    stays: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or "/_judge/" not in file or Path(file).stem in stays[-1:]:
            return
        if any(value is fn for value in frame.f_locals.values()):
            stays.append(Path(file).stem)

    sys.setprofile(note)
    try:
        assert puzzles.judge(puzzle, fn).passed is not wrong
    finally:
        sys.setprofile(None)
    assert stays[:3] == ["judging", "answer", "source"]
    assert len(stays) == len({*stays}), stays


@pytest.mark.slow
def test_wings_are_linted_formatted_and_typed_and_prose_is_not(tmp_path: Path) -> None:
    """A ladder is formatted; its long lines may be prose, and it has no types of its own."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "pytest_pallas_puzzles.py").touch()
    for place in (".", "_launch", "_judge/questions", "_author", "_author/_example", "basics"):
        folder = tmp_path / "puzzles" / place
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "__init__.py").touch()
        planted = folder / ("_planted.py" if place == "." else "planted.py")
        planted.write_text(f'def planted() -> int:\n    return "{"x" * 100}"\n\n\nX   =  1\n')
    folders = ("_launch", "_judge/questions", "_author")
    engine = {"puzzles/_planted.py", *(f"puzzles/{folder}/planted.py" for folder in folders)}
    ladders = {"puzzles/basics/planted.py", "puzzles/_author/_example/planted.py"}
    for tool, *arguments in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        cache = ["--cache-dir", "/dev/null"] if tool == "mypy" else ["--no-cache"]
        command = [sys.executable, "-m", tool, *arguments, *cache]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        found = set(re.findall(r"puzzles/\S*planted\.py", done.stdout))
        expected = engine | (ladders if "format" in arguments else set())
        assert (done.returncode, found) == (1, expected), done


def code_lines(text: str) -> set[int]:
    """The numbers of the lines without those of comments and of strings of several lines."""
    prose: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (first, column), (last, _) = token.start, token.end
        comment = token.type == tokenize.COMMENT and not token.line[:column].strip()
        if comment or (first < last and token.type != tokenize.NEWLINE):
            prose |= {*range(first, last + 1)}
    return {*range(1, text.count("\n") + 1)} - prose


def test_a_puzzle_is_short_and_its_code_fits_the_screen() -> None:
    modules = [path for path in ROOT.glob("puzzles/[!_]*/*.py") if path.name != "__init__.py"]
    texts = {path: path.read_text(encoding="utf-8") for path in modules}
    lengths = [text.count("\n") for path, text in texts.items() if path.name[0] != "_"]
    assert sum(lengths) / len(lengths) <= 200
    for path, text in texts.items():
        lines = text.splitlines()
        long = [number for number in code_lines(text) if len(lines[number - 1]) > 100]
        assert long == [], path
