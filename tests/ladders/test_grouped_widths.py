"""Widths that nobody tuned for: right numbers, or a sentence that names the axis and its tile."""

from __future__ import annotations

import inspect
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample

from puzzles import find, trace
from puzzles._launch import quickly, trace_call, with_interpret
from puzzles._tpu import CHIPS
from puzzles.grouped_matmul import grouped_matmul, grouped_matmul_transposed, grouped_outer

S = jax.ShapeDtypeStruct
RUNGS = ("grouped_matmul", "grouped_matmul_transposed", "grouped_outer")
BUFFERS = 12 * 2**20  # of 16 MiB on the smallest chips: the rest is for what a body holds itself


def arguments(name: str, M: int, K: int, N: int, sizes: tuple[int, ...], dtype="float32") -> tuple:
    r, E = np.random.default_rng(0), len(sizes)
    shapes = {
        "grouped_matmul": ((M, K), (E, K, N)),
        "grouped_matmul_transposed": ((M, K), (E, N, K)),
        "grouped_outer": ((M, K), (M, N)),
    }[name]
    data = (jnp.asarray(r.normal(size=shape), dtype) for shape in shapes)
    return (*data, jnp.asarray(sizes, jnp.int32))


def run(fn, *args) -> list[np.ndarray]:
    traced = trace_call(fn, *args)
    return quickly(with_interpret(traced.jaxpr, True), traced.leaves)


def right(name: str, M: int, K: int, N: int, sizes: tuple[int, ...]) -> None:
    puzzle, args = find(name), arguments(name, M, K, N, sizes)
    (want,), (got,) = (run(fn, *args) for fn in (puzzle.spec, puzzle.solution))
    scale = np.sqrt(np.mean(want**2))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize(("K", "N"), [(64, 100), (384, 192), (192, 2880)])
def test_narrow_widths_are_right(name: str, K: int, N: int) -> None:
    right(name, 128, K, N, (50, 0, 60))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize(("K", "N"), [(1408, 1536), (2560, 1408)])
def test_widths_of_real_layers_are_right(name: str, K: int, N: int) -> None:
    right(name, 512, K, N, (200, 0, 300))


def drawn(number: int) -> tuple[int, int, int, tuple[int, ...]]:
    """M, K, N and group sizes that nobody chose; every sixth is as wide as a small layer."""
    r = np.random.default_rng((7, number))
    if number % 6 == 0:
        M, K, N = 512, *(int(n) for n in 128 * r.integers(4, 14, 2))
    else:
        M, K, N = 64 * int(r.integers(1, 5)), *(int(n) for n in 4 * r.integers(1, 120, 2))
    cuts = np.sort(r.integers(0, M + 1, int(r.integers(1, 7))))
    return M, K, N, tuple(int(n) for n in np.diff(cuts, prepend=0))


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("name", RUNGS)
def test_shapes_that_nobody_chose_are_right_or_refused(name: str) -> None:
    """60 shapes in all, each for one of the three rungs; 300 under `make graduate`."""
    numbers = sample.some(range(300), 60)
    refused = []
    for number in numbers[RUNGS.index(name) :: 3]:
        try:
            right(name, *drawn(number))
        except ValueError as error:
            refused.append(str(error))
    assert all(re.search("do not divide M=|do not fit into VMEM", one) for one in refused), refused
    assert 10 * len(refused) < len(numbers)


WIDTHS = list(itertools.product((192, 384, 1408), repeat=2))


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize(("D", "F"), sample.some(WIDTHS, 2))
def test_a_layer_of_any_width_trains(D: int, F: int) -> None:
    """The result and the five gradients are those of the dense layer."""
    puzzle = find("moe_layer")
    assert puzzle.observe is not None
    args = puzzle.inputs(jax.random.key(0), M=48, D=D, F=F, E=4, top_k=2)
    want, got = (run(puzzle.observe(fn), *args) for fn in (puzzle.spec, puzzle.solution))
    assert len(got) == 6
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.sqrt(np.mean(b**2)))


@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize(
    ("M", "K", "N", "says"),
    [
        (100, 128, 256, "tiles of 64 rows do not divide M=100"),
        (576, 512, 2048, "tiles of 512 rows do not divide M=576"),
        (512, 2880, 2880, "bk=2880 of K=2880 and bn=2880 of N=2880 do not fit"),
        (512, 2048, 14400, "bk=512 of K=2048 and bn=14400 of N=14400 do not fit"),
    ],
)
def test_what_no_tile_divides_is_refused(name: str, M: int, K: int, N: int, says: str) -> None:
    shapes = {
        "grouped_matmul": (S((M, K), jnp.float32), S((2, K, N), jnp.float32)),
        "grouped_matmul_transposed": (S((M, K), jnp.float32), S((2, N, K), jnp.float32)),
        "grouped_outer": (S((M, K), jnp.float32), S((M, N), jnp.float32)),
    }[name]
    with pytest.raises(ValueError, match=says):
        trace(find(name).solution, *shapes, jnp.array([60, 40]))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("K", [1024, 1408, 1536, 2560, 4096, 14336])
@pytest.mark.parametrize("N", [1024, 1408, 14336])
def test_tiles_of_wide_layers_divide_and_fit_every_chip(K: int, N: int, dtype) -> None:
    M, dtype = 8192, jnp.dtype(dtype)
    bm, bk, bn = grouped_matmul.tiles(M, K, N, dtype)
    assert (M % bm, K % bk, N % bn) == (0, 0, 0)
    sizes = jnp.array([5000, 0, 3000])
    rows, outer = (
        trace(find(name).solution, *shapes, sizes)[0]
        for name, shapes in (
            ("grouped_matmul", (S((M, K), dtype), S((3, K, N), dtype))),
            ("grouped_outer", (S((M, K), dtype), S((M, N), dtype))),
        )
    )
    assert max(rows.vmem_bytes, outer.vmem_bytes) <= BUFFERS
    assert min(chip.scoped_vmem_bytes for chip in CHIPS.values()) * 3 // 4 == BUFFERS


def test_the_three_rungs_choose_the_same_tiles() -> None:
    modules = (grouped_matmul, grouped_matmul_transposed, grouped_outer)
    assert len({inspect.getsource(module.tiles) for module in modules}) == 1
