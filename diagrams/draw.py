"""Every diagram, drawn from the reference launches by `python -m puzzles build`."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import puzzles
from puzzles import _draw as p
from puzzles._author import strip
from puzzles._compile import CHIPS
from puzzles._draw import film

sys.path.insert(0, str(Path(__file__).parent))

from blocks import block_map
from lanes import lanes
from reel import reel
from tables import classified, walks


def _array(*shape: int, dtype: object = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def shared(
    name: str,
    shapes: Sequence[object],
    first: int,
    notes: Sequence[str],
    title: str,
    visits: Sequence[tuple[int, int]],
    words: Sequence[str],
) -> Callable[[], str]:
    """A filmstrip of visits to tiles that groups share: each has the rows that are its own.

    visits: from and to, in rows of the block. words: what becomes of the other rows of the output.
    """

    def draw() -> str:
        (launch,) = puzzles.trace(puzzles.find(name).solution, *shapes)
        steps = range(first, first + len(notes))
        rows, bands = launch.outputs[0].sizes[-2], []  # for each step, by operand
        for (start, end), word in zip(visits, words, strict=True):
            others = [one for one in ((0, start), (end, rows)) if one[0] < one[1]]
            hidden = [(*one, "") for one in others]
            stored = [(start, end, "stored")] * (start < end)
            bands.append(
                {
                    launch.inputs[0].name: hidden,
                    launch.outputs[0].name: [*stored, *((*one, word) for one in others)],
                }
            )

        def over(n: int, still: p.Still) -> str:
            shown = bands[n].get(still.operand["name"], ())
            return "".join(_band(still, *one) for one in shown)

        says = f"{title}. " + " ".join(notes)
        return film(launch, steps, title, says, notes, over=over, drawn=["masked"])

    return draw


def _band(still: p.Still, start: int, end: int, word: str) -> str:
    """Rows of the block of a step with their word to the right; without one, they do not count."""
    x, y, w, h = still.block
    each = h / still.operand["sizes"][-2]
    top, height = y + start * each, (end - start) * each
    if not word:
        return p.cell(x, top, w, height, "masked")
    edge = "".join(f"M{p.px(x)} {p.px(at)}h{p.px(w)}" for at in (top, top + height))
    line = f'<path d="{edge}" stroke="{p.INK}" stroke-width="1" fill="none"/>'
    return line + p.text(x + w + 4, top + height / 2 + 3, word, size=11)


def memories() -> str:
    """Where add_ten's data are: HBM, VMEM, and the kernel between two copies."""
    title = "A kernel sees VMEM; pallas_call does the copying"
    body = [p.text(20, 28, title, size=16, bold=True)]
    boxes = [
        (20, "HBM", "x and the result", "large and far"),
        (250, "VMEM", "x_ref, o_ref", "small and near"),
    ]
    boxes.append((480, "kernel", "x_ref[...] + 10", "vector registers"))
    for x, name, inside, what in boxes:
        body.append(
            f'<path d="{p.rect(x, 60, 150, 110)}" fill="none" stroke="{p.INK}" stroke-width="1.5"/>'
        )
        body.append(p.text(x + 12, 82, name, size=14, bold=True))
        body.append(p.text(x + 12, 100, what, size=11, muted=True))
        body.append(p.text(x + 12, 150, inside, size=11, mono=True))
    arrows = [
        (170, 250, 100, "fetched", "copy in"),
        (250, 170, 142, "written", "copy out"),
    ]
    arrows += [(400, 480, 100, "fetched", "read"), (480, 400, 142, "written", "write")]
    for start, end, y, mark, words in arrows:
        colour = p.MARKS[mark]["looks"]["fill"]
        tip = 8 if end < start else -8
        body.append(
            f'<path d="M{start} {y}H{end + tip}M{end} {y}l{tip} -5v10z" stroke="{colour}" '
            f'stroke-width="2.5" fill="{colour}"/>'
        )
        body.append(p.text((start + end) / 2, y - 9, words, size=11, anchor="middle"))
    says = (
        "HBM on the left, VMEM in the middle, the kernel on the right. pallas_call copies the "
        "input into VMEM before the kernel runs, and the output back after it."
    )
    return p.document(650, 192, "".join(body), title, says)


