"""The ladder's ways to gather rows and multiply them, beside each other."""

from __future__ import annotations

import functools
import html
from dataclasses import dataclass

import jax.numpy as jnp

from puzzles import find
from puzzles._compile import CHIPS
from puzzles._draw import BLUE, GREEN, PURPLE, px, rect, text, text_width
from puzzles._judge import on_chips
from puzzles._launch import trace_call
from puzzles._program import over_mesh

# The kernel of each way, and whether it multiplies, too.
WAYS = {
    "ring_all_gather": False,
    "bidirectional_all_gather": False,
    "all_gather_matmul": True,
    "collective_matmul": True,
}
_WIDTHS = (25, 7, 10, 10, 10, 10)
_COLOURS = {"gather": GREEN, "product": BLUE, "both at once": PURPLE}
_WIDE, _EACH = 380, 38  # pixels of the plot, which fits a phone, and of a bar with its name


@dataclass(frozen=True)
class Way:
    """Costs of one device: bytes that it sends, its copies, and seconds."""

    bytes: int
    copies: int
    wire: float  # until the last copy has arrived; with products inside, until the result is in HBM
    product: float  # after the gather; 0 if the kernel multiplies itself

    @property
    def seconds(self) -> float:
        """The time from the first copy to the last product."""
        return self.wire + self.product


def way(name: str, chip: str, devices: int, M: int, K: int, N: int) -> Way:
    """A way to multiply `devices` blocks of (M, K) bf16 rows by (K, N), by the receipt's model."""
    multiplies = WAYS[name]
    x, w = jnp.zeros((devices, M, K), jnp.bfloat16), jnp.zeros((devices, K, N), jnp.bfloat16)
    blocks = dict(bm=M // 2, bk=K, bn=N // 8)  # large, so that the run has few steps
    fn = functools.partial(find(name).solution, **blocks if name == "collective_matmul" else {})
    args = (x, w) if multiplies else (x,)
    wire = on_chips(trace_call(over_mesh(fn, {"x": devices}), *args), chip).wire
    flops, hbm = CHIPS[chip].flops_per_second, CHIPS[chip].hbm_bytes_per_second
    result = 2 * (K * N + devices * M * N) / hbm  # seconds for the bf16 columns and the result
    seconds, product = wire.seconds, 0.0
    if name == "all_gather_matmul":
        seconds += 2 * M * K / hbm + result
    elif not multiplies:
        product = max(2 * devices * M * K * N / flops, 2 * devices * M * K / hbm + result)
    return Way(sum(wire.sent(0).values()), len(wire.copies(0)), seconds, product)


class Comparison:
    """What each way costs a device, on each chip: a table as text, and a plot of the times."""

    def __init__(self, ways: dict[str, dict[str, Way]], devices: int) -> None:
        self.ways, self.devices = ways, devices

    def __repr__(self) -> str:
        return "\n\n".join(map(self._table, self.ways))

    def _repr_html_(self) -> str:
        return f'{self._plot()}<pre style="overflow-x:auto">{html.escape(repr(self))}</pre>'

    def _table(self, chip: str) -> str:
        names = ("", "copies", "KiB sent", "gather", "product", "together")
        rows = [names]
        for name, its in self.ways[chip].items():
            parts = (_micro(its.wire), _micro(its.product)) if its.product else ("-", "-")
            sent = f"{its.bytes / 2**10:,.0f}"
            rows.append((name, str(its.copies), sent, *parts, _micro(its.seconds)))
        lines = [
            f"{first:{_WIDTHS[0]}}"
            + "".join(f"{cell:>{wide}}" for cell, wide in zip(rest, _WIDTHS[1:], strict=True))
            for first, *rest in rows
        ]
        where = f"{self.devices} chips of {chip}"
        return "\n".join(
            [*lines, f"time on {where}, by the receipt's model (nothing was measured)"]
        )

    def _plot(self) -> str:
        """SVG with a bar for each way: the gather, then the product, or both at once."""
        longest = max(its.seconds for ways in self.ways.values() for its in ways.values())
        scale, y, body = (_WIDE - 70) / longest, 0.0, []
        for chip, ways in self.ways.items():
            body.append(text(0, y + 14, f"{self.devices} chips of {chip}", bold=True))
            y += 22
            for name, its in ways.items():
                body.append(text(0, y + 11, name, size=11))
                parts = [("gather", its.wire), ("product", its.product)]
                if not its.product:
                    parts = [("both at once", its.wire)]
                x = 0.0
                for part, seconds in parts:
                    place = rect(x, y + 15, seconds * scale, 12)
                    body.append(f'<path d="{place}" fill="{_COLOURS[part]}"/>')
                    x += seconds * scale
                body.append(text(x + 6, y + 25, _micro(its.seconds), size=11))
                y += _EACH
            y += 6
        x = 0.0
        for part, colour in _COLOURS.items():
            body.append(f'<path d="{rect(x, y, 12, 12)}" fill="{colour}"/>')
            body.append(text(x + 18, y + 10, part, size=11))
            x += 36 + text_width(part, 11)
        label = "the time of each way: " + ", ".join(
            f"{name} {_micro(its.seconds)} on {chip}"
            for chip, ways in self.ways.items()
            for name, its in ways.items()
        )
        return (
            f'<svg viewBox="0 0 {_WIDE} {px(y + 16)}" width="100%" role="img" '
            f'aria-label="{label}" style="display:block;max-width:{_WIDE}px">{"".join(body)}</svg>'
        )


def compare_gathers(
    *chips: str, devices: int = 4, M: int = 1024, K: int = 256, N: int = 4096
) -> Comparison:
    """What each way costs a device: copies, bytes, and the time by the receipt's model.

    chips: of v4, v5e, v5p, v6e, 7x. A device has M rows of K bf16 values, and N columns.
    A product after a gather takes the longer of the times for its operations and for its bytes of
    HBM. The operands of `all_gather_matmul` come to VMEM before its first copy, and its result, as
    bf16, leaves VMEM after its last product. The pipelines of `collective_matmul` wait for HBM.
    """
    ways = {chip: {name: way(name, chip, devices, M, K, N) for name in WAYS} for chip in chips}
    return Comparison(ways, devices)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"
