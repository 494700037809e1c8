"""How far is the price of a launch from libtpu's estimate? `make steps` writes docs/prices.md.

The figures of `Chip` and `vector_slots` are fitted to small launches with one cause each
(`fitted`). `held_out` has launches that no figure was fitted to. libtpu's estimate of cycles is the
only clock here, and it is optimistic about HBM: launches that HBM binds by the price do not count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call

import puzzles
from puzzles._compile import CHIPS, NoEstimateError, Price, estimated_cycles, price
from puzzles._launch import Traced, trace_call
from puzzles._receipt import seconds_words

ESTIMATED = ("v5e", "v6e")
CLOSE = 1.5
FILE = Path(__file__).parents[1] / "docs" / "prices.md"
f32, bf16, i8 = jnp.float32, jnp.bfloat16, jnp.int8
S = jax.ShapeDtypeStruct
Named = Iterator[tuple[str, Traced]]


@dataclass(frozen=True)
class Estimate:
    """A launch on a chip: its price, and libtpu's cycles in seconds of the chip's clock."""

    name: str
    chip: str
    price: Price
    seconds: float

    @property
    def counts(self) -> bool:
        """Whether HBM does not bind the launch, by its price."""
        return self.price.hbm < self.price.core

    @property
    def ratio(self) -> float:
        """libtpu's time, in units of the price."""
        return self.seconds / self.price.seconds

    @property
    def agrees(self) -> bool:
        """Whether both are within a factor of `CLOSE`."""
        return 1 / CLOSE <= self.ratio <= CLOSE


