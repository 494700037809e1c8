"""The traffic of a program between devices, as rows of a receipt."""

from __future__ import annotations

from puzzles._compile import CHIPS, LINK_BYTES
from puzzles._launch import Traced
from puzzles._receipt import amount, seconds_words
from puzzles._rules import plural, sentence
from puzzles._simulator import (
    HOP_SECONDS,
    DevicesRun,
    Semantics,
    SimulationError,
    Speeds,
    Wire,
    cannot,
    on_mesh,
    run_devices,
)


def on_chips(traced: Traced, chip: str) -> DevicesRun:
    """Run a program on the devices of its mesh, timed as on these chips."""
    model = CHIPS[chip]
    speeds = Speeds(model.flops_per_second, model.hbm_bytes_per_second, LINK_BYTES[chip])
    try:
        return run_devices(traced, Semantics(), speeds=speeds)
    except Exception as error:
        raise SimulationError(getattr(error, "finding", cannot(error))) from None


def wire_receipt(traced: Traced, chip: str) -> str:
    """Rows of a receipt on the copies between devices; "" if the program runs on one device.

    Raises `SimulationError` if NumPy cannot run the program, or for a hazard.
    """
    return wire_rows(on_chips(traced, chip).wire, chip) if on_mesh(traced) else ""


def wire_line(label: str, wire: Wire) -> str:
    """A sentence on a pass: the bytes that a device sends in a case, and the time on v5e."""
    size = max(sum(wire.sent(device).values()) for device in range(wire.devices))
    facts = dict(label=label, size=amount(size), whole=seconds_words(wire.seconds), chip="v5e")
    return sentence("wire_line", **facts)


def wire_rows(wire: Wire, chip: str) -> str:
    """Rows on the device that sends most, of several that computes most: copies, time, overlap."""
    if not wire.transfers:
        return ""
    busy = [(sum(wire.sent(n).values()), wire.spent("works", n)) for n in range(wire.devices)]
    device = busy.index(max(busy))
    copies, size = wire.copies(device), sum(wire.sent(device).values())
    to = ", ".join(f"{amount(sent)} to device {n}" for n, sent in sorted(wire.sent(device).items()))
    largest, hops = max(copy.bytes for copy in copies), max(copy.hops for copy in copies)
    sent = sentence(
        "wire_sends",
        device=device, size=amount(size), to=to, copies=plural(len(copies), "copy"),
        largest=amount(largest), hops=hops, at_once=wire.at_once[device],
    )  # fmt: skip
    works, waits = wire.spent("works", device), wire.spent("waits", device)
    facts = dict(works=seconds_words(works), waits=seconds_words(waits), chip=chip)
    facts["hidden"] = str(sum(copy.overlapped for copy in copies))
    facts |= dict(whole=seconds_words(wire.seconds), copies=plural(len(copies), "copy"))
    facts |= dict(link=f"{LINK_BYTES[chip] / 1e9:.0f}", hop=seconds_words(HOP_SECONDS))
    rows = [f"ICI    {sent}", f"wire   {sentence('wire_takes', **facts)}"]
    if works:
        facts["bound"] = sentence("wire_bound") if waits > works else sentence("products_bound")
        rows.append(f"hides  {sentence('wire_hides', **facts)}")
    if chip == "v5e" and any(copy.hops & (copy.hops - 1) for copy in copies):
        rows.append(f"routes {sentence('wire_routes')}")
    return "\n".join(rows)
