"""What several rungs ask of a launch."""

from __future__ import annotations

from puzzles import Launch


def product_by_dots(launch: Launch, M: int, K: int, N: int, batch: int = 1) -> None:
    """Asserts that dots do the FLOPs of `batch` (M, K) by (K, N) products, no fewer."""
    needed = 2 * batch * M * K * N
    assert launch.dot_flops >= needed, (
        f"the dots do {launch.dot_flops:,} FLOPs, where this product needs {needed:,}: only a dot "
        "runs on the matrix unit, sums and products by hand do not"
    )


# Rungs of grouped_matmul ask for it.
def product_by_blocks(launch: Launch, M: int, K: int, N: int, batch: int = 1) -> None:
    """Asserts that the dots tile K, and do the FLOPs of `batch` (M, K) by (K, N) products."""
    assert max((dot.depth for dot in launch.dots), default=0) < K, (
        f"one block spans all {K} of K: tile it, a larger K would not fit into VMEM"
    )
    needed = 2 * batch * M * K * N
    assert launch.dot_flops == needed, (
        f"the dots do {launch.dot_flops:,} FLOPs; this product needs {needed:,}: "
        "one block product at every step, no more and no less"
    )
