"""Puzzle 15: block sizes for production shapes, judged by the receipt."""

import functools

import jax
import jax.numpy as jnp

from puzzles import find, trace

# %% [markdown]
# ## choose_blocks: spend VMEM to save traffic
#
# A row of `a`'s blocks serves `N / bn` blocks of the product. So `a` is read `N / bn` times, and
# `b` is read `M / bm` times. In bf16, the FLOPs per byte come to
#
# $$\frac{2MKN}{2\,(MK \cdot N/b_n \;+\; KN \cdot M/b_m \;+\; MN)}
#   \;=\; \frac{1}{1/b_n + 1/b_m + 1/K}$$
#
# A v5e computes up to 197 TFLOP/s and moves up to 820 GB/s: 240 FLOPs per byte. Below that
# **ridge** the matrix unit waits for memory (*memory-bound*); above it, memory waits
# (*compute-bound*). Each grid step takes at least 0.4 µs, as the compiler in libtpu estimates.
#
# ![A roofline for a v5e: 128 and 256 blocks lie on the slope, memory-bound; 512 blocks just reach the ridge of 240 FLOPs a byte, 1024 blocks lie beyond it.](diagrams/basics/choose_blocks.svg)
#
# Large blocks cost VMEM: **two** buffers for every blocked operand, output included, and the
# f32 accumulator once.
#
# Choose `(bm, bk, bn)` for a bf16 matmul. Its buffers must fit into `vmem_bytes`. On a v5e,
# neither the matmul's bytes nor its steps may take longer than its FLOPs. Blocks divide their axes and are
# multiples of 128.

# %%
matmul = find("matmul_bf16").solution


def choose_blocks_spec(M: int, K: int, N: int, vmem_bytes: int, blocks: tuple) -> bool:
    """True if the blocks fit into VMEM, and bytes and steps take no longer than the FLOPs."""
    bm, bk, bn = blocks
    if M % bm or K % bk or N % bn or bm % 128 or bk % 128 or bn % 128:
        return False
    a = jax.ShapeDtypeStruct((M, K), jnp.bfloat16)
    b = jax.ShapeDtypeStruct((K, N), jnp.bfloat16)
    (launch,) = trace(functools.partial(matmul, bm=bm, bk=bk, bn=bn), a, b)
    waits = max(launch.hbm_bytes / 820e9, launch.steps * 0.4e-6)
    return launch.vmem_bytes <= vmem_bytes and waits <= launch.dot_flops / 197e12


