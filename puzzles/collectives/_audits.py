"""What several puzzles ask of the traffic between devices."""

from __future__ import annotations

from puzzles._simulator import Wire


def both_ways(wire: Wire) -> None:
    """Asserts that each device sends as much to its left as to its right, both at the same time."""
    for device in range(wire.devices):
        sent, n = wire.sent(device), wire.devices
        right, left = sent.get((device + 1) % n, 0), sent.get((device - 1) % n, 0)
        assert right == left, (
            f"device {device} sends {right:,} bytes to the right and {left:,} to the left: a link "
            "carries data in both directions at once, so send half each way"
        )
        assert wire.at_once[device] >= 2, (
            f"device {device} never has two copies in flight: start both before you wait for either"
        )


def at_once(wire: Wire, count: int) -> None:
    """Asserts that each device starts at least `count` copies before it waits."""
    for device in range(wire.devices):
        most = wire.at_once[device]
        assert most >= count, (
            f"device {device} has at most {most} of its copies in flight at once, and needs "
            f"{count}: start all of them before the first wait"
        )


def hidden(wire: Wire, device: int | None = None, verb: str = "multiply") -> None:
    """Asserts that each copy has a product between its start and its wait.

    device: the sender of the copies to look at; None: all devices. verb: the product, in words.
    """
    for one in wire.transfers if device is None else wire.copies(device):
        assert one.overlapped, (
            f"device {one.source} multiplies nothing while its copy to device {one.target} is in "
            f"flight: start the copy, {verb} what you have, and wait after that"
        )
