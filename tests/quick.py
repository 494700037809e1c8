"""`make quick`: lint, types, and the fast tests of all changes since the last commit.

Arguments are puzzles or ladders; without any, those that have changed are verified.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = (sys.executable, "-m")
# The tests of modules outside the packages; the tests of a package are in the folder of its name.
FLAT = {
    "__init__": ["tests/test_house.py"],
    "__main__": ["tests/author/test_cli.py"],
    "_check": ["tests/judge"],
    "_jax": ["tests/test_jax.py"],
    "_equations": ["tests/test_jax.py", "tests/program", "tests/launch"],
    "_ladders": ["tests/author"],
    "_progress": ["tests/test_progress.py"],
    "_puzzle": ["tests/author", "tests/judge"],
    "_record": ["tests/test_record.py", "tests/author"],
    "_receipt": ["tests/launch"],
    "_regions": ["tests/test_regions.py", "tests/author"],
    "_show": ["tests/draw"],
}


def changed() -> list[str]:
    """Files that differ from the last commit, including new files."""
    commands = ["diff --name-only HEAD", "ls-files --others --exclude-standard"]
    listed = [
        subprocess.run(
            ["git", *command.split()], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for command in commands
    ]
    return sorted({name for names in listed for name in names if (ROOT / name).exists()})


def tests_of(files: Iterable[str]) -> list[str]:
    """The tests of the packages and modules of `files`."""
    found: list[str] = []
    for name in files:
        first, *rest = Path(name).parts
        if first == "tests" and Path(name).name.startswith("test_") and "browser" not in rest:
            found.append(name)
        elif first == "diagrams":
            found.append("tests/draw/test_diagrams.py")
        elif first == "puzzles" and rest[0].startswith("_"):
            found.append("tests/test_house.py")
            wing = f"tests/{rest[0].strip('_')}"
            found += [wing] if len(rest) > 1 else FLAT.get(Path(name).stem, [])
    return list(dict.fromkeys(found))


def puzzles_of(files: Iterable[str]) -> list[str]:
    """The names of puzzles and ladders among `files`, for `verify`."""
    found = []
    for name in files:
        parts = Path(name).parts
        if len(parts) == 3 and parts[0] == "puzzles" and not parts[1].startswith("_"):
            shared = parts[2].startswith("_")  # the ladder's `__init__.py` or a shared module
            found.append(parts[1] if shared else f"{parts[1]}/{Path(name).stem}")
    return list(dict.fromkeys(found))


def taste_of(names: Iterable[str]) -> list[str]:
    """The command that tests the prose of some puzzles or of whole ladders."""
    puzzles = [name.split("/")[-1] for name in names]
    whole = any((ROOT / "puzzles" / name).is_dir() for name in puzzles)
    chosen = [] if whole else ["-k", " or ".join(puzzles)]
    return ["pytest", "-q", "-m", "not graduate", "tests/ladders/test_taste.py", *chosen]


def main(names: list[str]) -> int:
    """Run the commands for the changes, with their seconds; return 1 if a command fails."""
    files = changed()
    code = [name for name in files if name.endswith(".py")]
    puzzles, tests = names or puzzles_of(files), tests_of(files)
    commands: list[list[str]] = []
    if code:
        commands += [
            ["ruff", "check", *code],
            ["ruff", "format", "--check", "--force-exclude", *code],
        ]
    if any(name.startswith("puzzles/_") for name in code):
        commands.append(["mypy"])
    if tests:
        commands.append(["pytest", "-q", "-n", "2", "-m", "not slow", *tests])
    if puzzles:
        commands += [["puzzles", "verify", "--quick", *puzzles], taste_of(puzzles)]
    if not commands:
        print("nothing differs from the last commit; name puzzles to verify them")
    failed = []
    for command in commands:
        print(f"$ {' '.join(command)}", flush=True)
        start = time.perf_counter()
        status = subprocess.run([*PYTHON, *command], cwd=ROOT).returncode
        print(f"{time.perf_counter() - start:.1f} s\n", flush=True)
        if status and not (command[0] == "pytest" and status == 5):  # no test was selected
            failed.append(command[0])
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
