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
