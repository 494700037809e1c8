"""Devices over time: a lane for each, and copies as arrows from lane to lane."""

from __future__ import annotations

from puzzles._draw import palette as p
from puzzles._receipt import seconds_words
from puzzles._simulator import Transfer, Wire

_WIDE, _LEFT, _HIGH, _STEP, _TOP = 380, 58, 16, 40, 22  # a phone of 400 px has room for it


def lanes_text(wire: Wire) -> str:
    """The copies between devices in words, a line each."""
    lines = []
    for transfer in wire.transfers:
        times = f"{seconds_words(transfer.begin)} to {seconds_words(transfer.end)}"
        ends = f"device {transfer.source} to {transfer.target}"
        line = f"{ends}: {transfer.place}, {times}, {transfer.line}"
        lines.append(line + "  ✗" * transfer.crossed)
    return "\n".join(lines)


def lanes_picture(wire: Wire) -> str:
    """SVG of the lanes, at most 380 pixels wide."""
    scale = (_WIDE - _LEFT - 8) / max(wire.seconds, 1e-9)
    height = _TOP + wire.devices * _STEP
    body = [p.text(_WIDE - 8, 12, seconds_words(wire.seconds), size=11, anchor="end")]
    for device in range(wire.devices):
        y = _TOP + device * _STEP
        body.append(p.text(2, y + 12, f"device {device}", size=11))
        lane = p.rect(_LEFT, y, _WIDE - _LEFT - 8, _HIGH)
        body.append(f'<path d="{lane}" fill="none" stroke="{p.GREY}" stroke-opacity=".6"/>')
    for span in wire.spans:
        x, wide = _LEFT + span.begin * scale, max(1.0, (span.end - span.begin) * scale)
        y = _TOP + span.device * _STEP
        drawn = p.rect(x, y, wide, _HIGH)
        looks = f'fill="{p.BLUE}"'
        if span.does == "waits":
            looks = f'fill="{p.GREY}" fill-opacity=".25"'
        body.append(f'<path d="{drawn}" {looks}/>')
    body += [_arrow(transfer, scale) for transfer in wire.transfers]
    keys = [(p.BLUE, "", "computes"), (p.GREY, ' fill-opacity=".25"', "waits")]
    x = float(_LEFT)
    for colour, more, means in keys:
        body.append(f'<path d="{p.rect(x, height - 4, 12, 12)}" fill="{colour}"{more}/>')
        body.append(p.text(x + 17, height + 6, means, size=11))
        x += 82
    body.append(f'<path d="M{p.px(x)} {height + 6}l12 -8" stroke="{p.GREEN}" stroke-width="2"/>')
    body.append(p.text(x + 17, height + 6, "copies", size=11))
    if any(transfer.crossed for transfer in wire.transfers):
        body.append(_cross(x + 88, height + 2))
        body.append(p.text(x + 98, height + 6, "overwrites", size=11))
    box = f'viewBox="0 0 {_WIDE} {height + 14}" width="100%"'
    label = f"{len(wire.transfers)} copies between {wire.devices} devices over time"
    style = f"display:block;max-width:{_WIDE}px"
    return f'<svg {box} style="{style}" role="img" aria-label="{label}">{"".join(body)}</svg>'


def _arrow(each: Transfer, scale: float) -> str:
    """A copy from the sender's lane to the receiver's; a wrong copy is crossed out."""
    down = each.target > each.source
    x0, x1 = (_LEFT + time * scale for time in (each.begin, each.end))
    y0 = _TOP + each.source * _STEP + _HIGH * down
    y1 = _TOP + each.target * _STEP + _HIGH * (not down)
    tip = -5 if down else 5
    path = f"M{p.px(x0)} {p.px(y0)}L{p.px(x1)} {p.px(y1)}m-4 {tip}l4 {-tip}l4 {tip}"
    colour = p.VERMILLION if each.crossed else p.GREEN
    drawn = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    return drawn + (_cross(x1, y1) if each.crossed else "")


def _cross(x: float, y: float) -> str:
    path = p.hatch(x - 5, y - 5, 10, 10, "x")
    return f'<path d="{path}" stroke="{p.VERMILLION}" stroke-width="2.5"/>'
