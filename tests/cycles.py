"""libtpu's cycles for the references next to JAX's own kernels. `make bench` writes docs/cycles.md.

libtpu takes prefetched lists for zeros. So the kernels that follow lists get lists whose entries
are arithmetic on the grid's indices (`computed_lists`): every tile of a full mask, or sequences of
one length. The kernels' bodies are unchanged, ours and JAX's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import puzzles
from puzzles._compile import estimated_cycles
from puzzles._launch import trace_call

CHIP = "v5e"
FILE = Path(__file__).parents[1] / "docs" / "cycles.md"
OPS = "jax.experimental.pallas.ops.tpu"
BLOCKS = ((256, 256), (512, 512), (1024, 512), (512, 1024))
MOST = 1.05  # of the cycles of JAX's kernel
bf16, f32 = jnp.bfloat16, jnp.float32
S = jax.ShapeDtypeStruct


class Row(NamedTuple):
    """Estimated cycles of a reference and of JAX's kernel for the same work."""

    puzzle: str
    kernel: str
    work: str
    ours: int
    theirs: int

    @property
    def ratio(self) -> float:
        """The cycles of the reference in units of the kernel's."""
        return self.ours / self.theirs


class ComputedList:
    """A prefetched list whose entries are a function of the index; a store into it is dropped."""

    def __init__(self, shape: tuple[int, ...], entry: Callable) -> None:
        self.shape, self.entry = shape, entry

    def __getitem__(self, index: Any) -> Any:
        return self.entry(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        pass


@contextlib.contextmanager
def computed_lists(*entries: Callable | None) -> Iterator[None]:
    """Context manager: prefetched operand n of a `pl.pallas_call` has the entries `entries[n](i)`.

    An operand whose entry is None becomes an ordinary operand in SMEM.
    """
    launch = pl.pallas_call

    def pallas_call(kernel: Callable, *, grid_spec: Any, **options: Any) -> Callable:
        def call(*operands: Any) -> Any:
            count = len(entries)
            assert grid_spec.num_scalar_prefetch == count, "an entry for each prefetched operand"
            lists, arrays = operands[:count], operands[count:]
            kept = [
                array
                for array, entry in zip(lists, entries, strict=True)
                if entry is None and array is not None
            ]

            def known(refs: Iterator) -> list:
                return [
                    array if array is None
                    else next(refs) if entry is None else ComputedList(array.shape, entry)
                    for array, entry in zip(lists, entries, strict=True)
                ]  # fmt: skip

            def body(*refs: Any) -> None:
                kernel(*known(iter(refs)), *refs[len(kept) :])

            def over(spec: pl.BlockSpec) -> pl.BlockSpec:
                if spec.index_map is None:
                    return spec
                index_map = spec.index_map  # it may read no list that stays in SMEM
                return pl.BlockSpec(
                    spec.block_shape,
                    lambda *ids: index_map(*ids, *known(iter([None] * len(kept)))),
                )

            def specs(tree: Any) -> Any:
                leaf = lambda x: isinstance(x, pl.BlockSpec)  # noqa: E731
                return jax.tree.map(over, tree, is_leaf=leaf)

            return launch(
                body,
                grid=grid_spec.grid,
                in_specs=[
                    *[pl.BlockSpec(memory_space=pltpu.SMEM)] * len(kept),
                    *specs(list(grid_spec.in_specs)),
                ],
                out_specs=specs(grid_spec.out_specs),
                scratch_shapes=grid_spec.scratch_shapes,
                **options,
            )(*kept, *arrays)

        return call

    pl.pallas_call = pallas_call
    try:
        yield
    finally:
        pl.pallas_call = launch


@contextlib.contextmanager
def recorded(launches: list[tuple[Callable, Any]]) -> Iterator[None]:
    """Context manager: append each `pl.pallas_call` and its operands' shapes to `launches`."""
    launch = pl.pallas_call

    def pallas_call(*args: Any, **options: Any) -> Callable:
        call = launch(*args, **options)

        def record(*operands: Any) -> Any:
            launches.append((call, jax.tree.map(lambda x: S(x.shape, x.dtype), operands)))
            return call(*operands)

        return record

    pl.pallas_call = pallas_call
    try:
        yield
    finally:
        pl.pallas_call = launch


def cycles(fn: Callable, *args: Any, lists: Sequence[Callable | None] = ()) -> int:
    """libtpu's cycles of the kernels of `fn(*args)`, without the operations around them."""
    launches: list[tuple[Callable, Any]] = []
    with recorded(launches), computed_lists(*lists) if lists else contextlib.nullcontext():
        trace_call(fn, *args)
    return sum(estimated_cycles(trace_call(call, *shapes), CHIP) for call, shapes in launches)


def solution(name: str) -> Callable:
    """The reference of a puzzle."""
    return puzzles.find(name).solution


def ops(module: str) -> Any:
    """One of the modules of JAX's own TPU kernels."""
    return importlib.import_module(f"{OPS}.{module}")


def matmuls() -> Iterator[Row]:
    """matmul_bf16 next to JAX's matmul."""
    for n, b in ((1024, 256), (1024, 512), (2048, 512)):
        x = S((n, n), bf16)
        yield Row(
            "matmul_bf16",
            "matmul",
            f"{n}³, blocks of {b}³",
            cycles(functools.partial(solution("matmul_bf16"), bm=b, bk=b, bn=b), x, x),
            cycles(functools.partial(ops("matmul").matmul, block_shape=(b, b), block_k=b), x, x),
        )


def full_list(T: int, bq: int, bk: int, kind: int) -> tuple[tuple, list[Callable], np.ndarray]:
    """The list of all tiles of a (T, T) mask, its entries as arithmetic, and no stored patterns."""
    rows, columns = T // bq, T // bk
    assert columns & (columns - 1) == 0, "libtpu's estimate follows shifts, not divisions"
    shift, low = columns.bit_length() - 1, columns - 1

    def flags(t: Any) -> Any:
        column = t & low
        return kind + 4 * (column == 0) + 8 * (column == low)

    entries = [lambda t: t >> shift, lambda t: t & low, lambda t: jnp.int32(0), flags]
    t = np.arange(rows * columns, dtype=np.int32)
    tiles = (t >> shift, t & low, np.zeros_like(t), np.asarray(flags(t), np.int32))
    return tiles, entries, np.zeros((0, bq, bk), bool)


def causal(row: Any, column: Any) -> Any:
    """A causal mask's rule."""
    return column <= row


def attentions(N: int = 2, T: int = 2048) -> Iterator[Row]:
    """Forward attention next to JAX's flash_attention and the kernel of its splash_attention."""
    flash, splash = ops("flash_attention"), ops("splash_attention.splash_attention_kernel")
    info = ops("splash_attention.splash_attention_mask_info").MaskInfo
    heads = importlib.import_module(puzzles.find("splash_multi_head").module)
    for H in (128, 256):
        q, batch = S((N, T, H), bf16), S((1, N, T, H), bf16)
        for bq, bk in BLOCKS:
            sizes = flash.BlockSizes(block_q=bq, block_k_major=bk, block_k=bk, block_b=1)
            yield Row(
                "multi_head_attention",
                "flash_attention",
                f"H = {H}, blocks of {bq} × {bk}",
                cycles(functools.partial(solution("multi_head_attention"), bq=bq, bk=bk), q, q, q),
                cycles(
                    functools.partial(flash.flash_attention, sm_scale=H**-0.5, block_sizes=sizes),
                    batch,
                    batch,
                    batch,
                ),
            )
    q = S((N, T, 128), bf16)
    for bq, bk in BLOCKS:
        tiles, entries, patterns = full_list(T, bq, bk, 1)
        sizes = splash.BlockSizes(block_q=bq, block_kv=bk, block_kv_compute=bk)
        table = np.ones((1, T // bq, T // bk), np.int32)
        theirs = functools.partial(
            splash._splash_attention_forward,
            info(table, None, table, None, np.arange(T, dtype=np.int32)),
            segment_ids=None,
            sinks=None,
            mask_value=-1e30,
            is_mqa=False,
            block_sizes=sizes,
            residual_checkpoint_name=None,
            save_residuals=False,
            mask_function=causal,
            attn_logits_soft_cap=None,
            interpret=False,
        )

        def ours(q, k, v, tiles=tiles, patterns=patterns):
            return heads.splash_over_tiles(q, k, v, tiles, patterns, rule=causal)

        yield Row(
            "splash_multi_head",
            "splash_attention, forward",
            f"causal rule in every tile, blocks of {bq} × {bk}",
            cycles(ours, q, q, q, lists=entries),
            cycles(
                lambda q, k, v, theirs=theirs: theirs(q, k, v),
                q,
                q,
                q,
                lists=(lambda at: at[2], lambda at, flags=entries[3]: flags(at[2]) & 3, None),
            ),
        )


def gradients(N: int = 2, T: int = 2048, H: int = 128) -> Iterator[Row]:
    """The two backward kernels next to those of JAX's splash_attention, on a full mask."""
    splash = ops("splash_attention.splash_attention_kernel")
    none = ops("splash_attention.splash_attention_mask_info").MaskInfo(*[None] * 5)
    q, row, column = S((N, T, H), bf16), S((N, 1, T), f32), S((N, T), f32)
    minor = splash.QKVLayout.HEAD_DIM_MINOR
    same = dict(
        is_mqa=False,
        mask_info=none,
        mask_value=-1e30,
        attn_logits_soft_cap=None,
        q_layout=minor,
        k_layout=minor,
        v_layout=minor,
        mask_function=None,
        interpret=False,
    )
    for bq, bk in ((256, 256), (512, 512)):
        tiles, entries, patterns = full_list(T, bq, bk, 2)
        blocks = dict(bq=bq, bkv=bk)

        def dq(q, k, v, lse, do, delta, blocks=blocks):
            return splash._splash_attention_bwd_dq(
                q, k, v, None, None, lse, do, delta, **blocks, **same
            )

        def dkv(q, k, v, lse, do, delta, blocks=blocks):
            return splash._splash_attention_bwd_dkv(
                q, k, v, None, None, lse, do, delta,
                **blocks, bkv_compute=blocks["bkv"], use_fused_bwd_kernel=False, **same,
            )[1:]  # fmt: skip

        for name, theirs in (("attention_dq", dq), ("attention_dkv", dkv)):

            def ours(*args, name=name, tiles=tiles, patterns=patterns):
                return solution(name)(*args, tiles, patterns)

            yield Row(
                name,
                "splash_attention, " + name.removeprefix("attention_"),
                f"full mask, blocks of {bq} × {bk}",
                cycles(ours, q, q, q, q, row, row, lists=entries),
                cycles(theirs, q, q, q, column, q, column),
            )


def pages() -> Iterator[Row]:
    """gapless_attention next to JAX's paged_attention with as many pages a block."""
    N, K, H = 32, 4, 128
    for B, length, page in ((4, 512, 16), (4, 512, 64), (4, 2048, 128), (64, 1024, 16)):
        most = length // page
        q, pool = S((B, N, H), bf16), S((K, B * most, page, H), bf16)
        lengths = np.full(B, length, np.int32)
        table = np.arange(B * most, dtype=np.int32).reshape(B, most)
        known = [lambda b, length=length: jnp.int32(length), lambda n: n]
        paged = functools.partial(ops("paged_attention").paged_attention, pages_per_compute_block=4)

        def of_lists(fn, lengths=lengths, table=table):
            return lambda q, k, v: fn(q, k, v, jnp.asarray(lengths), jnp.asarray(table))

        yield Row(
            "gapless_attention",
            "paged_attention",
            f"{B} sequences of {length:,} keys, pages of {page}, 4 a round",
            cycles(of_lists(solution("gapless_attention")), q, pool, pool, lists=known),
            cycles(of_lists(paged), q, pool, pool, lists=[*known, None, None]),
        )


def columns() -> Iterator[Row]:
    """flash_attention next to itself with m and l as columns, in f32."""
    puzzle, q = puzzles.find("flash_attention"), S((2048, 128), f32)
    answers = {answer.name: answer for answer in puzzle.alternatives}
    narrow = puzzles.mutate(puzzle, answers["keeps m and l as columns"])
    for bq, bk in BLOCKS:
        forms = (functools.partial(form, bq=bq, bk=bk) for form in (puzzle.solution, narrow))
        work = f"H = 128, f32, blocks of {bq} × {bk}"
        counts = [cycles(form, q, q, q) for form in forms]
        yield Row("flash_attention", "itself, with m and l as columns", work, *counts)


def rows() -> Iterator[Row]:
    """All rows of the table."""
    for group in (matmuls, columns, attentions, gradients, pages):
        yield from group()


TEXT = """# Cycles next to JAX's kernels

{count} comparisons of a reference with the kernel that JAX {jax} ships for the same work, by
libtpu's estimate for {chip}. The last column is the reference's cycles divided by the other
kernel's. libtpu needs no TPU, and counts loops and grids. It is optimistic about HBM, so use it to
rank kernels that move the same bytes. `make bench` writes this page. `tests/cycles.py` explains how
it estimates kernels that follow lists.

Only kernels are counted, without the operations around them, and operands start in HBM. Both
kernels of a row of `flash_attention` multiply scores by 1/√H. JAX's SplashAttention expects scaled
queries, so it saves this multiplication.

`gapless_attention` copies a page of all key heads at once, JAX's kernel a page of one head. So it
starts and waits for a quarter of the copies here.

| Puzzle | Other kernel: JAX's, or itself | Work, in bf16 if not said | Reference | Other | Ratio |
|---|---|---|---:|---:|---:|
"""


def page(table: Sequence[Row]) -> str:
    """The text of docs/cycles.md."""
    text = TEXT.format(count=len(table), jax=jax.__version__, chip=CHIP)
    for row in table:
        names = f"`{row.puzzle}` | `{row.kernel}`"
        text += f"| {names} | {row.work} | {row.ours:,} | {row.theirs:,} | {row.ratio:.2f} |\n"
    return text


def main() -> None:
    """Write the page and print it row by row, then the references that are slower than `MOST`."""
    table = []
    for row in rows():
        table.append(row)
        counts = f"{row.ours:10,}{row.theirs:10,}{row.ratio:6.2f}"
        print(f"{row.puzzle:22}{row.work:58}{counts}", flush=True)
    FILE.write_text(page(table), encoding="utf-8")
    slow = [f"{row.puzzle}, {row.work}" for row in table if row.ratio > MOST]
    print(f"above {MOST} of JAX's cycles: {'; '.join(slow) or 'none'}")


if __name__ == "__main__":
    main()
