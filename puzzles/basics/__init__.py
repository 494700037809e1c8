"""From one Ref to a fused bf16 matmul: fifteen puzzles."""

ORDER = 1
TITLE = "Basics: from one Ref to a fused matmul"
RUNGS = (
    "add_ten",
    "vector_add",
    "add_reversed_blocks",
    "scale_blocks",
    "outer_product",
    "launch_vector_add",
    "row_sum",
    "ragged_row_sum",
    "fix_the_grid",
    "tiled_matmul",
    "launch_matmul",
    "matmul_bf16",
    "batched_matmul",
    "fused_matmul",
    "choose_blocks",
)

INTRO = """
A TPU is fast at one thing above all: multiplying blocks of numbers that already lie next to the
arithmetic. Most of the work of a kernel author is to decide *which block is where, and when*.
Pallas is JAX's language for that decision.

Fifteen puzzles lie ahead. The first kernel reads one buffer and writes another; the last ones are
matrix multiplications that feed the TPU's matrix unit from blocks that you have chosen. Every
kernel runs here, on a CPU, under `interpret=True`, and unchanged on a TPU.

Each puzzle has a **spec** in plain `jax.numpy`, a **kernel** or its call with a gap, and a **check**. The
check does not only compare numbers: it looks for the mistake behind wrong ones, runs your kernel
in a simulator of the TPU's memory, lowers it for Mosaic, the compiler of TPU kernels, and gives you
a receipt of what it costs. `show(add_ten)` draws a launch, step by step. If you are stuck, open a hint below the puzzle, or call
`hint(add_ten)`. `solution(add_ten)` shows an answer and says why it works.

You need JAX and NumPy; no TPU, and nothing about TPUs that is not explained on the way.
"""

PARTS = {
    "add_ten": """## Part I: Refs, grids, blocks

What a kernel sees, how its arrays are cut into blocks, and in which order the blocks come along.""",
    "tiled_matmul": """## Part II: matmul

The same parts, put to the work that TPUs are built for.""",
}
