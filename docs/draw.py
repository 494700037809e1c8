"""Draw the pictures of README and docs, and README's table next to JAX: `python docs/draw.py`.

With --check it writes nothing, and fails if a file is out of date.
"""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp

import puzzles
from puzzles import _draw as p
from puzzles import _regions, examine
from puzzles._compile import compiler
from puzzles.splash_attention._costs import compared

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import kernels  # noqa: E402

_SUMS = {
    "stream_sum": "One buffer: copy, sum, copy, sum. They take turns.",
    "double_buffered_sum": "Two slots: while one is summed, the next copy is in flight.",
}
_LEFT, _MOMENT, _SECONDS = 116.0, 74.0, 9
_TABLE = re.compile(r"(<!-- beside JAX: .+ -->\n).*?(?=<!-- end -->)", re.DOTALL)

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


def top() -> str:
    """The copies of two sums as a moving picture: a curtain uncovers both, moment by moment.

    Readers who prefer less motion see it all at once.
    """
    title = "A pipeline hides the time of copies"
    body, y, edge = [p.text(20, 30, title, size=17, bold=True)], 58.0, 0.0
    for name, caption in _SUMS.items():
        rows = jax.ShapeDtypeStruct((256, 128), jnp.float32)
        (launch,) = puzzles.trace(puzzles.find(name).solution, rows)
        strip, right, high = p.copies_strip(p.walk_data(launch)["copies"], _LEFT, _MOMENT)
        body.append(p.text(20, y + 6, caption, size=13, bold=True))
        body.append(f'<g transform="translate(0 {p.px(y + 14)})">{strip}</g>')
        y, edge = y + 14 + high + 28, max(edge, right)
    bottom = y - 16
    moving = f'<rect class="paper" x="{p.px(_LEFT)}" y="68" width="{p.px(edge - _LEFT + 24)}" '
    moving += f'height="{p.px(bottom - 68)}" opacity=".86"/>'
    moving += (
        f'<path d="M{p.px(_LEFT)} 66V{p.px(bottom)}" stroke="{p.VERMILLION}" stroke-width="2"/>'
    )
    body.append(f'<g class="curtain">{moving}</g>')
    marks = p.marks_in("".join(body))
    legend, height = p.legend(marks, 20, y, edge - 20)
    far = f"transform:translateX({p.px(edge - _LEFT)}px)"
    rules = p.mark_rules(marks) + (
        f"@keyframes sweep{{0%{{transform:none}}92%,100%{{{far}}}}}"
        f".curtain{{animation:sweep {_SECONDS}s linear infinite}}"
        "@media(prefers-reduced-motion:reduce){.curtain{display:none}}"
    )
    says = f"{title}. {' '.join(_SUMS.values())} Drawn from the reference launches."
    drawn = "".join([*body, legend])
    return p.document(edge + 24, y + height + 20, drawn, title, says, rules)


def verdict() -> str:
    """A gap filled in with a natural mistake, and the verdict of `check`, as one picture."""
    puzzle = puzzles.find("add_reversed_blocks")
    mistake = puzzle.mistake("uses a negative block index")
    says = puzzles.judge(puzzle, puzzles.mutate(puzzle, mistake))
    source = _regions.without_marks(mistake.apply(puzzle.text)).splitlines()
    first = next(n for n, line in enumerate(source) if "def y_index_map" in line)
    code = [f"def {puzzle.name}(x, y):", "    ...", *source[first : first + 2]]
    title = "The numbers are right on a CPU. On a TPU this kernel reads outside of y."
    body, y = [p.text(_EDGE, 32, title, size=15, bold=True)], 62
    for line in [*code, "    ...", "", f"check({puzzle.name})"]:
        body.append(p.text(_EDGE + 14, y, line, size=_SIZE, mono=True))
        y += _LINE
    frame = p.rect(_EDGE, 46, 900, y - 54)
    body.insert(0, f'<path d="{frame}" fill="{p.INK}" fill-opacity=".06"/>')
    top, y = y + 2, y + 22
    body.append(p.text(_EDGE + 14, y, says.headline, size=13, bold=True))
    for line in textwrap.wrap(says.says.replace("`", ""), 140):
        y += _LINE + 2
        body.append(p.text(_EDGE + 14, y, line, size=13))
    body.append(f'<path d="{p.rect(_EDGE, top, 4, y - top + 8)}" fill="{p.VERMILLION}"/>')
    words = "\n".join([*code, says.headline, says.says])
    return p.document(940, y + 28, "".join(body), title, words)


def pictures() -> dict[str, str]:
    """Each picture's file and what it must hold; libtpu, which not everybody has, is left out."""
    shape = jax.ShapeDtypeStruct
    with_libtpu, compiler.has_libtpu = compiler.has_libtpu, lambda: False
    try:
        matmul = examine(kernels.matmul, *[shape((384, 384), jnp.float32)] * 2)
        stream = examine(kernels.stream, shape((32, 128), jnp.float32))
    finally:
        compiler.has_libtpu = with_libtpu
    found = "\n".join(str(stream).splitlines()[:5])
    return {
        "top.svg": top(),
        "verdict.svg": verdict(),
        "examine-matmul.svg": screen(
            re.sub(r"==[\d.]+|\neach kind .*", "", str(matmul)),
            "examine on a matmul with two slips",
        ),
        "examine-stream.svg": screen(found, "examine on a copy that is read too early"),
    }


def beside() -> str:
    """README's table: what the reference launches at the summit, next to what JAX launches."""
    solved = importlib.import_module(puzzles.find("splash_multi_head").module)
    lines = [
        "| 8 heads, 4,096 tokens | grid steps: JAX | yours | MiB moved: JAX | yours |",
        "|---|---|---|---|---|",
    ]
    for mask, rows in compared(solved.splash_over_tiles, 4096, 512).items():
        theirs, mine = rows["JAX's splash"], rows["mine"]
        moved = (f"{cost.bytes / 2**20:,.0f} | " for cost in (theirs, mine))
        lines.append(f"| {mask} | {theirs.steps} | **{mine.steps}** | {''.join(moved)}".rstrip())
    return "\n".join(lines)


def files() -> dict[str, str]:
    """Every generated file by its path from the root, and its text."""
    readme = (HERE.parent / "README.md").read_text("utf-8")
    drawn = {f"docs/{name}": svg for name, svg in pictures().items()}
    return drawn | {"README.md": _TABLE.sub(lambda found: f"{found[1]}{beside()}\n", readme)}


def main() -> int:
    """Write all, or with --check name those that are out of date; 0 if all is well."""
    root = HERE.parent
    texts = files()
    if "--check" in sys.argv[1:]:
        stale = [name for name in texts if not _is(root / name, texts[name])]
        for name in stale:
            print(f"{name} is out of date: run make build")
        return int(bool(stale))
    for name, text in texts.items():
        (root / name).write_text(text, "utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
