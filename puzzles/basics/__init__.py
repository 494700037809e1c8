"""From one Ref to a matmul that trains: seventeen puzzles."""

ORDER = 1
TITLE = "Basics: from one Ref to a fused matmul"
HOURS = "1 ★, 2 in all"  # of a JAX programmer who is new to TPUs
SUMMIT = "a bf16 matmul with a fused epilogue, and its gradients"
PICTURE = "diagrams/basics/tiled_matmul.svg"
PUZZLES = (
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
MAIN_ROAD = (
    "add_ten",
    "vector_add",
    "scale_blocks",
    "launch_vector_add",
    "row_sum",
    "ragged_row_sum",
    "tiled_matmul",
    "launch_matmul",
    "matmul_bf16",
    "fused_matmul",
    "choose_blocks",
)

INTRO = """
A TPU is fast at one thing above all: multiplying blocks of numbers that already sit
next to the arithmetic units. Most of a kernel author's work is to decide *which block is where, and
when*. Pallas is JAX's language for that decision.

Each puzzle has a **spec** in plain `jax.numpy`, a gap (usually in a **kernel** or its call), and a
**check**, which looks for the mistake behind wrong numbers. You need no TPU: every kernel runs on a
CPU, under `interpret=True`, and unchanged on a TPU.

Once you have run a puzzle's cells, `show(add_ten)` draws its **launch** (one `pallas_call`) step by
step. Stuck? Open a hint below the puzzle; `solution(add_ten)` shows an answer and says why it
works.
"""

PARTS = {
    "add_ten": """## Part I: Refs, grids, blocks

A kernel's view of its arrays, how they are cut into blocks, and the order of the blocks.""",
    "tiled_matmul": """## Part II: matmul

The same tools, for the operation that TPUs are built for.""",
    "matmul_gradients": """## Part III: a kernel in a model

Training differentiates every kernel that a model calls.""",
}

OUTRO = """## Where to go next

You began with a kernel of one line. By now you can look at a kernel and say which block is in VMEM at each step,
when it moves, how much that costs, and how JAX gets the gradient. Three notebooks build on that.
Start with any of them:

* `splash_attention.ipynb`, if attention is your work: a softmax that never stores its scores, and
  masks that save work.
* `grouped_matmul.ipynb`, if you build mixtures of experts: index maps that look up their blocks in
  a table.
* `pipelines.ipynb`, if you serve models: you write `pallas_call`'s copies yourself, and end with
  paged attention. After it, `collectives.ipynb` copies between chips.

And your own kernels? The last cell shows `examine`, which needs no puzzle: it looks for mistakes
and waste in the launches of any function. `puzzles.sweep` tries several block sizes of a function.
"""
