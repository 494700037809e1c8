"""From one Ref to a matmul that trains: seventeen puzzles."""

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
    "matmul_gradients",
    "trainable_matmul",
)

INTRO = """
A TPU is fast at one thing above all: multiplying blocks of numbers that already lie next to the
arithmetic. Most of a kernel author's work is to decide *which block is where, and when*. Pallas is
JAX's language for that decision.

Each puzzle has a **spec** in plain `jax.numpy`, a **kernel** or its call with a gap, and a
**check**, which looks for the mistake behind wrong numbers. You need no TPU: every kernel runs here
on a CPU, under `interpret=True`, and the same cells run on a TPU.

Once its cells have run, `show(add_ten)` draws a launch, step by step. Stuck? Open a hint below the
puzzle; `solution(add_ten)` shows an answer and says why it works.
"""

PARTS = {
    "add_ten": """## Part I: Refs, grids, blocks

What a kernel sees, how its arrays are cut into blocks, and in which order the blocks come along.""",
    "tiled_matmul": """## Part II: matmul

The same parts, put to the work that TPUs are built for.""",
    "matmul_gradients": """## Part III: a kernel in a model

A kernel that is called in a model has to be differentiated, too.""",
}