# %%
def choose_blocks(M: int, K: int, N: int, vmem_bytes: int) -> tuple[int, int, int]:
    ### BEGIN SOLUTION
    def sizes(n):
        return [b for b in range(128, n + 1, 128) if n % b == 0]

    least, chosen = float("inf"), (128, 128, 128)
    for bm in sizes(M):
        for bn in sizes(N):
            for bk in sizes(K):
                buffers = 2 * 2 * (bm * bk + bk * bn + bm * bn)
                accumulator = 4 * bm * bn
                moved = 2 * (M * K * (N // bn) + K * N * (M // bm) + M * N)
                steps = (M // bm) * (N // bn) * (K // bk)
                price = moved / 820e9 + steps * 0.4e-6
                if buffers + accumulator <= vmem_bytes and price < least:
                    least, chosen = price, (bm, bk, bn)
    return chosen
    ### END SOLUTION


# %% [markdown]
# The next cell draws a roofline with sliders. Which of them move the point to the right, and which
# only up?

# %% active="ipynb"
# from puzzles import roofline, sweep
#
# sides, square = (128, 256, 512, 1024), jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
# roofline(matmul, dict(bm=sides, bk=sides, bn=sides), square, square)

# %% [markdown]
# The formula, which is for `bk` below `K`, does not contain `bk`: a larger `bk` only means fewer
# steps. So give it the VMEM that is left.
#
# Now tune: `sweep` tries several values of a function's keyword arguments. **On a TPU it
# measures.** On a CPU it uses the receipt's estimate.
#
# <details>
# <summary>More: all of K in one block</summary>
#
# With `bk = K`, `a`'s index does not change while j runs, so `a` is read once. This is another good
# answer, if such blocks fit into VMEM. If VMEM is too little, ask for more with
# `pltpu.CompilerParams(vmem_limit_bytes=...)`.
#
# </details>

# %% active="ipynb"
# wide = [(128, 128, 128), (256, 256, 256), (512, 512, 512), (512, 1024, 512), (1024, 512, 1024)]
# sweep(matmul, [dict(bm=bm, bk=bk, bn=bn) for bm, bk, bn in wide], square, square)

# %% tags=["author"]
import dataclasses

import numpy as np

from puzzles import CHIPS, Launch, Puzzle


def make_inputs(key, M, K, N, mebibytes):
    return M, K, N, int(mebibytes * 2**20)


def fresh(r):
    M, K, N, mebibytes = [
        (5376, 8192, 3840, 12),
        (5376, 2048, 9216, 16),
        (2048, 13824, 5120, 8),
        (4096, 8192, 6912, 10),
    ][r.integers(4)]
    return dict(M=M, K=K, N=N, mebibytes=mebibytes)


def accepts(blocks, M, K, N, vmem_bytes):
    assert isinstance(blocks, tuple | list) and len(blocks) == 3, "return a tuple (bm, bk, bn)"
    order = "the blocks are returned in the order bm, bk, bn"
    for name, block, axis, size in zip(("bm", "bk", "bn"), blocks, "MKN", (M, K, N), strict=True):
        whole = isinstance(block, int | np.integer) and block > 0
        assert whole, f"{name} is {block!r}: it must be a positive int"
        assert block % 128 == 0, f"{name} = {block} is not a multiple of 128"
        assert size % block == 0, f"{name} = {block} does not divide {axis} = {size}; {order}"


def launches(blocks, M, K, N, vmem_bytes):
    bm, bk, bn = map(int, blocks)
    a = jax.ShapeDtypeStruct((M, K), jnp.bfloat16)
    b = jax.ShapeDtypeStruct((K, N), jnp.bfloat16)
    (launch,) = trace(functools.partial(matmul, bm=bm, bk=bk, bn=bn), a, b)
    return (dataclasses.replace(launch, vmem_limit_bytes=vmem_bytes),)


def audit(launch: Launch) -> None:
    chip = CHIPS["v5e"]
    blocks = (*launch.inputs[0].block, launch.inputs[1].block[1])
    assert launch.vmem_bytes <= launch.vmem_limit_bytes, (
        f"blocks {blocks} need {launch.vmem_bytes / 2**20:.2f} MiB of VMEM, but only "
        f"{launch.vmem_limit_bytes / 2**20:g} MiB are allowed: count two buffers for each "
        "operand, also for the output, and one accumulator"
    )
    assert launch.intensity >= chip.ridge, (
        f"blocks {blocks} give {launch.intensity:.0f} FLOPs a byte, memory-bound: a v5e needs "
        f"{chip.ridge:.0f}. A FLOP costs 1/bm + 1/bn bytes, so the smaller side decides. The "
        f"buffers take {launch.vmem_bytes / 2**20:.2f} of {launch.vmem_limit_bytes / 2**20:g} MiB "
        "of VMEM"
    )
    waits, works = launch.steps * chip.step_seconds, launch.dot_flops / chip.flops_per_second
    assert waits <= works, (
        f"blocks {blocks} make {launch.steps:,} steps, which take {1e6 * waits:.0f} µs, and "
        f"the FLOPs take only {1e6 * works:.0f} µs: a larger bk makes fewer steps"
    )


PUZZLE = Puzzle(
    spec=choose_blocks_spec,
    solution=choose_blocks,
    inputs=make_inputs,
    cases=[
        dict(M=8192, K=4096, N=14336, mebibytes=16),
        dict(M=4096, K=11008, N=4096, mebibytes=8),
        # One block has to take all of M.
        dict(M=512, K=5120, N=13824, mebibytes=8),
        # 512 divides neither M nor N.
        dict(M=2688, K=4096, N=6912, mebibytes=8),
        # Only (512, 256, 512) will do, and it fills the budget to the byte.
        dict(M=7680, K=4096, N=15360, mebibytes=3),
        # So short a K that what is written counts as well.
        dict(M=6144, K=1024, N=8192, mebibytes=12),
    ],
    fresh=fresh,
    hints=[
        "Which of bm, bk and bn does the formula reward, and what does the budget make you pay for "
        "each?",
        "The candidates for an axis are the multiples of 128 that divide it. Three short loops try "
        "them all; a launch is not needed, only arithmetic.",
        "For each candidate, add up the buffers in bytes: two for each of the three bf16 "
        "blocks, one f32 accumulator. Of those that fit, keep the one with the least time for "
        "bytes and steps.",
    ],
    explain="""For bk < K, traffic falls with bm and bn and does not depend on bk, so spend
    VMEM on the output block first, and the rest on bk: a larger bk means fewer steps.""",
    kernel=False,
    accepts=accepts,
    launches=launches,
    audit=audit,
)