def over_blocks(
    kernel: Callable, block: tuple[int, int], *inputs: S, out: object = None, scratch: tuple = ()
) -> Traced:
    """A launch of an elementwise kernel over blocks of two-dimensional arrays."""
    shape = inputs[0].shape
    grid = tuple(n // b for n, b in zip(shape, block, strict=True))
    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    out = S(shape, out or inputs[0].dtype)
    return trace_call(call(kernel, out, grid, [spec] * len(inputs), spec, scratch), *inputs)


def added(*refs: jax.Ref) -> None:
    """The sum of all inputs."""
    *inputs, o_ref = refs
    o_ref[...] = sum(ref[...] for ref in inputs)


def applied(function: Callable) -> Callable:
    """A kernel that applies a function to its block."""

    def kernel(x_ref, o_ref):
        o_ref[...] = function(x_ref[...]).astype(o_ref.dtype)

    return kernel


def normalized(x: jax.Array) -> jax.Array:
    """Rows with mean 0 and variance 1."""
    centered = x - x.mean(axis=1, keepdims=True)
    return centered * jax.lax.rsqrt((centered * centered).mean(axis=1, keepdims=True) + 1e-6)


def flash(q, k, v, block: int, heads: int) -> jax.Array:
    """Attention with running maxima and sums, written plainly."""
    size, depth = q.shape[1:]

    def kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
        j = pl.program_id(2)

        @pl.when(j == 0)
        def _():
            m_ref[...] = jnp.full_like(m_ref, -1e30)
            l_ref[...] = jnp.zeros_like(l_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        scores = jnp.einsum("qd,kd->qk", q_ref[...], k_ref[...], preferred_element_type=f32)
        m_new = jnp.maximum(m_ref[...], scores.max(axis=1, keepdims=True))
        p, alpha = jnp.exp(scores - m_new), jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + p.sum(axis=1, keepdims=True)
        product = jnp.dot(p.astype(v_ref.dtype), v_ref[...], preferred_element_type=f32)
        acc_ref[...] = alpha * acc_ref[...] + product
        m_ref[...] = m_new

        @pl.when(j == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = (acc_ref[...] / l_ref[...]).astype(o_ref.dtype)

    rows = pl.BlockSpec((None, block, depth), lambda h, i, j: (h, i, 0))
    columns = pl.BlockSpec((None, block, depth), lambda h, i, j: (h, j, 0))
    scratch = [pltpu.VMEM((block, 1), f32), pltpu.VMEM((block, 1), f32)]
    scratch.append(pltpu.VMEM((block, depth), f32))
    grid = (heads, size // block, size // block)
    return call(kernel, S(q.shape, q.dtype), grid, [rows, columns, columns], rows, scratch)(q, k, v)


def attention(size: int, depth: int, heads: int, block: int, dtype: object) -> Traced:
    """`flash` on arrays of the same shape."""
    x = S((heads, size, depth), dtype)
    return trace_call(functools.partial(flash, block=block, heads=heads), x, x, x)


def highest(block: int) -> Traced:
    """A matmul of 1024 with precision HIGHEST."""

    def kernel(a_ref, b_ref, o_ref):
        o_ref[...] = jnp.dot(a_ref[...], b_ref[...], precision="highest")

    specs = [
        pl.BlockSpec((block, 1024), lambda i, j: (i, 0)),
        pl.BlockSpec((1024, block), lambda i, j: (0, j)),
    ]
    out_spec = pl.BlockSpec((block, block), lambda i, j: (i, j))
    x, grid = S((1024, 1024), f32), (1024 // block, 1024 // block)
    return trace_call(call(kernel, x, grid, specs, out_spec), x, x)


def matmul(size: int, dtype: object, **blocks: int) -> Traced:
    """The reference of matmul_bf16 on square arrays."""
    solution = functools.partial(puzzles.find("matmul_bf16").solution, **blocks)
    return trace_call(solution, S((size, size), dtype), S((size, size), dtype))


def small_dots(count: int, rows: int) -> Traced:
    """Products of few rows, a grid step each."""

    def kernel(x_ref, w_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=f32)

    rows_spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
    specs = [rows_spec, pl.BlockSpec((128, 128), lambda i: (0, 0))]
    x = S((count * rows, 128), bf16)
    out = S(x.shape, f32)
    return trace_call(call(kernel, out, (count,), specs, rows_spec), x, S((128, 128), bf16))


def reference(name: str) -> Traced:
    """The reference of a puzzle, on the last of its cases."""
    puzzle = puzzles.find(name)
    return trace_call(puzzle.solution, *puzzle.arguments(len(puzzle.cases) - 1))


def inner_pipeline(block: tuple[int, int], steps: int) -> Traced:
    """A sum by `emit_pipeline`."""

    def kernel(x_ref, y_ref, o_ref):
        spec = pl.BlockSpec(block, lambda i: (i, 0))
        pltpu.emit_pipeline(
            added, grid=(steps,), in_specs=[spec, spec], out_specs=[spec]
        )(x_ref, y_ref, o_ref)  # fmt: skip

    x = S((block[0] * steps, block[1]), f32)
    return trace_call(call(kernel, x, (), [HBM, HBM], HBM), x, x)


def fitted() -> Named:
    """Launches with one cause each, and those by which the sum of the causes was checked."""
    for block in ((8, 128), (32, 128), (64, 128)):
        yield f"add {block}", over_blocks(added, block, S((1024, 1024), f32), S((1024, 1024), f32))
    for width in (128, 512):
        solution = puzzles.find("stream_sum").solution
        yield f"64 copies of {width // 4} KiB", trace_call(solution, S((64 * 64, width), f32))
    for count in (16, 64):
        yield f"{count} dots (128, 128)", small_dots(count, 128)
    for name in ("row_sum", "online_softmax", "pipelined_add"):  # the two ends of a pipeline
        yield name, reference(name)
    yield "matmul bf16 2048 by (128, 128, 128)", matmul(2048, bf16, bm=128, bk=128, bn=128)
    yield "attention bf16 2048 × 128 by 512", attention(2048, 128, 4, 512, bf16)


def held_out() -> Named:
    """Launches that no figure was fitted to."""
    x = S((2048, 2048), f32)
    yield "add f32 2048 by (8, 128)", over_blocks(added, (8, 128), x, x)
    yield "add f32 2048 by (16, 256)", over_blocks(added, (16, 256), x, x)
    large = S((4096, 4096), f32)
    yield "add f32 4096 by (512, 512)", over_blocks(added, (512, 512), large, large)
    yield "exp f32 2048 by (256, 512)", over_blocks(applied(jnp.exp), (256, 512), x)
    gelu = applied(functools.partial(jax.nn.gelu, approximate=True))
    yield "gelu f32 2048 by (32, 256)", over_blocks(gelu, (32, 256), x)
    yield "softmax f32 2048 by (16, 2048)", over_blocks(applied(jax.nn.softmax), (16, 2048), x)
    yield "normalized f32 2048 by (16, 2048)", over_blocks(applied(normalized), (16, 2048), x)
    yield "tanh bf16 2048 by (64, 256)", over_blocks(applied(jnp.tanh), (64, 256), S(x.shape, bf16))
    for blocks in ((256, 256, 256), (512, 512, 512), (256, 1024, 256), (256, 128, 512)):
        sizes = dict(zip(("bm", "bk", "bn"), blocks, strict=True))
        yield f"matmul bf16 2048 by {blocks}", matmul(2048, bf16, **sizes)
    yield "matmul f32 1024 by 256", matmul(1024, f32, bm=256, bk=256, bn=256)
    yield "matmul f32 1024, HIGHEST, by 256", highest(256)
    yield "attention bf16 2048 × 64 by 512", attention(2048, 64, 4, 512, bf16)
    yield "attention bf16 1024 × 64 by 128", attention(1024, 64, 4, 128, bf16)
    yield "attention f32 1024 × 128 by 256", attention(1024, 128, 2, 256, f32)
    yield "attention bf16 2048 × 128 by 256", attention(2048, 128, 4, 256, bf16)
    yield "attention f32 1024 × 128 by 128", attention(1024, 128, 4, 128, f32)
    yield "512 dots (16, 128) (128, 128)", small_dots(512, 16)
    for rows in (256, 2048):
        stream = trace_call(puzzles.find("stream_sum").solution, S((rows, 1024), f32))
        yield f"stream_sum, {rows // 64} copies of 256 KiB", stream
    yield "emit_pipeline add by (64, 256)", inner_pipeline((64, 256), 32)
    yield "emit_pipeline add by (16, 512)", inner_pipeline((16, 512), 64)
    yield "emit_pipeline add by (8, 1024)", inner_pipeline((8, 1024), 48)
    for name in ("scale_blocks", "outer_product", "batched_matmul", "tiled_matmul",
                 "fix_the_grid", "fused_matmul", "pipelined_matmul"):  # fmt: skip
        yield name, reference(name)


def estimated(launches: Named, chips: Iterable[str] = ESTIMATED) -> Iterator[Estimate]:
    """libtpu's estimate of each launch on each chip that libtpu estimates it for."""
    for name, traced in launches:
        for chip in map(CHIPS.__getitem__, chips):
            try:
                cycles = estimated_cycles(traced, chip.name)
            except NoEstimateError:
                continue
            priced = price(traced.launches, chip)
            yield Estimate(name, chip.name, priced, cycles / chip.hertz)


def table(title: str, estimates: list[Estimate]) -> list[str]:
    """Markdown lines: a row for each launch, and how many of those that count agree."""
    rows = ["| launch | chip | price | libtpu | libtpu / price | bound by |", "|" + "---|" * 6]
    for one in estimates:
        times = f"{seconds_words(one.price.seconds)} | {seconds_words(one.seconds)}"
        cause = next(iter(one.price.causes))
        rows.append(f"| {one.name} | {one.chip} | {times} | {one.ratio:.2f} | {cause} |")
    lines = [f"## {title}", "", *rows, ""]
    for chip in ESTIMATED:
        counted = [one for one in estimates if one.counts and one.chip == chip]
        close = sum(one.agrees for one in counted)
        counts = f"{close} of {len(counted)} launches that HBM does not bind"
        lines.append(f"{chip}: {counts} are within a factor of {CLOSE}.")
        lines.append("")
    return lines


def main() -> None:
    """Write the tables."""
    lines = [
        "# Prices next to libtpu's estimates",
        "",
        "`make steps` writes this page. The price is the time that a receipt and `sweep` print. It",
        "is the longer of HBM's time and the sum of the core's terms (matrix unit, vector unit,",
        "steps), plus waits that no work hides. libtpu's estimate is a count of cycles, not a",
        "measurement. It is optimistic about HBM: launches that HBM binds are not counted.",
        "libtpu does not estimate v4.",
        "",
        *table("Launches that no figure was fitted to", list(estimated(held_out()))),
        *table("Launches that figures were fitted to", list(estimated(fitted()))),
    ]
    FILE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
