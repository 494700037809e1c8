"""Answers that are right on ordinary numbers, and lose NaN, clip, or take what is small for 0."""

from __future__ import annotations

import textwrap

import pytest
import sample

import puzzles
from puzzles import Mistake, judge
from puzzles._judge import probes
from puzzles._judge.case import cases
from puzzles._launch import trace_call

RUNGS = [one for name in puzzles.ladders() for one in puzzles.ladder(name) if one.kernel]
# Half of an argument NaN, all of it times 2**40 and 2**-40, and two that change all arguments.
NAN, MORE, LESS = "where half of `{}` is NaN,", "with `{}` times 2**40", "with `{}` times 2**-40"
ALL = {"where no number is positive", "where numbers come again after 8"}
FAR = "where all numbers are far below zero"
SUMMED = "x_ref[...]"  # what row_sum's kernel sums
SWALLOWS = [
    ("jnp.nan_to_num(x_ref[...])", "where half of `x` is NaN"),
    ("jnp.where(jnp.isnan(x_ref[...]), 0, x_ref[...])", "where half of `x` is NaN"),
    ("jnp.clip(x_ref[...], -100, 100)", "with `x` times 2**40"),
    ("jnp.where(jnp.abs(x_ref[...]) < 1e-5, 0, x_ref[...])", "with `x` times 2**-40"),
    ("(x_ref[...] + 1e-9)", "with `x` times 2**-40"),
]


@pytest.mark.parametrize(("instead", "says"), SWALLOWS)
def test_what_ordinary_numbers_do_not_show_is_told(instead: str, says: str) -> None:
    puzzle = puzzles.find("row_sum")
    verdict = judge(puzzle, puzzles.mutate(puzzle, Mistake("differs", edits=((SUMMED, instead),))))
    assert verdict.headline.startswith("✗ row_sum: right on ordinary numbers only (case ")
    assert says in verdict.says


@pytest.mark.parametrize("rung", ["stream_sum", "double_buffered_sum"])
def test_what_nobody_wrote_is_any_number_and_not_nan_alone(rung: str) -> None:
    puzzle, zeroes = puzzles.find(rung), "jnp.zeros_like(o_ref)"
    tests = Mistake("differs", old=zeroes, new="jnp.nan_to_num(o_ref[...])")
    verdict = judge(puzzle, puzzles.mutate(puzzle, tests))
    assert verdict.stage == "memory"
    assert verdict.says.startswith("`o_ref` is read before anything is written to it.")
    times = Mistake("differs", old=zeroes, new="jnp.nan_to_num(o_ref[...]) * 0")
    assert judge(puzzle, puzzles.mutate(puzzle, times)).passed  # 0, whatever lies there


@pytest.mark.parametrize(
    "instead",
    [
        "(q_segments_ref[...] * 16 == kv_segments_ref[...] * 16)",
        "((q_segments_ref[...] ^ kv_segments_ref[...]) & 0x7FFFFFFF == 0)",
        "(q_segments_ref[...] == kv_segments_ref[...]) & (q_segments_ref[...] < 2**30)",
    ],
)
def test_ids_are_compared_and_nothing_else(instead: str) -> None:
    puzzle = puzzles.find("segment_attention")
    same = "(q_segments_ref[...] == kv_segments_ref[...])"
    verdict = judge(puzzle, puzzles.mutate(puzzle, Mistake("differs", old=same, new=instead)))
    assert verdict.title == "right on ordinary numbers only"
    assert "the numbers in `q_segments` and `kv_segments` replaced by others" in verdict.says
    differs = f"({same[1:-1].replace('==', '-')} == 0)"  # may wrap around; 0 for equal ids alone
    assert judge(puzzle, puzzles.mutate(puzzle, Mistake("asks", old=same, new=differs))).passed


def test_integers_that_choose_a_block_are_no_names() -> None:
    for rung in ("grouped_matmul", "gather_pages", "block_sparse_attention", "splash_attention"):
        assert not any(map(probes._names_only, cases(puzzles.find(rung))))
    assert any(map(probes._names_only, cases(puzzles.find("splash_vjp"))))


ADDED = """        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = alpha * acc_ref[...] + pv
"""
LARGEST = """    m_ref[...] = jnp.maximum(m_ref[...], jnp.max(x_ref[...], axis=1, keepdims=True))
"""


@pytest.mark.parametrize(
    ("rung", "lines", "condition", "says"),
    [
        ("causal_attention", ADDED, "m_new > m_ref[...]", "where numbers come again after 8"),
        ("softmax_two_pass", LARGEST, "x_ref[...] > 0", "where no number is positive"),
    ],
)
def test_a_block_that_is_skipped_for_its_numbers_is_told(
    rung: str, lines: str, condition: str, says: str
) -> None:
    puzzle = puzzles.find(rung)
    depth = len(lines) - len(lines.lstrip())
    guard = textwrap.indent(f"@pl.when(jnp.any({condition}))\ndef _():\n", " " * depth)
    new = guard + textwrap.indent(lines, "    ")
    verdict = judge(puzzle, puzzles.mutate(puzzle, Mistake("skips", old=lines, new=new)))
    assert not verdict.passed
    assert says in verdict.says


def told(name: str) -> set[str]:
    case = cases(puzzles.find(name))[0]
    return {one.words for turn in range(6) for one in probes.probes(case, turn)}


def test_what_the_spec_does_not_follow_is_not_asked() -> None:
    assert told("row_sum") == {one.format("x") for one in (NAN, MORE, LESS)} | ALL | {FAR}
    # Scores go through an exponential: far out the last digit of a maximum decides, and whoever
    # tests it may lose NaN and be right.
    of_v = {one.format("v") for one in (NAN, MORE)}
    assert told("flash_attention") - of_v == {LESS.format(x) for x in "qkv"} | ALL
    assert told("attention_dq") == set()  # lse and delta are made of the others


def test_what_a_source_draws_costs_no_answer_the_spec_again() -> None:
    case = cases(puzzles.find("tiled_matmul"))[0]
    first, third = probes.probes(case, 1), probes.probes(case, 3)  # two arguments take turns
    assert len(first) == len(third)
    assert all(a is b for a, b in zip(first, third, strict=True))


@pytest.mark.graduate
@pytest.mark.parametrize("puzzle", sample.some(RUNGS, 6), ids=lambda puzzle: puzzle.name)
def test_the_reference_follows_the_spec_wherever_it_is_asked(puzzle: puzzles.Puzzle) -> None:
    traces = {c: trace_call(c.judged(puzzle.solution), *c.args) for c in cases(puzzle)}
    arguments = len(next(iter(traces.values())).leaves)
    for turn in range(arguments):
        probes.extremes(traces, turn)