def roofline() -> str:
    """FLOPs per byte of the reference bf16 matmul at several block sizes, under v5e's roof."""
    chip, square = CHIPS["v5e"], _array(4096, 4096, dtype=jnp.bfloat16)
    matmul = puzzles.find("matmul_bf16").solution
    points = []
    for side in (128, 256, 512, 1024):
        blocks = functools.partial(matmul, bm=side, bk=256, bn=side)
        (launch,) = puzzles.trace(blocks, square, square)
        points.append((f"{side} × {side}", launch.intensity))
    title = "Larger output blocks climb the roofline"
    left, bottom, wide, high = 90.0, 270.0, 470.0, 190.0

    def at(intensity: float, teraflops: float) -> tuple[float, float]:
        x = left + wide * (math.log2(intensity) - 5) / 5  # 32 to 1024 FLOPs per byte
        return x, bottom - high * (math.log2(teraflops) - 4) / 4  # 16 to 256 TFLOP/s

    peak = chip.flops_per_second / 1e12
    slope = chip.hbm_bytes_per_second / 1e12
    (x0, y0), (x1, y1), (x2, _) = at(32, 32 * slope), at(chip.ridge, peak), at(1024, peak)
    body = [p.text(20, 28, title, size=16, bold=True)]
    roof = f"M{p.px(x0)} {p.px(y0)}L{p.px(x1)} {p.px(y1)}H{p.px(x2)}"
    body.append(f'<path d="{roof}" fill="none" stroke="{p.INK}" stroke-width="2"/>')
    axes = f"M{p.px(left)} {p.px(bottom - high)}V{p.px(bottom)}H{p.px(left + wide)}"
    body.append(f'<path d="{axes}" fill="none" stroke="{p.INK}" stroke-opacity=".5"/>')
    for tick in (32, 64, 128, 256, 512, 1024):
        x, _ = at(tick, 16)
        body.append(p.text(x, bottom + 16, str(tick), size=11, anchor="middle"))
    body.append(
        p.text(left + wide / 2, bottom + 34, "FLOPs per byte of HBM traffic", anchor="middle")
    )
    for tick in (16, 32, 64, 128):
        _, y = at(32, tick)
        body.append(p.text(left - 8, y + 4, str(tick), size=11, anchor="end"))
    body.append(p.text(20, bottom - high - 10, "TFLOP/s at most, on a v5e", size=11, muted=True))
    dash = f"M{p.px(x1)} {p.px(y1)}V{p.px(bottom)}"
    body.append(f'<path d="{dash}" stroke="{p.INK}" stroke-dasharray="4 3" stroke-opacity=".6"/>')
    body.append(p.text(x1 + 6, bottom - 8, f"ridge: {chip.ridge:.0f}", size=11))
    for label, intensity in points:
        x, y = at(intensity, min(peak, intensity * slope))
        colour = p.BLUE if intensity >= chip.ridge else p.PURPLE
        shape = "h10v10h-10z" if intensity >= chip.ridge else "l6 10h-12z"
        corner = (x - 5, y - 5) if intensity >= chip.ridge else (x, y - 6)
        body.append(f'<path d="M{p.px(corner[0])} {p.px(corner[1])}{shape}" fill="{colour}"/>')
        body.append(p.text(x + 12, y + 18, label, size=11))
    body.append(p.text(at(40, 16)[0], at(32, 150)[1], "memory-bound", size=12, muted=True))
    body.append(p.text(at(420, 16)[0], y1 - 12, "compute-bound", size=12, muted=True))
    says = f"A roofline for a v5e: below {chip.ridge:.0f} FLOPs a byte the roof slopes down; "
    says += "; ".join(f"{label} blocks reach {intensity:.0f}" for label, intensity in points) + "."
    return p.document(600, 325, "".join(body), title, says)


