"""The ladder's ways to gather rows and multiply them, beside each other."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax.numpy as jnp

from puzzles import find
from puzzles._compile import CHIPS
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


@dataclass(frozen=True)
class Way:
    """Costs of one device: bytes that it sends, its copies, and seconds."""

    bytes: int
    copies: int
    wire: float  # until the last copy has arrived; with products inside, until the end
    product: float  # after the gather; 0 if the kernel multiplies itself

    @property
    def seconds(self) -> float:
        """The time from the first copy to the last product."""
        return self.wire + self.product


def way(name: str, chip: str, devices: int, M: int, K: int, N: int) -> Way:
    """A way to multiply `devices` blocks of (M, K) bf16 rows by (K, N), by the receipt's model."""
    multiplies = WAYS[name]
    x, w = jnp.zeros((devices, M, K), jnp.bfloat16), jnp.zeros((devices, K, N), jnp.bfloat16)
    blocks = dict(bm=M // 2, bk=K, bn=N // 4)  # large, so that the run has few steps
    fn = functools.partial(find(name).solution, **blocks if name == "collective_matmul" else {})
    args = (x, w) if multiplies else (x,)
    wire = on_chips(trace_call(over_mesh(fn, {"x": devices}), *args), chip).wire
    product = 2 * devices * M * K * N / CHIPS[chip].flops_per_second
    sent, copies = sum(wire.sent(0).values()), len(wire.copies(0))
    return Way(sent, copies, wire.seconds, 0.0 if multiplies else product)


def compare_gathers(
    chip: str = "v5e", devices: int = 4, M: int = 1024, K: int = 256, N: int = 4096
) -> str:
    """A table of what each way costs a device: copies, bytes, and the time by the receipt's model.

    A device has M rows of K bf16 values, and N columns. Only the pipeline of `collective_matmul`
    waits for HBM in this model.
    """
    names = ("copies", "KiB sent", "gather", "product", "together")
    lines = ["".join(f"{name:>{wide}}" for name, wide in zip(("", *names), _WIDTHS, strict=True))]
    for name, multiplies in WAYS.items():
        its = way(name, chip, devices, M, K, N)
        parts = ["-", "-"] if multiplies else [_micro(its.wire), _micro(its.product)]
        cells = [str(its.copies), f"{its.bytes / 2**10:,.0f}", *parts, _micro(its.seconds)]
        padded = (f"{cell:>{wide}}" for cell, wide in zip(cells, _WIDTHS[1:], strict=True))
        lines.append(f"{name:{_WIDTHS[0]}}" + "".join(padded))
    lines.append(
        f"time on {devices} chips of {chip}, by the receipt's model (nothing was measured)"
    )
    return "\n".join(lines)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"
