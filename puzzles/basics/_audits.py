"""What several rungs ask of a launch."""

from __future__ import annotations

from puzzles import Launch


def product_by_blocks(launch: Launch, M: int, K: int, N: int, batch: int = 1) -> None:
    """Asserts that the dots tile K, and do the FLOPs of `batch` (M, K) by (K, N) products."""
    assert max((dot.depth for dot in launch.dots), default=0) < K, (
        f"one block spans all {K} of K: tile it, a larger K would not fit into VMEM"
    )
    needed = 2 * batch * M * K * N
    too_few = launch.dot_flops < needed and not launch.unknown_loops
    assert launch.least.dot_flops <= needed and not too_few, (
        f"the dots do {launch.dot_flops:,} FLOPs; this product needs {needed:,}: "
        "one block product at every step, no more and no less"
    )


def rows_by_blocks(launch: Launch) -> None:
    """Asserts that no block of the input holds whole rows."""
    x = launch.inputs[0]
    assert x.portion[1] < x.shape[1], (
        f"a block holds whole rows of {x.shape[1]}: take several steps, rows may be long"
    )
