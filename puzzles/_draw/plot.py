"""A few numbers as a line over their places, or as a bar for each name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from puzzles._draw.palette import BLUE, INK, picture, px, rect, text, text_width

_WIDTH, _HEIGHT, _SIZE = 560, 220, 12
_BAR, _GAP = 18, 8
_ROWS = 10  # of a line drawn in characters
_CHARS = 40  # of the longest bar


def plot_svg(values: Sequence[float] | Mapping[str, float], title: str) -> str:
    """A picture for a cell's output, in the colour of the page's text."""
    return _bars(values, title) if isinstance(values, Mapping) else _line(list(values), title)


def plot_text(values: Sequence[float] | Mapping[str, float], title: str) -> str:
    """The same in characters."""
    rows = _text_bars(values) if isinstance(values, Mapping) else _text_line(list(values))
    return "\n".join([title] * bool(title) + rows)


def number(value: float) -> str:
    """Four digits, and no exponent where it can be helped: 0.9643, 12.5, 1,234,567."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _line(values: list[float], title: str) -> str:
    low, high = _range(values)
    marks = [number(high), number(low)]
    left = 12 + max(text_width(mark, _SIZE) for mark in marks)
    top, bottom, right = 34.0, _HEIGHT - 30.0, _WIDTH - 12.0

    def at(place: int, value: float) -> tuple[float, float]:
        x = left + (right - left) * place / max(1, len(values) - 1)
        return x, bottom - (bottom - top) * (value - low) / (high - low)

    drawn = [text(0, 16, title, size=13, bold=True, room=_WIDTH)]
    for mark, y in zip(marks, (top, bottom), strict=True):
        drawn.append(text(left - 8, y + 4, mark, size=_SIZE, anchor="end"))
        drawn.append(f'<path d="M{px(left)} {px(y)}H{px(right)}" stroke="{INK}" opacity=".25"/>')
    points = [at(n, value) for n, value in enumerate(values) if math.isfinite(value)]
    path = " ".join(f"{px(x)},{px(y)}" for x, y in points)
    drawn.append(f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="2.5"/>')
    drawn += [f'<circle cx="{px(x)}" cy="{px(y)}" r="3" fill="{BLUE}"/>' for x, y in points[:100]]
    last = str(len(values) - 1)
    drawn.append(text(left, _HEIGHT - 10, "0", size=_SIZE, anchor="middle"))
    drawn.append(text(right, _HEIGHT - 10, last, size=_SIZE, anchor="end"))
    return picture(_WIDTH, _HEIGHT, "".join(drawn), _said(values, title))


def _bars(values: Mapping[str, float], title: str) -> str:
    left = 10 + max(text_width(name, _SIZE) for name in values)
    beside = 10 + max(text_width(number(value), _SIZE) for value in values.values())
    most = max(values.values()) or 1
    drawn, y = [text(0, 16, title, size=13, bold=True, room=_WIDTH)], 32.0
    for name, value in values.items():
        wide = max(1.0, (_WIDTH - left - beside) * value / most)
        drawn.append(text(left - 10, y + 13, name, size=_SIZE, anchor="end"))
        drawn.append(f'<path d="{rect(left, y, wide, _BAR)}" fill="{BLUE}"/>')
        drawn.append(text(left + wide + 6, y + 13, number(value), size=_SIZE))
        y += _BAR + _GAP
    said = ", ".join(f"{name}: {number(value)}" for name, value in values.items())
    return picture(_WIDTH, y, "".join(drawn), f"{title}: {said}")


def _range(values: list[float]) -> tuple[float, float]:
    """The lowest and the highest finite value, apart from each other."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    return (low, high) if high > low else (low, low + 1)


def _said(values: list[float], title: str) -> str:
    return f"{title}: from {number(values[0])} to {number(values[-1])} in {len(values)} points"


def _text_line(values: list[float]) -> list[str]:
    low, high = _range(values)
    marks = [number(high), number(low)]
    wide = max(map(len, marks))
    rows = [[" "] * len(values) for _ in range(_ROWS)]
    for place, value in enumerate(values):
        if math.isfinite(value):
            rows[round((_ROWS - 1) * (high - value) / (high - low))][place] = "•"
    labels = [marks[0], *[""] * (_ROWS - 2), marks[1]]
    drawn = (
        f"{label:>{wide}} ┤{'  '.join(row).rstrip()}"
        for label, row in zip(labels, rows, strict=True)
    )
    return list(drawn)


def _text_bars(values: Mapping[str, float]) -> list[str]:
    wide, most = max(map(len, values)), max(values.values()) or 1
    return [
        f"{name:>{wide}} {'█' * max(1, round(_CHARS * value / most))} {number(value)}"
        for name, value in values.items()
    ]
