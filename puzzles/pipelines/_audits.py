"""What several puzzles ask of a launch."""

from __future__ import annotations

import numpy as np

from puzzles import Launch
from puzzles._launch import single_slots


def by_hand(launch: Launch) -> None:
    """Asserts that the kernel starts copies of its own."""
    assert launch.copies, (
        "the kernel starts no copy: keep the array in HBM, `memory_space=pl.ANY`, and copy what "
        "you need of it yourself"
    )


def overlapped(launch: Launch, first: int = 1) -> None:
    """Asserts that work hides all copies of each array but `first`, with which something begins."""
    by_hand(launch)
    for one in () if launch.dots else launch.inputs:
        times = one.hbm_bytes / (np.prod(one.shape) * np.dtype(one.dtype).itemsize)
        assert times <= 1 or one.piped, (
            f"`{one.name}` is copied {times:.3g} times: bring each part of it once"
        )
    inputs = {one.name for one in launch.inputs}
    near = {copy.source for copy in launch.copies if "hbm" not in copy.spaces}
    for name, its in (launch.waits or {}).items():
        advice = "Start the next copy before you compute with this one"
        if name not in inputs:
            advice = "What is sent need not be waited for before its slot is written again"
        if name in near:
            advice = "It goes from VMEM to VMEM: assign the value, which needs no copy"
        assert its.pauses <= first, (
            f"at {its.exposed} of {its.count} waits for a copy from `{name}`, the kernel has "
            f"computed nothing since that copy started: it only waits. {advice}"
        )


def in_two_slots(launch: Launch) -> None:
    """Asserts that copies of blocks overlap the work; an array of few bytes may have one slot."""
    for one in (*launch.inputs, *launch.outputs):
        few = 4 * one.hbm_bytes < launch.hbm_bytes
        assert few or one.name not in single_slots(launch), (
            f"blocks of `{one.name}` have a single slot, so each copy waits for the work on the "
            "block before. Two slots hide copies behind work: leave out `pl.Buffered(1)`"
        )


def multiplied_once(launch: Launch) -> None:
    """Asserts that dots do what one product of the two inputs takes, and not some of it again.

    Asked before `overlapped`: a pipeline that runs again begins again, with nothing in flight.
    """
    (M, K), (_, N) = (one.shape for one in launch.inputs)
    times = launch.dot_flops / (2 * M * K * N)
    assert times >= 1 or launch.unknown_loops, (
        f"dots do {times:.0%} of this product's FLOPs: only a dot runs on the matrix unit, "
        "sums and products by hand do not"
    )
    why = "a grid that names each pair of blocks once is enough"
    if times == launch.steps > 1:
        why = (
            f"each of the launch's {launch.steps} grid steps runs all of `emit_pipeline`. The grid "
            "over blocks belongs to `emit_pipeline`"
        )
    assert times <= 1, f"the dots of {times:g} whole products run: {why}"


def in_hbm(launch: Launch, blocks: bool = False) -> None:
    """Asserts that no input or output lies in VMEM as a whole; with `blocks`, these may come."""
    for one in (*launch.inputs, *launch.outputs):
        if blocks and one.portion != one.shape:
            continue
        when = "stays in VMEM as a whole until" if one.output else "comes to VMEM as a whole before"
        how = f"{when} the pipeline {'ends' if one.output else 'begins'}"
        if one.portion != one.shape:
            how = "comes and goes in blocks by `pallas_call`, and not by the pipeline in the kernel"
        assert not one.piped, f"`{one.name}` {how}: let it stay in HBM, memory_space=pl.ANY"


def divided(launch: Launch) -> None:
    """Asserts that two cores share the bytes that the launch moves."""
    cores = launch.settings.cores
    assert cores == 2, (
        f"the kernel runs on {cores} core{'s' * (cores > 1)}: give it a mesh of two, "
        '`pltpu.TensorCoreMesh(axis_name="core", num_cores=2)`'
    )
    for way, moved in zip(("read", "written"), launch.bytes_by_core.T, strict=True):
        one, other = sorted(map(int, moved))
        assert 2 * one >= other, (
            f"of the bytes that are {way}, one core moves {other:,} and the other {one:,}: give "
            "each of them half of the work"
        )
