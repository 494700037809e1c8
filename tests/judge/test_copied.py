"""What copies by hand tell of wrong numbers, and of kernels that need not run."""

from __future__ import annotations

import pytest

import puzzles
from puzzles import Mistake, judge
from puzzles._judge import answer
from puzzles._judge.raised import remedy


def judged(name: str, *edits: tuple[str, str]) -> str:
    puzzle = puzzles.find(name)
    return str(judge(puzzle, puzzles.mutate(puzzle, Mistake("differs", edits=edits))))


FIRST = {
    "slots_ref[2, 0:64, 0:384]": (
        "double_buffered_sum", ("slots_ref.at[slot]", "slots_ref.at[slot + 1]"),
    ),
    "`sems[2]` is used, and there is no such semaphore": (
        "double_buffered_sum", ("fetch(i + 1, 1 - slot)", "fetch(i + 1, slot + 1)"),
    ),
    "a copy that is not on its way, in `go.wait()`": ("copy_rows", ("    go.start()\n", "")),
    "`o_ref` stays in HBM, and no copy goes there": (
        "copy_rows", ("copy(rows_ref, o_ref, sem)", "copy(o_ref, rows_ref, sem)"),
    ),
    "reaches outside `a_ref`": (
        "launch_pipeline", ("lambda j, i: (i, 0)", "lambda j, i: (i + j, 0)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("says", FIRST)
def test_a_copy_that_explains_the_numbers_is_told_and_no_other_mistake_is_named(says: str) -> None:
    name, edit = FIRST[says]
    text = judged(name, edit)
    assert "Look here first: " in text
    assert says in text
    assert "Your numbers are those of" not in text


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        (
            "double_buffered_matmul", "a_slots.at[slot], sems", "a_slots, sems",
            "takes 65,536 bytes from `a_ref[0:128, 0:128]` to `a_slots`, which holds 131,072",
        ),
        (
            "paged_grouped_attention", "v_pages_ref.at[head, at]", "v_pages_ref.at[at]",
            "takes 81,920 bytes from `v_pages_ref[2]` to `v_slots[0]`, which holds 8,192",
        ),
    ],
)  # fmt: skip
def test_ends_of_a_copy_that_differ_are_both_named(name, old, new, says) -> None:
    assert says in judged(name, (old, new))


def test_a_long_kernel_that_goes_outside_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "execute", lambda traced: pytest.fail("it was run"))
    text = judged("pipelined_add", ("grid=(M // bm, N // bn)", "grid=(M, N)"))
    assert "it was not run" in text
    assert "reaches outside `x_ref`" in text


REMEDIES = {
    "ValueError: DMA source/destination/semaphore arguments must be Refs.": "x_ref.at",
    "AttributeError: 'ShapedArray' object has no attribute 'inner_aval'": "named and not read",
    "TypeError: Shapes must be 1D sequences of concrete values": "pl.ds(start, size)",
    "TracerBoolConversionError: x\nrows = x_ref.at[i * 64 : i * 64 + 64]": "pl.ds(start, size)",
    "ValueError: Cannot signal on a non-()-shaped semaphore: (2,)": "of shape (2,)",
    "TypeError: emit_pipeline() takes 1 positional argument but 4": "the Refs go to that",
    "ValueError: pytree structure error: x\npipeline(x_ref, y_ref)": "a spec for each of its Refs",
    "NotImplementedError: Buffer count >2 not supported for output buffered refs.": "only inputs",
    "TypeError: iteration over a 0-d array": "grid=(n,)",
    "AttributeError: 'int' object has no attribute 'buffer_count'": "pl.Buffered(n)",
    "TypeError: 'NoneType' object is not iterable": "is a `return` missing?",
    "ValueError: `indices` must not be longer than `shape`: x": "more indices than axes",
    "ValueError: Einstein sum subscript 'gh' does not": "`None` removes it",
    "ValueError: `in_specs` must be a tuple or a list. Found: BlockSpec": "stands in a list",
    "TypeError: 'int' object is not iterable\nrun = pltpu.emit_pipeline(": "grid=(n,)",
    "ValueError: Grid must consist of Python integers and JAX Arrays: (<class 'float'>,)": "`//`",
    "ValueError: Block size must divide tiling: block_size=100, tiling=8": "a multiple of 8",
    "TypeError: 'NoneType' object is not callable": "an index map that a `BlockSpec` lacks",
    "ValueError: zip() argument 2 is longer than argument 1\npipeline(x_ref)": "as many entries",
}


@pytest.mark.parametrize("error", REMEDIES)
def test_errors_about_copies_and_pipelines_have_a_remedy(error: str) -> None:
    gist, _, line = error.partition("\n")
    assert REMEDIES[error] in str(remedy(gist, line))