def rescaled() -> str:
    """The terms of a running sum, drawn to scale after each of three blocks of a row."""
    blocks = ((1, 3), (2, 5), (4, 0))
    title = "A new maximum shrinks all earlier terms alike"
    left, bottom, high, wide, gap = 30.0, 200.0, 110.0, 26.0, 190.0
    body = [p.text(20, 28, title, size=16, bold=True)]
    seen: list[int] = []
    for n, block in enumerate(blocks):
        before, m_old = len(seen), max(seen, default=0)
        seen += block
        m, x0 = max(seen), left + n * gap
        alpha = f"alpha = {math.exp(m_old - m):.3f}" if before else "alpha = 0"
        body.append(p.text(x0, 58, f"m = {m}, {alpha}", size=12))
        axis = f"M{p.px(x0)} {p.px(bottom)}h{p.px(6 * wide)}"
        body.append(f'<path d="{axis}" stroke="{p.INK}" stroke-opacity=".5"/>')
        for k, x in enumerate(seen):
            tall, at = high * math.exp(x - m), x0 + k * wide
            if k < before and m > m_old:  # what the term was, before the correction
                old = high * math.exp(x - m_old)
                was = p.rect(at + 3, bottom - old, wide - 6, old)
                body.append(
                    f'<path d="{was}" fill="none" stroke="{p.INK}" stroke-dasharray="3 3"'
                    ' stroke-opacity=".6"/>'
                )
            colour = p.BLUE if k < before else p.PURPLE
            bar = p.rect(at + 3, bottom - tall, wide - 6, tall)
            body.append(f'<path d="{bar}" fill="{colour}"/>')
            body.append(p.text(at + wide / 2, bottom + 16, str(x), size=11, anchor="middle"))
        total = sum(math.exp(x - m) for x in seen)
        body.append(p.text(x0, bottom + 36, f"l = {total:.3f}", size=12))
    words = "bars: the terms of l; purple: this block's; dashed: before the correction"
    body.append(p.text(20, bottom + 62, words, size=11, muted=True))
    says = f"{title}: bars for 1, 3, then 2, 5, then 4, 0; at 5 the first two shrink to 0.135."
    return p.document(600, 275, "".join(body), title, says)


def masked(name: str, window: int | None, title: str) -> Callable[[], str]:
    """The blocks that a masked attention computes, for causal queries and maybe a window."""
    T, S, H = 512, 640, 64
    row, column = np.arange(T)[:, None], np.arange(S)[None, :]
    mask = column <= row
    extra: tuple[int, ...] = ()
    if window is not None:
        mask, extra = mask & (column > row - window), (window,)

    def draw() -> str:
        solution = puzzles.find(name).solution
        (launch,) = puzzles.trace(solution, _array(T, H), _array(S, H), _array(S, H), *extra)
        return block_map(launch, mask, title, f"{title}: the blocks of the scores that are needed.")

    return draw


def table_of_blocks() -> str:
    """classify_blocks's answer for a causal window."""
    t, s = np.arange(32)[:, None], np.arange(32)[None, :]
    mask = (s <= t) & (t - s < 16)
    answer = puzzles.find("classify_blocks").solution(mask, 8, 8)
    title = "A mask, its table of blocks, and two patterns"
    return classified(mask, 8, 8, answer, title, f"{title}: a causal window in blocks of 8.")


def list_of_tiles() -> str:
    """A table of blocks, one row of it empty, as JAX's kernel pads it and as a flat list."""
    table = [[2, 0, 0, 0], [1, 2, 0, 0], [0, 0, 0, 0], [2, 1, 2, 0], [0, 0, 2, 1]]
    kinds = np.array(table, np.int32)
    tiles = puzzles.find("active_tiles").solution(kinds, np.zeros_like(kinds))
    title = "A box of steps, a smaller box, and a list"
    says = "The dense grid has 20 steps, the one with padded rows 15, and the flat list 9."
    assert (kinds.size, 5 * 3, len(tiles[0])) == (20, 15, 9)
    return walks(kinds, tiles, title, says)


