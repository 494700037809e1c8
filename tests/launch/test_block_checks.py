"""Each fault is found on a launch that has it, and not on the nearest right one."""

from __future__ import annotations

import itertools
from random import Random

import jax
import jax.numpy as jnp
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call
from launched import one as launched

from puzzles._jax import CUTS_TILES_OF_BYTES
from puzzles._launch import Finding, faults

f32 = jnp.float32
S = jax.ShapeDtypeStruct
ROW = pl.BlockSpec((8, 128), lambda i: (i, 0))


def kernel(x_ref, o_ref):
    """Faults are read from blocks alone, so this kernel does nothing."""


def found(x, out, grid, spec, out_spec, kernel=kernel, semantics=None, **kw) -> tuple[Finding, ...]:
    params = pltpu.CompilerParams(dimension_semantics=semantics)
    fn = call(kernel, out, grid, [spec], out_spec, compiler_params=params, **kw)
    return faults(launched(fn, x))


def one(*args, **kw) -> Finding:
    (fault,) = found(*args, **kw)
    return fault


x32 = S((32, 128), f32)

# The faults of any launch's blocks, by trying every step.


def drawn(r: Random, axes: int) -> list[int]:
    """An index into blocks: a coefficient of each program id, and a constant."""
    some = r.sample(range(axes), r.randint(0, axes))
    return [r.choice([1, 1, 1, 2]) * (axis in some) for axis in range(axes)] + [
        r.choice([0, 0, 0, 1, -1])
    ]


def block(indices, ids):
    """The block of the step of these program ids, which may be traced."""
    return tuple(sum(c * i for c, i in zip(one, ids, strict=False)) + one[-1] for one in indices)


def tried(x, o, counts, grid, semantics) -> list[tuple]:
    """(kind, operand, step, block) of all faults, the first of each kind and operand."""
    steps = list(itertools.product(*map(range, grid)))
    told = []
    for name, blocks, count in (("x_ref", x, counts[0]), ("o_ref", o, counts[1])):
        for step, block in zip(steps, blocks, strict=True):
            if not all(0 <= i < n for i, n in zip(block, count, strict=True)):
                told.append(("out-of-bounds", name, step, block))
                break
    left = set()
    for n, block in enumerate(o):
        if block in left and block != o[n - 1]:
            told.append(("revisited", "o_ref", steps[n], block))
            break
        left.add(block)
    never = [b for b in itertools.product(*map(range, counts[1])) if b not in o]
    told += [("never-written", "o_ref", None, never[0])] if never else []
    clashes = [
        ("parallel", "o_ref", steps[n], block)
        for axis, word in enumerate(semantics)
        for n, block in enumerate(o)
        if word == "parallel" and steps[n][axis] != steps[o.index(block)][axis]
    ]
    return sorted(told + clashes[:1], key=str)


@sample.in_turn
def test_what_is_wrong_with_blocks_is_what_trying_every_step_finds() -> None:
    kinds = set()
    for seed in range(150):
        r = Random(seed)
        grid = tuple(r.randint(1, 4) for _ in range(r.randint(1, 3)))
        split = r.randint(0, len(grid))
        semantics = ["parallel"] * split + ["arbitrary"] * (len(grid) - split)
        maps = [[drawn(r, len(grid)) for _ in range(2)] for _ in range(2)]
        blocks = [[block(one, ids) for ids in itertools.product(*map(range, grid))] for one in maps]
        counts = [  # one block short by chance
            [max(1, max(axis) + (r.random() < 0.85)) for axis in zip(*mine, strict=True)]
            for mine in blocks
        ]
        x, o = (S((8 * m - r.randint(0, 7), 128 * n), f32) for m, n in counts)
        specs = [pl.BlockSpec((8, 128), lambda *ids, one=one: block(one, ids)) for one in maps]
        told = found(x, o, grid, *specs, semantics=semantics)
        got = sorted(((f.kind, f.operand, f.step, f.block) for f in told), key=str)
        assert got == tried(*blocks, counts, grid, semantics), (grid, maps, counts, semantics)
        kinds |= {one[:2] for one in got} or {"nothing"}
    assert len(kinds) == 6, kinds


# Findings that index maps in blocks do not show; tests/verdicts holds the words of the others.


def test_an_element_window_may_not_start_outside():
    def halo(last):
        return pl.BlockSpec(
            (pl.Element(8), pl.Element(128)), lambda i: (jnp.minimum(8 * i, last), 0)
        )

    assert found(x32, x32, (4,), halo(24), ROW) == ()
    fault = one(x32, S((48, 128), f32), (6,), halo(28), ROW)
    assert (fault.kind, fault.step, fault.block) == ("out-of-bounds", (4,), (28, 0))
    assert "elements 28 to 35 of axis 0, which has 32 elements" in fault.words


def test_an_aliased_output_is_revisited_in_its_own_words():
    x = S((16, 128), f32)
    spec = pl.BlockSpec((8, 128), lambda k, i: (i, 0))
    fault = one(x, x, (3, 2), spec, spec, input_output_aliases={0: 0})
    assert fault.kind == "revisited"
    assert "It shares its memory with `x_ref`" in fault.words
    inner = pl.BlockSpec((8, 128), lambda i, k: (i, 0))
    assert found(x, x, (2, 3), inner, inner, input_output_aliases={0: 0}) == ()


