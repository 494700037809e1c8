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
    """A receipt for each launch, and once what was run."""
    parts = [_one(launch, CHIPS[chip], title) for launch in launches]
    if ran:
        parts.append(f"ran    {', '.join(ran)}")
    return "\n".join(parts)


def _one(launch: Launch, chip: Chip, title: str) -> str:
    name, budget = chip.name, launch.vmem_limit_bytes or chip.scoped_vmem_bytes
    whose = "this launch may use" if launch.vmem_limit_bytes else f"a kernel gets on {name}"
    fits = "" if launch.vmem_bytes <= budget else ": does not fit"
    read, written = amount(launch.hbm_bytes_read), amount(launch.hbm_bytes_written)
    often = "" if launch.times == 1 else f", {launch.times or 'several'} times: the rest is for one"
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
    head = f"receipt for {title}" if title else "receipt"
    return "\n".join([head, *(f"{label:<6} {text}" for label, text in rows.items())])
