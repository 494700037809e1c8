"""Write the newest JAX that passed `make test` into `puzzles/_jax.py`.

`make test` runs this module after all its tests have passed. An older JAX changes nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import jax

FILE = Path(__file__).parents[1] / "puzzles" / "_jax.py"
CONSTANT = re.compile(r'(?m)^NEWEST_TRIED = "([^"]+)"')


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release, without those of a release candidate."""
    return tuple(int(n) for n in re.match(r"[\d.]*\d", version)[0].split("."))


def record(path: Path, version: str) -> bool:
    """Write `version` into the constant if it is newer. Return whether the file changed."""
    text = path.read_text("utf-8")
    if numbers(version) <= numbers(CONSTANT.search(text)[1]):
        return False
    path.write_text(CONSTANT.sub(f'NEWEST_TRIED = "{version}"', text), "utf-8")
    return True


if __name__ == "__main__":
    if record(FILE, jax.__version__):
        print(f"All tests passed on JAX {jax.__version__}: commit puzzles/_jax.py, which names it.")