def over_tiles() -> str:
    """The flat list of splash_attention's prose, walked by the reference launch."""
    kinds = np.array([[2, 1, 0], [0, 1, 0], [0, 0, 0], [0, 2, 1]], np.int32)
    index = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]], np.int32)
    tiles = puzzles.find("active_tiles").solution(kinds, index)
    patterns = np.zeros((2, 64, 128), bool)
    solution = puzzles.find("splash_attention").solution

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return solution(q, k, v, tiles, patterns)

    (launch,) = puzzles.trace(attention, _array(256, 64), _array(384, 64), _array(384, 64))
    notes = [
        "Full: its mask is not used.",
        "Row 0, column 1: partial, stored.",
        "Row 1: k and v stay.",
        "Dead: zeros; k, v are not used.",
        "Row 3, column 1: full.",
        "Row 3, column 2: partial, stored.",
    ]
    title = "One grid axis runs along the list"
    return film(launch, range(len(notes)), title, f"{title}. " + " ".join(notes), notes)


def copied(title: str, *parts: tuple[str, Sequence[object], str]) -> Callable[[], str]:
    """The copies of two launches, each given by its puzzle, its arguments and its caption."""

    def draw() -> str:
        launches = []
        for name, args, caption in parts:
            (launch,) = puzzles.trace(puzzles.find(name).solution, *args)
            launches.append((caption, launch))
        captions = "; below, ".join(caption for caption, _ in launches)
        return reel(launches, title, f"{title}. Above, {captions}.")

    return draw


