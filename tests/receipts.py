"""`make receipts`: the costs of each reference solution at its production shape, by launch.

They are in `tests/receipts.txt`: if you change the analysis of a launch or its texts, write them
again and review the diff. Arguments are names of puzzles; without arguments, all of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import puzzles
from puzzles._judge import at_scale
from puzzles._launch import Launch, Operand
from puzzles._puzzle import Puzzle
from puzzles._receipt import receipt_text

FILE = Path(__file__).parent / "receipts.txt"


def receipt(puzzle: Puzzle) -> str:
    """A receipt and a table of operands for each launch of the solution, under a heading."""
    scale = at_scale(puzzle, puzzle.solution)
    assert scale is not None, f"the blocks of {puzzle.name} depend on data"
    lines = [f"## {puzzle.name} at {scale.label}"]
    for launch in scale.par.launches:
        lines += [receipt_text((launch,), title=launch.name), *map(operand, launch.operands)]
        lines += waits(launch)
    return "\n".join(lines)


def operand(one: Operand) -> str:
    """The transfers and the memory of an operand of a kernel."""
    moved = f"{one.transfers:,} transfers of {one.portion}, {one.hbm_bytes:,} bytes"
    held = f"{one.buffers} in {one.space}, {one.vmem_bytes or one.smem_bytes:,} bytes"
    return f"  {one.name} {one.shape} {one.dtype}: {moved}; {held}"


def waits(launch: Launch) -> Iterator[str]:
    """The numbers of the kernel's waits for its own copies."""
    for name, one in (launch.waits or {}).items():
        yield f"  {name}: waits {one.count:,}, exposed {one.exposed:,}, at most {one.most} at once"


def on_record() -> dict[str, str]:
    """The committed receipts by the name of their puzzle."""
    blocks = FILE.read_text(encoding="utf-8").rstrip("\n").split("\n\n") if FILE.exists() else []
    return {re.match(r"## (\w+) at", one)[1]: one for one in blocks}  # type: ignore[index]


def with_kernels() -> list[Puzzle]:
    """The puzzles with a production shape; the others launch nothing."""
    everything = (one for ladder in puzzles.ladders() for one in puzzles.ladder(ladder))
    return [one for one in everything if one.scale is not None]


def main(names: list[str]) -> int:
    """Write the receipts, and print the names of puzzles whose receipts have changed."""
    before = on_record()
    everything = with_kernels()
    wanted = {one.name: receipt(one) for one in everything if not names or one.name in names}
    after = {one.name: wanted.get(one.name) or before.get(one.name, "") for one in everything}
    FILE.write_text("\n\n".join(filter(None, after.values())) + "\n", encoding="utf-8")
    changed = [name for name, text in wanted.items() if before.get(name) != text]
    print(f"{len(wanted)} receipts, {len(changed)} of them new or changed: {' '.join(changed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
