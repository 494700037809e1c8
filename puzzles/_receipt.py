"""What a launch costs, in words."""

from __future__ import annotations

import math

from puzzles._launch import Launch
from puzzles._tpu import CHIPS, Chip

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def amount(count: float) -> str:
    """Bytes with a binary unit: 1536 -> '1.5 KiB'."""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} B" if unit == "B" else f"{_three(count)} {unit}"
        count /= 1024
    raise AssertionError


def _three(x: float) -> str:
    """Three digits, but never an exponent."""
    return f"{x:.0f}" if x >= 999.5 else f"{x:.3g}"


def scaled(count: float) -> str:
    """A count with a decimal unit: 25_165_824 -> '25.2 M'."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{_three(count / size)} {unit}"
    return f"{count:.0f}"


def bound(launch: Launch, chip: Chip) -> str:
    """'compute-bound' or 'memory-bound' on `chip`."""
    return "compute-bound" if launch.intensity >= chip.ridge else "memory-bound"


def roof(intensity: float, chip: Chip) -> str:
    """Where an intensity stands on a scale from 1/16 to 4096 FLOPs a byte; `|` is the ridge."""

    def at(x: float) -> int:
        return round(2 * min(max(math.log2(max(x, 1e-9)) + 4, 0), 16))

    bar = ["█"] * at(intensity) + ["·"] * (32 - at(intensity))
    bar.insert(at(chip.ridge), "|")
    reached = f"{intensity / chip.ridge:.1%}" if intensity < chip.ridge else "100%"
    return f"{''.join(bar)} at most {reached} of {chip.name}'s peak"


def receipt_text(
    launches: tuple[Launch, ...],
    chip: str = "v5e",
    ran: tuple[str, ...] = (),
    title: str = "",
) -> str:
    """The receipt of one launch, or a table of several; and what was run."""
    head = f"receipt for {title}" if title else "receipt"
    body = _one if len(launches) == 1 else _table
    parts = [head, body(launches, CHIPS[chip])]
    if ran:
        parts.append(f"ran    {', '.join(ran)}")
    return "\n".join(parts)


def _one(launches: tuple[Launch, ...], chip: Chip) -> str:
    (launch,) = launches
    name, budget = chip.name, _budget(launch, chip)
    whose = "this launch may use" if launch.vmem_limit_bytes else f"a kernel gets on {name}"
    fits = "" if _fits(launch, chip) else ": does not fit"
    read, written = amount(launch.hbm_bytes_read), amount(launch.hbm_bytes_written)
    often = "" if launch.times == 1 else f", {_times(launch)}: the rest is for one of them"
    rows = {
        "grid": f"{launch.grid} = {launch.steps:,} step{'s' * (launch.steps != 1)}{often}",
        "HBM": f"read {read}, written {written}",
        "VMEM": f"{amount(launch.vmem_bytes)} of the {amount(budget)} {whose}{fits}",
        "SMEM": f"{amount(launch.smem_bytes)} of {amount(chip.smem_bytes)}",
        "FLOPs": f"{scaled(launch.flops)}, {launch.intensity:.3g} per byte; {name}'s "
        f"matrix unit needs {chip.ridge:.0f} to be busy: {bound(launch, chip)}",
        "roof": roof(launch.intensity, chip),
    }
    if not launch.smem_bytes:
        del rows["SMEM"]
    return "\n".join(f"{label:<6} {text}" for label, text in rows.items())


def _budget(launch: Launch, chip: Chip) -> int:
    return launch.vmem_limit_bytes or chip.scoped_vmem_bytes


def _fits(launch: Launch, chip: Chip) -> bool:
    return launch.vmem_bytes <= _budget(launch, chip)


def _times(launch: Launch) -> str:
    return "in a loop" if launch.times is None else f"{launch.times} times"


def _table(launches: tuple[Launch, ...], chip: Chip) -> str:
    """A row for each launch."""
    rows = [("", "grid", "steps", "read", "written", "VMEM", "FLOPs", "per byte")]
    for number, one in enumerate(launches, 1):
        often = "" if one.times == 1 else f", {_times(one)}"
        rows.append(
            (
                f"{number} {one.name}{often}",
                str(one.grid),
                f"{one.steps:,}",
                amount(one.hbm_bytes_read),
                amount(one.hbm_bytes_written),
                amount(one.vmem_bytes) + ("" if _fits(one, chip) else ", does not fit"),
                scaled(one.flops),
                f"{one.intensity:.3g}",
            )
        )
    wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        padded = (text.rjust(width) for text, width in zip(cells, wide[1:], strict=True))
        lines.append("  ".join([name.ljust(wide[0]), *padded]))
    lines.append(
        f"{chip.name} gives a kernel {amount(chip.scoped_vmem_bytes)} of VMEM; its matrix unit "
        f"needs {chip.ridge:.0f} FLOPs per byte to be busy."
    )
    return "\n".join(lines)