def test_dimension_semantics_have_a_word_for_each_axis():
    fault = one(x32, x32, (4,), ROW, ROW, semantics=("parallel", "arbitrary"))
    assert fault.kind == "parallel"
    assert "has 2 entries, but the grid (4,) has 1 axis" in fault.words
    fault = one(x32, x32, (4,), ROW, ROW, semantics="sideways")
    assert "unknown entry 'sideways'" in fault.words
    spec, x = pl.BlockSpec((8, 128), lambda i, j: (i, j)), S((32, 384), f32)
    fault = one(x, x, (4, 3), spec, spec, semantics=("arbitrary", pltpu.PARALLEL))
    assert "marks grid axis 1 'parallel', but not axis 0 before it" in fault.words


NARROW = (
    "multiples of (32, 128) or the whole axis in 8 bits, but the second-last dim is 16. "
    "Use a multiple of 32, or all 64."
)


@pytest.mark.parametrize(
    ("shape", "block", "dtype", "says"),
    [
        ((32, 512), (8, 64), f32,
         "the last dim is 64. Use a multiple of 128, or all 512."),
        ((32, 512), (4, 128), f32,
         "the second-last dim is 4. Use a multiple of 8, or all 32."),
        ((4, 8, 128), (1, None, 128), f32, "squeezed, which counts as 1"),
        ((2048,), (512,), f32, "make a 1-D block the whole array or a multiple of 1024"),
        *(((64, 128), (16, 128), dtype, NARROW)
          for dtype in (jnp.int8, jnp.uint8, jnp.float8_e4m3fn)),
        ((32, 512), (8, 128), f32, None),
        ((12, 96), (12, 96), f32, None),  # the whole axis
        ((4, 32, 64), (None, 16, 64), f32, None),
        ((4, 1, 128), (2, None, 128), f32, None),  # squeezed, and the whole axis
        ((3000,), (1024,), f32, None),
        ((100,), (100,), f32, None),
        ((64, 128), (32, 128), jnp.int8, None),
        ((16, 128), (16, 128), jnp.int8, None),
        ((48, 128), (8, 128), jnp.int8, None),  # an array that has no tiles of 32 rows
        ((64, 128), (8, 128), jnp.bfloat16, None),
        ((64, 128), (8, 128), bool, None),
    ],
)  # fmt: skip
def test_a_block_that_no_tile_holds_is_misaligned(shape, block, dtype, says):
    says = None if says == NARROW and CUTS_TILES_OF_BYTES else says
    spec = pl.BlockSpec(block, lambda *ids: ids)
    grid = tuple(-(-s // (b or 1)) for s, b in zip(shape, block, strict=True))
    told = found(S(shape, dtype), S(shape, dtype), grid, spec, spec)
    assert [(f.kind, f.operand, f.step, f.block) for f in told] == [
        ("misaligned", name, None, None) for name in ("x_ref", "o_ref") if says
    ]
    assert all(says in f.words for f in told)


def test_blocks_in_smem_have_no_tiles_and_scalars_do_not_go_to_vmem():
    scalars = pl.BlockSpec((1, 1), lambda i: (i, 0), memory_space=pltpu.SMEM)
    assert found(S((4, 3), f32), x32, (4,), scalars, ROW) == ()
    smem, vmem = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec()
    assert one(S((), f32), x32, (), vmem, vmem).says.startswith("`x_ref`: a scalar cannot be")
    assert found(S((), f32), x32, (), smem, vmem) == ()


NUMBERED_ROW = pl.BlockSpec((8, 128), lambda i, _: (i, 0))


def with_numbers(kernel, numbers, rows=32) -> tuple[Finding, ...]:
    """A launch of three steps over the whole of x, with prefetched numbers."""
    whole = pl.BlockSpec((rows, 128), lambda i, _: (0, 0))
    fn = call(kernel, S((24, 128), f32), (3,), [whole], NUMBERED_ROW, scalars=1)
    return faults(launched(fn, jnp.array(numbers, jnp.int32), S((rows, 128), f32)))


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (lambda i, _: 8 * i, None),
        (lambda i, _: 12 * i, "`pl.multiple_of(..., 8)` gets 12 at grid step (1,), which is no"),
        (lambda i, starts: starts[i], "`pl.multiple_of(..., 8)` gets 20 at grid step (2,)"),
        (lambda i, starts: starts[jnp.minimum(i, 1)], None),
    ],
)
def test_a_promise_that_does_not_hold_is_named_with_its_step(index, says) -> None:
    def kernel(starts_ref, x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(pl.multiple_of(index(pl.program_id(0), starts_ref), 8), 8)]

    told = with_numbers(kernel, [0, 8, 20])
    assert [f.kind for f in told] == ["promise"] * bool(says)
    assert all(f.words.startswith(says) and "multiple_of(index" in f.line for f in told)


@pytest.mark.parametrize(
    ("index", "guarded", "says"),
    [
        (lambda i: i - 1, False, "`ids_ref[-1]` is read at grid step (0,), but there is no such"),
        (lambda i: i + 1, False, "`ids_ref[3]` is read at grid step (2,)"),
        (lambda i: jnp.maximum(i - 1, 0), False, None),
        (lambda i: i - 1, True, None),
    ],
)
def test_a_scalar_that_is_not_there_is_named_unless_nobody_asks_for_it(index, guarded, says):
    def kernel(ids_ref, x_ref, o_ref):
        i = pl.program_id(0)

        @pl.when((i > 0) | (not guarded))
        def _():
            o_ref[...] = jnp.full_like(o_ref, ids_ref[index(i)])

    told = [f.words for f in with_numbers(kernel, [4, 5, 6]) if f.kind == "out-of-bounds"]
    assert len(told) == bool(says)
    assert all(one.startswith(says) and "`jnp.maximum` or `jnp.minimum`" in one for one in told)
