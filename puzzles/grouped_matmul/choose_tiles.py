"""Puzzle 13: tiles for many experts or few, for training or for decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles import INTERPRET, find, trace

# %% [markdown]
# ## choose_tiles: bytes, products and steps
#
# What do tiles cost on a v5e? As a model, take the largest of three times. (Additions to the
# accumulator are left out.) There are `E` groups of `M // E` rows, `V` visits and `C = N // bn`
# columns of blocks:
#
# ```text
# bytes       2 for each number moved, 820e9 per second
# products    2 × V × bm × K × N FLOPs, 197e12 per second: a visit computes bm rows, however few belong to its group
# steps       C × V × (K // bk), at least 0.4 µs each, by libtpu's estimate
#
# numbers moved
#             K whole, bk = K            K cut, bk < K
# lhs         M × K, C times             bm × K for each visit, C times
# weights     E × K × N, once            K × N for each visit
# result      M × N                      M × N
# ```
#
# With K whole, a block of weights stays while the visits of its group follow one another. (If `bm` is also all of
# `M`, `lhs` is moved once.) VMEM must hold two buffers for each block, the output's too,
# and the f32 accumulator once.
#
# Choose `(bm, bk, bn)` for bf16 that fit into `vmem_bytes` and cost at most 5 % more than the best.
# They divide `M`, `K`, `N`; `bk` and `bn` are multiples of 128, `bm` of 16. `bm` is **at least 128**,
# unless `M` is less: the matrix unit loads a block of weights, then streams rows past it, and few rows
# do not hide the loading. `visits(M, E, bm)` counts the visits.


# %% jupyter={"source_hidden": true} cellView="form"
# @title The launch, with tiles to choose (given)
def launched(M, K, N, E, bm, bk, bn, sizes=None, vmem_bytes=None):
    """The launch of `grouped_matmul` with these tiles, read without running it.

    vmem_bytes: the VMEM that it asks for, or None for the default.
    """

    group_sizes = np.full(E, M // E) if sizes is None else sizes
    offsets = find("group_offsets").spec(group_sizes)  # in NumPy: this compiles nothing
    group_ids, tile_ids, num_steps = find("tile_metadata").spec(group_sizes, M, bm)

    def grouped(lhs, rhs):
        return pl.pallas_call(
            find("grouped_matmul").solution.__globals__["grouped_matmul_kernel"],
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=3,
                grid=(pl.cdiv(N, bn), num_steps, K // bk),
                in_specs=[
                    pl.BlockSpec((bm, bk), lambda j, s, k, _, groups, tiles: (tiles[s], k)),
                    pl.BlockSpec(
                        (None, bk, bn), lambda j, s, k, _, groups, tiles: (groups[s], k, j)
                    ),
                    pl.BlockSpec(memory_space=pl.ANY),
                ],
                out_specs=pl.BlockSpec((bm, bn), lambda j, s, k, _, groups, tiles: (tiles[s], j)),
                scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            ),
            out_shape=jax.ShapeDtypeStruct((M, N), lhs.dtype),
            input_output_aliases={5: 0},
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_bytes),
            interpret=INTERPRET,
        )(offsets, group_ids, tile_ids, lhs, rhs, jnp.zeros((M, N), lhs.dtype))

    lhs, rhs = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((M, K), (E, K, N)))
    (launch,) = trace(grouped, lhs, rhs)
    return launch


def prices(launch):
    """Seconds on a v5e for the bytes, the products and the steps."""
    return launch.hbm_bytes / 820e9, launch.dot_flops / 197e12, launch.steps * 0.4e-6


@functools.cache
def visits(M: int, E: int, bm: int) -> int:
    """Count the tiles of `bm` rows that E consecutive groups of M // E rows touch."""
    rows = M // E
    return sum((g * rows + rows - 1) // bm - g * rows // bm + 1 for g in range(E))


# %%
def choose_tiles_spec(M: int, K: int, N: int, E: int, vmem_bytes: int) -> tuple[int, int, int]:
    """Return the cheapest of all tiles. It traces a launch for each, which is much too slow."""
    rows, some, others = (range(b, n + 1, b) for n, b in ((M, 16), (K, 128), (N, 128)))
    every = ((bm, bk, bn) for bm in rows for bk in some for bn in others)
    whole = [one for one in every if not (M % one[0] or K % one[1] or N % one[2])]
    tiles = [one for one in whole if one[0] >= min(128, M)]
    receipts = {one: launched(M, K, N, E, *one) for one in tiles}
    fit = [one for one in tiles if receipts[one].vmem_bytes <= vmem_bytes]
    return min(fit, key=lambda one: max(prices(receipts[one])))


# %%
def choose_tiles(M: int, K: int, N: int, E: int, vmem_bytes: int) -> tuple[int, int, int]:
    ### BEGIN SOLUTION
    def divisors(n, step, least=0):
        return [b for b in range(step, n + 1, step) if n % b == 0 and b >= least]

    least, chosen = float("inf"), None
    for bm in divisors(M, 16, least=min(128, M)):
        V = visits(M, E, bm)
        for bk in divisors(K, 128):
            for bn in divisors(N, 128):
                columns = N // bn
                buffers = 2 * 2 * (bm * bk + bk * bn + bm * bn) + 4 * bm * bn
                lhs = (M * K if bk == K else V * bm * K) * (1 if bm == M and bk == K else columns)
                weights = E * K * N if bk == K else V * K * N
                moved, products = lhs + weights + M * N, V * bm * K * N
                steps = columns * V * (K // bk)
                price = max(2 * moved / 820e9, 2 * products / 197e12, steps * 0.4e-6)
                if buffers <= vmem_bytes and price < least:
                    least, chosen = price, (bm, bk, bn)
    return chosen
    ### END SOLUTION


# %% [markdown]
# Below are 8 or 64 experts, with many rows or few. With many rows, products can be the largest cost: the tiles in the
# first line move 284 MiB, so 317 FLOPs for each byte, while a v5e can do 240. With few rows, bytes cost most, and most
# bytes are weights. Even there, products would cost more with a `bm` of 512. None of the tiles
# that [tokamax](https://github.com/openxla/tokamax/tree/main/tokamax/data/autotuning) has tuned for its Megablox on
# TPUs (2026) has fewer than 128 rows.
#
# A router's groups are not equal like these. Tile edges cut more of them. Some experts get no rows,
# and their weights are never fetched. The last two lines are about another layer. With a router's groups,
# the tiles that are best for equal groups cost 1.5 times as much as (128, 7168, 512).
#
# The tiles (128, 7168, 512) take 18 MiB of VMEM. A kernel gets 16 MiB of a v5e's 128 unless its
# launch asks for more, as the collapsed cell does:
# `pltpu.CompilerParams(vmem_limit_bytes=vmem_bytes)`. Production kernels ask for more: tokamax's
# `gmm_v2` (2026), for example.

# %% active="ipynb"
# print("      M   E  rows each            tiles  MiB moved  ms for bytes  products  steps")
# for M, E in ((16384, 8), (16384, 64), (512, 64)):
#     bm, bk, bn = find("choose_tiles").solution(M, 2048, 1408, E, 12 * 2**20)
#     one = launched(M, 2048, 1408, E, bm, bk, bn)
#     of_bytes, products, steps = (1e3 * seconds for seconds in prices(one))
#     print(f"{M:7}{E:4}{M // E:11}{(bm, bk, bn)!s:>17}{one.hbm_bytes / 2**20:11.0f}", end="")
#     print(f"{of_bytes:14.2f}{products:10.2f}{steps:7.2f}")
#
# layer, r = (8192, 7168, 2048, 128), np.random.default_rng(0)
# routed = r.multinomial(8192, r.dirichlet(np.full(128, 0.3)))
# for tiles in (find("choose_tiles").solution(*layer, 32 * 2**20), (128, 7168, 512)):
#     both = [launched(*layer, *tiles, sizes, vmem_bytes=32 * 2**20) for sizes in (None, routed)]
#     equal, skewed = (1e3 * max(prices(one)) for one in both)
#     print(f"{tiles}: {equal:.2f} ms for equal groups, {skewed:.2f} ms for a router's,", end="")
#     print(f"{both[0].vmem_bytes / 2**20:5.1f} MiB of VMEM")

# %% tags=["author"]
from puzzles import Launch, Puzzle

_MOST = 1.05  # times the best tiles' price


def make_inputs(key, M, K, N, E, mebibytes):
    return M, K, N, E, int(mebibytes * 2**20)


def fresh(r):
    M, K, N, E, mebibytes = [
        (2048, 1536, 768, 16, 6),
        (8192, 2048, 1792, 32, 10),
        (256, 2048, 2816, 16, 14),
        (3072, 2560, 1280, 12, 5),
    ][r.integers(4)]
    return dict(M=M, K=K, N=N, E=E, mebibytes=mebibytes)


def accepts(tiles, M, K, N, E, vmem_bytes):
    assert isinstance(tiles, tuple | list) and len(tiles) == 3, "return a tuple (bm, bk, bn)"
    for name, tile, axis, size in zip(("bm", "bk", "bn"), tiles, "MKN", (M, K, N), strict=True):
        whole = isinstance(tile, int | np.integer) and tile > 0
        assert whole, f"{name} is {tile!r}: it must be a positive int"
        of = 16 if name == "bm" else 128
        assert tile % of == 0, f"{name} = {tile} is not a multiple of {of}"
        assert size % tile == 0, f"{name} = {tile} does not divide {axis} = {size}"
    assert tiles[0] >= min(128, M), (
        f"bm = {tiles[0]}: the matrix unit would load each block of weights for {tiles[0]} "
        f"rows; take {min(128, M)} at least"
    )


def launches(tiles, M, K, N, E, vmem_bytes):
    return (launched(M, K, N, E, *map(int, tiles), vmem_bytes=vmem_bytes),)


def audit(launch: Launch, *, args) -> None:
    M, K, N, E, vmem_bytes = args
    rows, weights = launch.inputs[:2]
    tiles = (rows.block[0], rows.block[1], weights.block[2])
    assert launch.vmem_bytes <= vmem_bytes, (
        f"tiles {tiles} need {launch.vmem_bytes / 2**20:.2f} MiB of VMEM where "
        f"{vmem_bytes / 2**20:g} MiB are allowed: count two buffers for each operand's block, the "
        "output's too, and the accumulator"
    )
    wanted = choose_tiles(*args)
    least = launched(M, K, N, E, *wanted)
    others, mine, best = least.inputs, prices(launch), max(prices(least))
    again, often = weights.hbm_bytes / (2 * E * K * N), rows.hbm_bytes / (2 * M * K)
    more = weights.hbm_bytes - others[1].hbm_bytes, rows.hbm_bytes - others[0].hbm_bytes
    what = f"lhs is fetched {often:.1f} times"
    if more[0] > more[1]:
        how = (
            "keep K whole, if VMEM lets you"
            if tiles[1] < K == wanted[1]
            else "larger bm, fewer visits"
        )
        what = f"each weight is fetched {again:.1f} times: {how}"
    elif tiles[2] < wanted[2]:
        what += ": larger bn, fewer columns of blocks"
    elif wanted[:2] == (M, K) and tiles[:2] != (M, K):
        what += ": it stays if bm is all of M and K is whole"
    elif tiles[1] < K == wanted[1]:
        what += ", by all visits: keep K whole, if VMEM lets you"
    elif tiles[0] > wanted[0]:
        what += ": a visit brings bm rows, however few its group has"
    if max(mine) == mine[1]:
        more = launch.dot_flops / (2 * M * K * N)
        what = (
            f"they multiply {more:.1f} times what is needed: a visit computes bm rows, however few "
            "its group has"
        )
    elif max(mine) == mine[2]:
        what = f"{launch.steps:,} steps of 0.4 µs: larger bk or bn, or fewer visits"
    of_bytes, products, steps = (f"{seconds * 1e6:.0f}" for seconds in mine)
    assert max(mine) <= _MOST * best, (
        f"tiles {tiles} take {max(mine) * 1e6:.0f} µs where {best * 1e6:.0f} are enough: "
        f"the largest of {of_bytes} for bytes, {products} for products and {steps} for steps; "
        f"{what}"
    )


PUZZLE = Puzzle(
    spec=choose_tiles_spec,
    solution=choose_tiles,
    inputs=make_inputs,
    cases=[
        dict(M=1024, K=2048, N=1408, E=64, mebibytes=12),  # few rows an expert
        dict(M=16384, K=2048, N=1408, E=8, mebibytes=12),  # many: whole K pays
        dict(M=4096, K=4096, N=2048, E=8, mebibytes=4),  # whole K leaves too little for the rest
        dict(M=1920, K=4096, N=1536, E=128, mebibytes=16),  # no power of two: 15 rows an expert
        dict(M=256, K=1024, N=2560, E=4, mebibytes=3),
        dict(M=1920, K=4096, N=14336, E=8, mebibytes=4),
        dict(M=1024, K=2048, N=768, E=4, mebibytes=2),  # the best takes all that there is
        dict(M=8192, K=4096, N=14336, E=8, mebibytes=32),  # twice the VMEM of most
    ],
    hints=[
        "What does a larger bm save, and what does it cost if groups are small? What does whole "
        "K cost in VMEM?",
        "The candidates are the multiples that divide an axis. Three short loops try them all: "
        "the table in the text gives the price, and no launch is needed.",
        "For each candidate, compute: the bytes of the buffers (two for each of three bf16 "
        "blocks, one f32 accumulator); the numbers moved for lhs, weights and result, by the "
        "left or the right column of the table; the largest of the three times. Keep the "
        "cheapest that fits.",
    ],
    explain="""With K whole, an expert's weights are fetched once for all of its rows; with K
    cut, once for every tile of them. With many rows per expert, products can be the largest
    cost, and then cutting K costs nothing if columns are wide. With few rows per expert nothing
    is left to reuse, and most of the traffic is weights.""",
    kernel=False,
    accepts=accepts,
    launches=launches,
    audit=audit,
    fresh=fresh,
)
