"""From one Ref to a matmul that trains: seventeen puzzles."""

ORDER = 1
TITLE = "Basics: from one Ref to a fused matmul"
HOURS = 2  # of a JAX programmer who is new to TPUs
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

OUTRO = """## The way on

You began with one Ref. By now you can say of a kernel which block is where at which step, when it
moves, what it costs, and how JAX learns its gradient. Three ladders take that as known. Begin with
any of them:

* `splash_attention.ipynb`, if attention is your work: a softmax that never stores its scores, and
  masks that save work.
* `grouped_matmul.ipynb`, if you build mixtures of experts: index maps that look up where to go.
* `pipelines.ipynb`, if you want to copy by hand: what `pallas_call` did for you here, and paged
  attention.

And your own kernels? The last cell shows `examine`, which needs no puzzle: it says what is wrong,
doubtful or slow in the launches of any function. `puzzles.sweep` tries block sizes for it.
"""