bf16 = jnp.bfloat16
four_pages = (jnp.array([64], jnp.int32), jnp.array([[3, 1, 4, 5]], jnp.int32))
DIAGRAMS: dict[str, Callable[[], str]] = {
    "basics/add_ten": memories,
    "basics/vector_add": strip(
        "vector_add",
        [_array(4096)] * 2,
        0,
        [
            "Step 0 gets block 0 of each vector.",
            "Step 1 gets block 1 ...",
            "... and so on.",
        ],
        "One grid step, one block",
    ),
    "basics/add_reversed_blocks": strip(
        "add_reversed_blocks",
        [_array(5120)] * 2,
        0,
        [
            "x from the front, y from the back.",
            "Both move inwards ...",
            "... and meet in the middle.",
        ],
        "Two index maps, two ways to walk",
    ),
    "basics/scale_blocks": strip(
        "scale_blocks",
        [_array(48, 384)],
        1,
        [
            "Along the first row of blocks ...",
            "... to its end;",
            "then the next row.",
            "The last axis runs fastest.",
        ],
        "The order of a two-dimensional grid",
    ),
    "basics/outer_product": strip(
        "outer_product",
        [_array(3072), _array(2048)],
        0,
        [
            "Both blocks are fetched.",
            "a's block is still there: only b moves.",
            "i moves on: both are fetched.",
        ],
        "What an index map ignores is reused",
    ),
    "basics/launch_vector_add": strip(
        "launch_vector_add",
        [_array(150, 700)] * 2,
        0,
        [
            "The same block of all three.",
            "Along the row of blocks ...",
            "... and over the edge.",
            "The next row of blocks.",
        ],
        "One step, one output block",
    ),
    "basics/row_sum": strip(
        "row_sum",
        [_array(128, 384)],
        0,
        [
            "A fresh output block: zero it, add.",
            "The same block: add.",
            "Add; the sum is complete.",
            "A fresh block again.",
        ],
        "An output block stays until its index changes",
    ),
    "basics/ragged_row_sum": strip(
        "ragged_row_sum",
        [_array(128, 300)],
        0,
        [
            "A full block.",
            "A full block.",
            "84 of 128 columns do not exist.",
        ],
        "The last block hangs over the edge",
    ),
    "basics/tiled_matmul": strip(
        "tiled_matmul",
        [_array(128, 384), _array(384, 512)],
        0,
        [
            "k = 0: zero acc_ref, add.",
            "k = 1: add the next product.",
            "k = 2: add, and store in o_ref.",
            "The next output block begins.",
        ],
        "One output block is a sum over k",
    ),
    "basics/launch_matmul": strip(
        "launch_matmul",
        [_array(768, 256), _array(768, 1024)],
        0,
        [
            "a lies as K × M: k goes down ...",
            "... both inputs ...",
            "... and the output block is done.",
        ],
        "A transposed operand, fetched as it lies",
    ),
    "basics/batched_matmul": strip(
        "batched_matmul",
        [_array(3, 128, 256), _array(3, 256, 256)],
        0,
        [
            "The whole matrix 0 of each array.",
            "The whole matrix 1.",
            "The whole matrix 2.",
        ],
        "A batch axis is an axis of the grid",
    ),
    "basics/fused_matmul": strip(
        "fused_matmul",
        [_array(256, 512, dtype=bf16), _array(512, 256, dtype=bf16), _array(256)],
        0,
        [
            "k = 0: the product begins.",
            "Last k: bias, activation, store.",
            "Only now a new bias block.",
        ],
        "Bias and activation ride along",
    ),
    "basics/choose_blocks": roofline,
    "splash_attention/online_softmax": rescaled,
    "splash_attention/flash_attention": strip(
        "flash_attention",
        [_array(192, 64), _array(384, 64), _array(384, 64)],
        0,
        [
            "The first queries, the first keys.",
            "The queries stay; the next keys.",
            "The last keys: divide, store.",
            "The next queries, the first keys.",
        ],
        "Every block of queries sees all keys and values",
    ),
    "splash_attention/multi_head_attention": strip(
        "multi_head_attention",
        [
            _array(4, 128, 64, dtype=bf16),
            _array(2, 128, 64, dtype=bf16),
            _array(2, 128, 64, dtype=bf16),
        ],
        0,
        [
            "Head 0 uses key head 0.",
            "Its second block: k and v stay.",
            "Head 1 uses key head 0, too.",
            "k and v still stay.",
            "Head 2 uses key head 1.",
        ],
        "Grouped queries share keys by the index map alone",
    ),
    "splash_attention/causal_attention": masked(
        "causal_attention", None, "Above the diagonal there is nothing to compute"
    ),
    "splash_attention/causal_prefetch": strip(
        "causal_prefetch",
        [_array(192, 64), _array(384, 64), _array(384, 64)],
        0,
        [
            "Row i = 0 needs key block 0 only.",
            "Block 1 is not needed: none is fetched.",
            "Nor block 2.",
            "Row i = 1 needs block 0: still there.",
        ],
        "The map repeats the last block that is needed",
    ),
    "splash_attention/local_attention": masked(
        "local_attention", 160, "A window is skipped on both sides"
    ),
    "splash_attention/classify_blocks": table_of_blocks,
    "splash_attention/active_tiles": list_of_tiles,
    "splash_attention/splash_attention": over_tiles,
    "splash_attention/linear_attention": strip(
        "linear_attention",
        [_array(2, 384, 64), _array(2, 384, 64), _array(2, 384, 64)],
        0,
        [
            "A head begins: the state is zero.",
            "The state holds chunk 0.",
            "The state holds chunks 0 and 1.",
            "The next head: zero again.",
        ],
        "The state stays in VMEM while the chunks pass",
    ),
    "splash_attention/vocabulary_loss": strip(
        "vocabulary_loss",
        [_array(256, 64), _array(64, 768), jax.ShapeDtypeStruct((256, 1), jnp.int32)],
        0,
        [
            "Tokens 0 to 127 meet the first words.",
            "The next words; the tokens stay.",
            "The last words: loss and lse are stored.",
            "The next tokens meet the first words again.",
        ],
        "Words pass by; no logits leave",
    ),
    "pipelines/double_buffered_sum": copied(
        "The next copy is on its way",
        ("stream_sum", [_array(256, 128)], "one buffer: copies and sums take turns"),
        (
            "double_buffered_sum",
            [_array(256, 128)],
            "two slots: while one is summed, the other is filled",
        ),
    ),
    "pipelines/latent_attention": copied(
        "One copy of a page for both products",
        (
            "paged_grouped_attention",
            [_array(1, 8, 256), *2 * [_array(1, 8, 16, 256)], *four_pages],
            "two arrays: each page comes as keys and as values",
        ),
        (
            "latent_attention",
            [_array(1, 8, 256), _array(8, 16, 256), *four_pages, 128],
            "one array: each page comes once",
        ),
    ),
    "pipelines/append_to_pages": copied(
        "New rows leave while the next page is summed",
        (
            "append_to_pages",
            [
                _array(8, 4, 8, 128),
                _array(1, 2, 8, 128),
                jnp.array([7], jnp.int32),
                jnp.array([[3, 1, 4]], jnp.int32),
            ],
            "7 rows and 2 new ones, in pages of 4: row 7 goes to page 1, row 8 to page 4",
        ),
    ),
    "collectives/right_permute": lanes(
        "right_permute",
        [_array(4, 1024, 256)],
        "Every device sends to the next",
        ("The last device sends to the first; nobody computes.", ""),
    ),
    "collectives/broadcast_ring": lanes(
        "broadcast_ring",
        [_array(4, 1024, 256)],
        "Hand to hand",
        ("Each device waits until the block has arrived, then sends it on.", ""),
    ),
    "collectives/ring_all_gather": lanes(
        "ring_all_gather",
        [_array(4, 1024, 256)],
        "Three steps around a ring of four",
        ("In each step every device sends what arrived in the step before.", ""),
    ),
    "collectives/bidirectional_all_gather": lanes(
        "bidirectional_all_gather",
        [_array(4, 1024, 256)],
        "Both directions at once",
        ("Half of each block goes down, the other half goes up: about half the time.", ""),
    ),
    "collectives/all_gather_matmul": lanes(
        "all_gather_matmul",
        [_array(4, 256, 1024), _array(4, 1024, 3072)],
        "Multiply while it travels",
        ("First the copy, then the product: one waits for the other.", "multiplies after the wait"),
        ("The product of what is here, while the next rows are on their way.", ""),
    ),
    "grouped_matmul/grouped_matmul": shared(
        "grouped_matmul",
        [_array(256, 128), _array(5, 128, 128), jnp.array([50, 0, 80, 30, 3], jnp.int32)],
        0,
        [
            "Tile 0 for group 0: rows 0-49.",
            "Again, for group 2: rows 50-63.",
            "Tile 1 is group 2's alone.",
        ],
        "A shared tile is visited once for each group",
        [(0, 50), (50, 64), (0, 64)],
        ["zeros", "kept", ""],
    ),
    "grouped_matmul/grouped_outer": strip(
        "grouped_outer",
        [_array(256, 128), _array(256, 128), jnp.array([50, 0, 80, 30, 3], jnp.int32)],
        0,
        [
            "Group 0 has rows in tile 0. Stored.",
            "So has group 2: tile 0 again.",
            "Group 2 goes on in tile 1,",
            "and ends in tile 2: it is stored.",
            "Tile 2 again, for group 3. Stored.",
        ],
        "Each group has one output block, and sums over its tiles",
    ),
    "grouped_matmul/block_scaled_grouped_matmul": strip(
        "block_scaled_grouped_matmul",
        [
            _array(128, 256),
            _array(3, 256, 128, dtype=jnp.int8),
            _array(3, 2, 1, 128),
            jnp.array([64, 0, 64], jnp.int32),
        ],
        0,
        [
            "Group 0, the first 128 terms.",
            "The others, with theirs. Stored.",
            "Group 2: its weights, its scales.",
            "Its sum is complete: stored.",
        ],
        "With every block of K come its scales",
    ),
    "grouped_matmul/permuted_matmul": strip(
        "permuted_matmul",
        [_array(3, 64, 128), _array(3, 128, 256), jnp.array([2, 0, 1], jnp.int32)],
        0,
        [
            "perm[0] is 2: the last weight.",
            "perm[1] is 0: the first.",
            "perm[2] is 1.",
        ],
        "An index map looks up which block to fetch",
    ),
    "grouped_matmul/masked_store": shared(
        "masked_store",
        [
            _array(3, 128, 128),
            jnp.array([0, 40, 80], jnp.int32),
            jnp.array([40, 80, 128], jnp.int32),
        ],
        0,
        [
            "Group 0: zeros, then its rows.",
            "Group 1: its rows, the others kept.",
            "Group 2 has none here: all kept.",
            "The next tile: a fresh block.",
        ],
        "Every visit writes its rows and keeps the others",
        [(0, 40), (40, 64), (0, 0), (0, 0)],
        ["zeros", "kept", "kept", "zeros"],
    ),
}
