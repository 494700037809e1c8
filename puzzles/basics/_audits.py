"""What several puzzles ask of a launch, and how they count."""

from __future__ import annotations

from puzzles import Launch


def product_by_dots(launch: Launch, M: int, K: int, N: int) -> None:
    """Asserts that dots do the FLOPs of an (M, K) by (K, N) product, no fewer."""
    needed = 2 * M * K * N
    assert launch.dot_flops >= needed or launch.unknown_loops, (
        f"the dots do {launch.dot_flops:,} FLOPs, but this product needs {needed:,}: only a dot "
        "runs on the matrix unit, sums and products by hand do not"
    )


def narrow(launch: Launch) -> None:
    """Asserts that dots multiply bf16 blocks, and that the kernel writes bf16."""
    for dot in launch.dots:
        kinds = {str(dtype) for dtype in dot.dtypes[:2]}
        assert kinds == {"bfloat16"}, (
            f"a dot multiplies {' by '.join(sorted(kinds))}: leave the blocks in bf16, which "
            "is what the matrix unit is built for, and ask for an f32 result"
        )
    written = str(launch.outputs[0].dtype)
    assert written == "bfloat16", (
        f"the kernel writes {written}, and a cast outside has to read it again: round in the "
        "kernel, where it stores"
    )


def counted(number: int, what: str) -> str:
    """So many of something, "1 block of sums" or "1,024 blocks of sums"."""
    noun, *more = what.split(" ")
    return " ".join((f"{number:,}", noun if number == 1 else f"{noun}s", *more))
