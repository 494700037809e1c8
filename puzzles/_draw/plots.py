"""Plots: a line of numbers, and costs of a kernel's keywords as a table and under a roofline."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from puzzles._compile import Chip
from puzzles._draw.frames import piece, read, style
from puzzles._draw.palette import BLUE, px, rect, text

Row = Mapping[str, str]  # the cells of a table's row, by column

_LEFT, _TOP, _WIDE, _HIGH = 34.0, 24.0, 330.0, 180.0  # pixels of the plot; a phone has room for it
_PLOT_LEFT = 76.0  # for a number of nine characters


def plot_svg(values: Sequence[float], title: str) -> str:
    """A line through finite numbers, with their least and largest and the first and last place."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high, last = min(finite), max(finite), max(1, len(values) - 1)
    bottom, line, pen = _TOP + _HIGH, "", "M"
    for n, value in enumerate(values):
        if math.isfinite(value):
            y = bottom - _HIGH * (value - low) / (high - low or 1)
            line += f"{pen}{px(_PLOT_LEFT + _WIDE * n / last)} {px(y)}"
        pen = "L" if math.isfinite(value) else "M"
    drawn = _axes(_PLOT_LEFT) + text(2, 12, title)
    for y, value in {bottom: low, _TOP + 4: high}.items():
        drawn += text(_PLOT_LEFT - 5, y, f"{value:.4g}", size=11, anchor="end")
    for x, number in {0.0: 0, _WIDE: last}.items():
        drawn += text(_PLOT_LEFT + x, bottom + 14, str(number), size=11, anchor="middle")
    drawn += f'<path d="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
    box = f'viewBox="0 0 {px(_PLOT_LEFT + _WIDE + 18)} {px(bottom + 18)}" style="max-width:420px"'
    label = html.escape(f"{title}: {len(values)} numbers")
    return f'<svg width="100%" {box} role="img" aria-label="{label}">{drawn}</svg>'


def _axes(left: float) -> str:
    corner = f"M{px(left)} {px(_TOP)}V{px(_TOP + _HIGH)}H{px(left + _WIDE)}"
    return f'<path d="{corner}" fill="none" stroke="currentColor" stroke-opacity=".5"/>'


def costs_table(rows: Sequence[Row], attributes: Sequence[str] = ()) -> str:
    """Rows of costs as an HTML table. attributes: of each row's element."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = ""
    for n, row in enumerate(rows):
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row.values())
        body += f"<tr {attributes[n] if attributes else ''}>{cells}</tr>"
    return piece("table of costs", head=head, body=body)


def roofline_page(
    sizes: Mapping[str, Sequence[int]],
    rows: Sequence[Row],
    places: Sequence[tuple[float, float]],
    says: Sequence[str],
    chip: Chip,
) -> str:
    """The plot, the sliders, which the script shows, and the table.

    sizes: the values of each keyword. rows, places, says: costs, (FLOPs per byte, FLOPs per second)
    and a sentence for each combination, the last keyword's values first.
    """
    peak, slope = chip.flops_per_second, chip.hbm_bytes_per_second
    edges = [2.0 ** math.floor(math.log2(min(x for x, _ in places) / 1.5))]
    edges.append(2.0 ** math.ceil(math.log2(max(chip.ridge, *(x for x, _ in places)) * 1.5)))
    low = 2.0 ** math.floor(math.log2(min(edges[0] * slope, *(y for _, y in places))))

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = math.log2(intensity / edges[0]) / math.log2(edges[1] / edges[0])
        y = math.log2(rate / low) / math.log2(1.3 * peak / low)
        return _LEFT + _WIDE * x, _TOP + _HIGH * (1 - y)

    (x0, y0), (x1, y1), (x2, _) = (
        at(edges[0], edges[0] * slope),
        at(chip.ridge, peak),
        at(edges[1], peak),
    )
    bottom = _TOP + _HIGH
    drawn = _axes(_LEFT)
    drawn += f'<path class="pz-ridge" d="M{px(x1)} {px(y1)}V{px(bottom)}"/>'
    drawn += f'<path class="pz-roof" d="M{px(x0)} {px(y0)}L{px(x1)} {px(y1)}H{px(x2)}"/>'
    for power in range(round(math.log2(edges[0])), round(math.log2(edges[1])) + 1):
        x, _ = at(2.0**power, peak)
        drawn += text(x, bottom + 14, f"{2.0**power:g}", size=11, anchor="middle")
    for power in range(math.ceil(math.log2(low / 1e12)), math.ceil(math.log2(peak / 1e12))):
        _, y = at(1, 2.0**power * 1e12)
        drawn += text(_LEFT - 5, y + 4, f"{2.0**power:g}", size=11, anchor="end")
    drawn += text(x1 + 5, bottom - 6, f"ridge: {chip.ridge:.0f}", size=11)
    drawn += text(2, 12, f"TFLOP/s on a {chip.name}, by the receipt", size=11)
    drawn += text(x2, bottom + 30, "FLOPs per byte of HBM", size=11, anchor="end")
    spots = [at(*place) for place in places]
    dots = "".join(rect(x - 1.5, y - 1.5, 3, 3) for x, y in spots)
    names = [
        f'data-at="{px(x)} {px(y)}" data-says="{html.escape(words)}"'
        for (x, y), words in zip(spots, says, strict=True)
    ]
    dials = "".join(
        piece(
            "dial", name=html.escape(name), last=len(values) - 1, values=" ".join(map(str, values))
        )
        for name, values in sizes.items()
    )
    page = piece(
        "roofline",
        dials=dials,
        picture=drawn,
        dots=dots,
        count=len(rows),
        width=px(x2 + 18),
        height=px(bottom + 36),
        table=costs_table(rows, names),
    )
    return f"<style>{style()}</style>{page}<script>{read('roofline.js')}</script>"
