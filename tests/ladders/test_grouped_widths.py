"""Widths that nobody tuned for: right numbers, or a sentence with the width to pad to."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

from puzzles import find, trace
from puzzles._compile import CHIPS, Compiler, price
from puzzles._launch import trace_call
from puzzles._program import by_jax
from puzzles.grouped_matmul import grouped_matmul
from puzzles.grouped_matmul.quantized_grouped_matmul import quantised

pytestmark = pytest.mark.newest  # JAX changes nothing here

S = jax.ShapeDtypeStruct
PUZZLES = (  # those with tiles that fit the layer
    "grouped_matmul",
    "grouped_matmul_transposed",
    "grouped_outer",
    "fused_gate_up",
    "local_experts",
    "quantized_grouped_matmul",
)
PRODUCTS = (*PUZZLES, "launch_grouped_matmul")
BLOCKS = "block_scaled_grouped_matmul"  # its K is a multiple of 128
BUFFERS = 12 * 2**20  # of 16 MiB on the smallest chips: the rest is for the body's own values
ENDS = jnp.array([50, 90])  # of groups, or sizes of them


def shapes(name: str, M: int, K: int, N: int, E: int, dtype: Any = jnp.float32) -> list:
    """The arguments of a product before `group_sizes`, by their shapes."""
    lhs, weights = S((M, K), dtype), S((E, K, N), dtype)
    return {
        "grouped_matmul_transposed": [lhs, S((E, N, K), dtype)],
        "grouped_outer": [lhs, S((M, N), dtype)],
        "fused_gate_up": [lhs, weights, weights],
        "quantized_grouped_matmul": [lhs, S((E, K, N), jnp.int8), S((E, 1, N), jnp.float32)],
        BLOCKS: [lhs, S((E, K, N), jnp.int8), S((E, K // 128, 1, N), jnp.float32)],
    }.get(name, [lhs, weights])


def arguments(name: str, M: int, K: int, N: int, sizes: tuple[int, ...]) -> tuple:
    """Data for a product; one chip has the experts from the second on, if there is one."""
    r, E = np.random.default_rng(0), len(sizes)
    if name == "launch_grouped_matmul":  # tiles of 128 rows, of which the last is somebody's
        M *= 2
        sizes = (*sizes[:-1], sizes[-1] + M - sum(sizes))
    groups = jnp.asarray(sizes, jnp.int32)
    if name == "quantized_grouped_matmul":
        lhs = jnp.asarray(r.normal(size=(M, K)), jnp.float32)
        return lhs, *quantised(r.normal(size=(E, K, N))), groups
    data = [jnp.asarray(r.normal(size=s.shape), s.dtype) for s in shapes(name, M, K, N, E)]
    if name == "local_experts":
        first = min(1, E - 1)
        return data[0], data[1][first:], groups, jnp.int32(first)
    return *data, groups


def run(fn, *args) -> list[np.ndarray]:
    traced = trace_call(fn, *args)
    return by_jax(traced.jaxpr, traced.leaves)


def equal(name: str, *args: Any) -> None:
    puzzle = find(name)
    (want,), (got,) = (run(fn, *args) for fn in (puzzle.spec, puzzle.solution))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.sqrt(np.mean(np.square(want))))


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
@pytest.mark.parametrize("name", PUZZLES)
# A tile is all rows, or hangs over, or is whole.
@pytest.mark.parametrize(("M", "N"), sample.some([(1, 200), (12, 200), (100, 200), (128, 100)]))
def test_few_rows_and_columns_that_hang_over_are_right(name: str, M: int, N: int) -> None:
    equal(name, *arguments(name, M, 160, N, (M // 3, 0, M - M // 3 - M // 8)))


@sample.drill
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_shapes_that_nobody_chose_are_right(name: str) -> None:
    for number in range(315)[PRODUCTS.index(name) :: 7]:
        equal(name, *arguments(name, *drawn(number)))


@sample.drill
@pytest.mark.parametrize("number", range(30))
def test_layers_that_nobody_chose_choose_tiles_and_train(number: int) -> None:
    """The result of the layer and its five gradients are those of the dense one."""
    tiles, layer = find("choose_tiles"), find("moe_layer")
    r = np.random.default_rng((9, number))
    E = int(r.choice([2, 4, 8, 16]))
    M, (K, N) = 16 * E * int(r.integers(1, 40)), (128 * int(n) for n in r.integers(1, 30, 2))
    args = M, K, N, E, int(r.integers(1, 16)) * 2**20
    chosen = tiles.solution(*args)
    assert tiles.accepts is not None
    assert tiles.audit is not None
    assert tiles.launches is not None
    tiles.accepts(chosen, *args)
    tiles.audit(*tiles.launches(chosen, *args), args=args)
    D, F = (4 * int(n) for n in r.integers(1, 350 if number % 6 == 0 else 100, 2))
    dims = dict(M=int(r.integers(1, 90)), E=E, top_k=int(r.integers(1, E + 1)))
    args = layer.inputs(jax.random.key(number), D=D, F=F, **dims)
    assert layer.observe is not None
    want, got = (run(layer.observe(fn), *args) for fn in (layer.spec, layer.solution))
    assert len(got) == 6
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.sqrt(np.mean(b**2)))


CHOOSE = {
    "products": grouped_matmul.tiles,
    "fused": functools.partial(grouped_matmul.tiles, weights=2),
}


@pytest.mark.parametrize("name", CHOOSE)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_widths_that_are_padded_as_told_are_taken(name: str, dtype: Any) -> None:
    """A refused width is named with the next multiple of 512, which wide blocks divide."""
    choose, dtype, refused = CHOOSE[name], jnp.dtype(dtype), 0
    for K, N in itertools.product((100, 600, 1408, 2880, 4100, 14400, 20000), (100, 1000, 14400)):
        try:
            choose(8192, K, N, dtype)
        except ValueError as error:
            (told,) = map(int, re.findall(r"pad K to (\d+)", str(error)))
            assert 0 < told - K < 512
            small = 128 if min(told, N) < 512 else 256 if name == "fused" else 512
            assert choose(8192, told, N, jnp.dtype(jnp.bfloat16))[1] >= small
            refused += 1
    assert refused > 2


LAYERS = {  # E, D, F: experts, and the two widths of a layer
    "Mixtral 8x7B": (8, 4096, 14336),
    "DeepSeek-V2 Lite": (64, 2048, 1408),
    "DeepSeek-V3": (256, 7168, 2048),
    "Qwen3-30B": (128, 2048, 768),
    "gpt-oss": (32, 2880, 2880),
    "OLMoE": (64, 2048, 1024),
    "Phi-3.5-MoE": (16, 4096, 6400),
}


@pytest.mark.graduate
@pytest.mark.parametrize("layer", sample.share(list(LAYERS), 3))
def test_real_layers_cost_little_more_than_megablox_at_its_best(layer: str) -> None:
    """A router's rows: time, by the receipt's prices, as at the best of three tilings."""
    E, D, F = LAYERS[layer]
    for K, N in ((D, F), (F, D)):
        args = (
            *shapes("grouped_matmul", 16_384, K, N, E, jnp.bfloat16),
            grouped_matmul.routed(E, 16_384),
        )
        (ours,) = trace(find("grouped_matmul").solution, *args)
        options = dict(preferred_element_type=jnp.bfloat16, interpret=True)
        theirs = [
            trace(functools.partial(gmm, tiling=(bm, 1024, 1024), **options), *args)[0]
            for bm in (512, 256, 128)
        ]
        # `tiles` may move more bytes or take more steps, if they save more time than they cost
        mine, best = (
            price((ours,), CHIPS["v5e"]).seconds,
            min(price((one,), CHIPS["v5e"]).seconds for one in theirs),
        )
        assert mine <= 1.05 * best, (K, N, mine / best)


def real(name: str, M: int, K: int, N: int, E: int) -> list:
    """All arguments of a product in bf16, by their shapes; a chip has an eighth of the experts."""
    local = name == "local_experts"
    some = shapes(name, M, K, N, E // 8 if local else E, jnp.bfloat16)
    return [*some, S((E,), jnp.int32), *([S((), jnp.int32)] if local else [])]


@sample.drill
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("M", [16, 100, 8192])  # eight tokens of a text; a tile that hangs over
def test_real_layers_compile_for_tpus(compiler: Compiler, layer: str, M: int) -> None:
    E, D, F = LAYERS[layer]
    asked = [(name, K, N) for name in PUZZLES for K, N in ((D, F), (F, D))]
    traces = [trace_call(find(name).solution, *real(name, M, K, N, E)) for name, K, N in asked]
    refused = compiler.compile_all(traces, ["v5e", "v6e"])
    assert not {chip: (asked[why[0]], why[1]) for chip, why in refused.items() if why}


def other(name: str, **dims: int) -> list:
    """The shapes of a product that gets the weights of another product."""
    _, *weights = shapes(name, **dict(M=128, K=256, N=128, E=2) | dims)
    return [S((128, 256), jnp.float32), *weights]


WEIGHTED = [*sorted({*PRODUCTS} - {"grouped_outer"})]
SCALED = "quantized_grouped_matmul"
TOLD = [
    ("permuted_matmul", [S((2, 60, 100), jnp.float32), S((2, 100, 200), jnp.float32)],
     r"pad to \(64, 128, 256\), with zeros"),
    ("grouped_matmul_aligned", [S((64, 100), jnp.float32), S((2, 100, 300), jnp.float32)],
     r"pad to \(128, 512\), with zeros"),
    ("masked_store", [S((2, 100, 200), jnp.float32), ENDS - 50], "pad to 128"),
    ("launch_masked_store", [S((2, 100, 200), jnp.float32), ENDS - 50], r"pad to \(128, 256\)"),
    ("grouped_outer", [S((128, 256), jnp.float32), S((192, 128), jnp.float32)],
     "lhs has 128 rows, and rhs 192"),
    *((name, other(name, **dims), "2 groups and K=256 do not fit")
      for name in (*WEIGHTED, BLOCKS) for dims in (dict(K=384), dict(E=3))),
    *((BLOCKS, [S((128, K), jnp.float32), S((2, K, 128), jnp.int8), S(shape, jnp.float32)],
       rf"scales of shape .*: one for each column and each 128 terms of K={K}")
      for K, shape in ((256, (2, 1, 1, 128)), (256, (2, 2, 128)), (192, (2, 1, 1, 128)))),
    *((SCALED, [*other(SCALED)[:2], S(shape, jnp.float32)],
       r"scales of shape .*: one for each column, \(2, 1, 128\), as jnp.broadcast_to makes them")
      for shape in ((2, 1, 1), (2, 128), (1, 1, 128))),
    # A sum may not run over the edge: K that has no equal blocks is one, if VMEM lets it.
    *((name, shapes(name, 512, 14400, 2048, 2),
       "bk=14400, all of K, does not fit into VMEM: pad K to 14848, with zeros")
      for name in sorted({*PUZZLES} - {"grouped_outer"})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "says"), TOLD)
def test_what_does_not_fit_is_refused_and_told_what_to_pad_to(
    name: str, args: list, says: str
) -> None:
    """With the weights of another product the interpreter would clamp, and return numbers."""
    first = (jnp.int32(0),) if name == "local_experts" else ()
    with pytest.raises(ValueError, match=says):
        trace(find(name).solution, *args, ENDS, *first)


WIDE = itertools.product(
    (1024, 1408, 1536, 2560, 2880, 4096, 11008, 14336), (1024, 1408, 2880, 14336), ("f32", "bf16")
)


@pytest.mark.graduate
@pytest.mark.parametrize(("K", "N", "dtype"), sample.share(list(WIDE), 5))
def test_tiles_of_wide_layers_fit_every_chip(K: int, N: int, dtype: str) -> None:
    M, dtype = 8192, jnp.dtype({"f32": jnp.float32, "bf16": jnp.bfloat16}[dtype])
    _, bk, bn = grouped_matmul.tiles(M, K, N, dtype)
    assert K % bk == 0
    assert K % 128 or bk % 128 == 0
    needed = []
    names = ["grouped_matmul", "grouped_outer", "fused_gate_up", "quantized_grouped_matmul"]
    for name in (*([BLOCKS] if K % 128 == 0 else []), *names):
        args = shapes(name, M, K, N, 3, dtype)
        (launch,) = trace(find(name).solution, *args, jnp.array([5000, 0, 3000]))
        needed.append(launch.vmem_bytes)
    # the last one's body holds a block of weights in bf16, too
    assert max(*needed, needed[-1] + 2 * bk * bn) <= BUFFERS
    assert min(chip.scoped_vmem_bytes for chip in CHIPS.values()) * 3 // 4 == BUFFERS


@pytest.mark.parametrize(
    ("M", "K", "N", "E", "gmm_v2"),
    [
        (32_768, 7168, 2048, 256, 14.4),  # DeepSeek-V3, gate or up
        (32_768, 2048, 7168, 256, 11.0),  # down
        (32_768, 4096, 1536, 128, 3.1),  # Qwen3 235B
        (40_960, 2048, 512, 512, 1.6),  # Qwen3-Next
        (32_768, 1536, 5120, 160, 4.0),  # GLM-4.5
        (16_384, 2880, 2880, 128, 3.5),  # gpt-oss
        (262_144, 256, 7168, 256, 6.1),  # a narrow shard, of MaxText
        (512, 7168, 2048, 256, 7.3),  # DeepSeek-V3, 64 sequences decode
    ],
)
def test_many_experts_cost_a_v5e_no_more_than_in_tokamax(
    M: int, K: int, N: int, E: int, gmm_v2: float
) -> None:
    """All of K, and the milliseconds of the tiles of tokamax's gmm_v2 in 16 MiB."""
    r, chip = np.random.default_rng(0), CHIPS["v5e"]
    sizes = jnp.asarray(r.multinomial(M, r.dirichlet(np.full(E, 2.0))), jnp.int32)
    args = shapes("grouped_matmul", M, K, N, E, jnp.dtype(jnp.bfloat16))
    (launch,) = trace(find("grouped_matmul").solution, *args, sizes)
    moving = launch.hbm_bytes / chip.hbm_bytes_per_second
    seconds = moving, launch.dot_flops / chip.flops_per_second, launch.steps * chip.step_seconds
    assert launch.inputs[0].block[1] == K
    assert 1e3 * max(seconds) <= 1.07 * gmm_v2


def test_tiles_that_hang_over_n_are_counted() -> None:
    launched = find("choose_tiles").solution.__globals__["launched"]
    whole, ragged = (launched(256, 256, N, 2, 64, 128, 128) for N in (256, 200))
    assert ragged.steps == whole.steps
    assert ragged.hbm_bytes < whole.hbm_bytes  # the last block of columns is narrower
