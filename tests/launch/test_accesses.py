"""Operands read too early, never read or never written, and blocks that no step gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import jax
import jax.numpy as jnp
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, one

from puzzles._launch import Launch
from puzzles._launch.accesses import begun_elsewhere

GRID = [(i, j) for i in range(2) for j in range(3)]
MAPS: dict[str, Callable] = {
    "its own block": lambda i, j: (i, j),
    "a row's": lambda i, j: (i, 0),
    "a column's, again": lambda i, j: (0, j),
    "one for all": lambda i, j: (0, 0),
}


def launched(kernel: Callable, out: str = "its own block") -> Launch:
    """Two inputs and the output in 2 × 3 blocks, or fewer; scratch of a block."""
    rows, columns = (1 + max(at) for at in zip(*(MAPS[out](*ids) for ids in GRID), strict=True))

    read, written = (pl.BlockSpec((8, 128), MAPS[name]) for name in ("its own block", out))
    shape = jax.ShapeDtypeStruct((8 * rows, 128 * columns), jnp.float32)
    scratch = [pltpu.VMEM((8, 128), jnp.float32)]
    fn = call(kernel, shape, (2, 3), [read] * 2, written, scratch)
    return one(fn, jnp.ones((16, 384)), jnp.ones((16, 384)))


@dataclass(frozen=True)
class Line:
    """`target = source`, or `+=` if it `adds`, at the steps with (a·i + b·j) % 3 < c."""

    target: str
    source: str
    adds: bool
    a: int
    b: int
    c: int
    data: bool  # and only if data say so

    def runs(self, i, j):
        return (self.a * i + self.b * j) % 3 < self.c


def drawn(r: Random) -> list[Line]:
    return [
        Line(
            target=r.choice(["o_ref", "acc_ref"]),
            source=r.choice(["x_ref", "y_ref", "acc_ref"]),
            adds=r.random() < 0.5,
            a=r.randint(0, 2),
            b=r.randint(0, 2),
            c=r.randint(0, 3),
            data=r.random() < 0.2,
        )
        for _ in range(r.randint(1, 4))
    ]


def kernel_of(lines: list[Line]) -> Callable:
    def kernel(x_ref, y_ref, o_ref, acc_ref):
        refs = dict(x_ref=x_ref, y_ref=y_ref, o_ref=o_ref, acc_ref=acc_ref)
        for line in lines:

            def act(line=line):
                target, new = refs[line.target], refs[line.source][...]
                target[...] = target[...] + new if line.adds else new

            def where_data_say_so(act=act):
                pl.when(x_ref[0, 0] > 0)(act)

            runs = line.runs(pl.program_id(0), pl.program_id(1))
            pl.when(runs)(where_data_say_so if line.data else act)

    return kernel


def expected(lines: list[Line], out: str) -> tuple[tuple, tuple, tuple, tuple]:
    """Step by step and line by line, with each buffer's contents: early, unread, unwritten, ..."""
    early: dict[str, int] = {}
    read, stored, visits = set(), set(), []
    full = {"o_ref": False, "acc_ref": False}
    for step, (i, j) in enumerate(GRID):
        block = MAPS[out](i, j)
        if not visits or visits[-1][0] != block:
            visits.append((block, step))
            full["o_ref"] = False
        for line in lines:
            if not line.runs(i, j):
                continue
            read |= {"x_ref"} if line.data else set()
            needed = {line.source, *([line.target] if line.adds else [])}
            read |= needed
            for name in needed & full.keys():
                if not full[name] and not line.data:
                    early.setdefault(name, step)
            full[line.target] = True
            stored |= {block} if line.target == "o_ref" else set()
    left = [(block, step) for block, step in visits if block not in stored]
    blocks, gone = {block for block, _ in visits}, {block for block, _ in left}
    return (
        tuple((name, early[name]) for name in full if name in early),
        tuple(name for name in ("x_ref", "y_ref") if name not in read),
        () if stored else ("o_ref",),
        (("o_ref", len(gone), len(blocks), *left[0]),) if stored and left else (),
    )


@sample.in_turn
def test_what_is_touched_is_what_a_replay_of_the_kernel_touches() -> None:
    said = [0, 0, 0, 0]
    for seed in range(120):
        r = Random(seed)
        lines, out = drawn(r), r.choice(list(MAPS))
        seen = launched(kernel_of(lines), out).touched
        found = seen.early, seen.unread, seen.unwritten, seen.unstored
        assert found == expected(lines, out), (lines, out)
        said = [count + bool(one) for count, one in zip(said, found, strict=True)]
    assert min(said) >= 5, "too few have something to tell"


def test_a_loop_over_parts_of_a_block_is_followed() -> None:
    def sums(x_ref, y_ref, o_ref, acc_ref):
        o_ref[...] = jnp.zeros_like(o_ref)

        def add(n, _):
            rows = pl.ds(2 * n, 2)
            o_ref[rows, :] += x_ref[rows, :] + y_ref[rows, :]

        jax.lax.fori_loop(0, 4, add, None)

    seen = launched(sums).touched
    assert (seen.early, seen.unread, seen.unwritten) == ((), (), ())


@pytest.mark.parametrize(
    ("parallel", "zeroes", "told"),
    [((0,), 0, ("acc_ref", 3, 0)), ((0,), 1, None), ((1,), 1, ("acc_ref", 2, 1)), ((), 0, None)],
)
def test_a_second_core_begins_in_the_middle_of_a_parallel_axis_with_its_own_scratch(
    parallel: tuple[int, ...], zeroes: int, told: tuple[str, int, int] | None
) -> None:
    def begins(x_ref, y_ref, o_ref, acc_ref):
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when((j == 0) & ((i == 0) | bool(zeroes)))
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...] + y_ref[...]
        o_ref[...] = acc_ref[...]

    launch = launched(begins)
    about = launch.log.touches, launch.scratch, launch.grid, launch.program_ids
    assert begun_elsewhere(*about, parallel) == told


@pytest.mark.parametrize(
    ("out", "idle"), [("its own block", []), ("a row's", [1, 4]), ("one for all", [1, 4])]
)
def test_a_step_without_arithmetic_is_not_idle_where_a_block_has_no_other_store(out, idle) -> None:
    def kernel(x_ref, y_ref, o_ref, acc_ref):
        middle = pl.program_id(1) == 1

        @pl.when(middle)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        @pl.when(~middle)
        def _():
            o_ref[...] = x_ref[...] + 1

    launch = launched(kernel, out)
    assert [step for step, busy in enumerate(launch.busy) if not busy] == [1, 4]
    assert [step for step, one in enumerate(launch.idle) if one] == idle
