"""Draw the pictures of examine.md from what `examine` says: `python docs/draw.py [--check]`."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp

from puzzles import _draw as p
from puzzles import examine
from puzzles._examine import examining

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import kernels  # noqa: E402

_COLUMNS, _SIZE, _LINE, _EDGE = 104, 12.5, 18, 20
_BARS = {"✗": p.VERMILLION, "!": p.BLUE, "·": p.INK}


def screen(words: str, title: str) -> str:
    """Text as it stands on a screen, with a bar beside each finding."""
    lines = [line for one in words.splitlines() for line in _wrapped(one)]
    drawn, bar = [], ""
    for number, line in enumerate(lines):
        top = _EDGE + number * _LINE
        if line and not line.startswith(" "):
            bar = _BARS.get(line[0], "") if number else ""
        if bar and line:
            drawn.append(f'<path d="{p.rect(_EDGE, top - 1, 4, _LINE)}" fill="{bar}"/>')
        if line:
            x, bold = _EDGE + 14, line[0] in "✗!·✓"
            indent = len(line) - len(line.lstrip())
            x += indent * 0.6 * _SIZE
            drawn.append(p.text(x, top + 13, line.strip(), size=_SIZE, mono=True, bold=bold))
    width, height = 2 * _EDGE + 14 + _COLUMNS * 0.6 * _SIZE, 2 * _EDGE + len(lines) * _LINE
    return p.document(width, height, "\n".join(drawn), title, words)


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    hang = indent
    if line[:11].strip() in ("looked for", "not for", ""):
        hang = " " * 12
    elif not indent and line[:1] not in _BARS:  # a row of the receipt
        hang = " " * 7
    return textwrap.wrap(line, _COLUMNS, subsequent_indent=hang) or [""]


def pictures() -> dict[str, str]:
    """Each picture's file and what it must hold; libtpu, which not everybody has, is left out."""
    shape = jax.ShapeDtypeStruct
    with_libtpu, examining.has_libtpu = examining.has_libtpu, lambda: False
    try:
        matmul = examine(kernels.matmul, *[shape((384, 384), jnp.float32)] * 2)
        stream = examine(kernels.stream, shape((32, 128), jnp.float32))
    finally:
        examining.has_libtpu = with_libtpu
    found = "\n".join(str(stream).splitlines()[:5])
    return {
        "examine-matmul.svg": screen(
            re.sub(r"==[\d.]+|\neach kind .*", "", str(matmul)),
            "examine on a matmul with two slips",
        ),
        "examine-stream.svg": screen(found, "examine on a copy that is read too early"),
    }


def main() -> int:
    """Write all, or with --check name those that are out of date; 0 if all is well."""
    stale = [
        name
        for name, svg in pictures().items()
        if not (HERE / name).exists() or (HERE / name).read_text("utf-8") != svg
    ]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/{name} is out of date: run make build")
        return int(bool(stale))
    for name, svg in pictures().items():
        (HERE / name).write_text(svg, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
