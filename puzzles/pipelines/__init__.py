"""From one copy by hand to paged attention, and to two cores: twenty-three puzzles."""

from puzzles import kernels_on_old_jax

kernels_on_old_jax()

ORDER = 4
AFTER = ("basics",)
TITLE = "Pipelines: from one copy to paged attention"
HOURS = "2 ★, 4 in all"  # of a JAX programmer who is new to TPUs
SUMMIT = "paged attention, with copies by your own hand"
PICTURE = "diagrams/pipelines/double_buffered_sum.svg"
PUZZLES = (
    "copy_rows",
    "stream_sum",
    "double_buffered_sum",
    "fix_the_copy",
    "double_buffered_matmul",
    "pipelined_add",
    "pipelined_matmul",
    "launch_pipeline",
    "ragged_row_sums",
    "gather_pages",
    "paged_attention",
    "sum_pages",
    "paged_attention_dma",
    "paged_grouped_attention",
    "paged_window_attention",
    "latent_attention",
    "append_to_pages",
    "gapless_attention",
    "scale_rows",
    "kernel_add",
    "chosen_blocks",
    "halves",
    "matmul_on_cores",
)
MAIN_ROAD = (
    "copy_rows",
    "stream_sum",
    "double_buffered_sum",
    "fix_the_copy",
    "pipelined_add",
    "pipelined_matmul",
    "gather_pages",
    "paged_attention",
    "sum_pages",
    "gapless_attention",
    "scale_rows",
)

# Appended to the notebook's setup cell.
SETUP = """
from puzzles import kernels_on_old_jax, pipelines_on_cpu

pipelines_on_cpu()  # lets `emit_pipeline` run without a TPU; on a TPU it does nothing
kernels_on_old_jax()  # lets `pl.kernel` run on a JAX before 0.11; on newer ones it does nothing
"""

INTRO = """
In `basics`, `pallas_call` copied every block for you. Here you learn to make these copies
yourself, and to beat `pallas_call` when you know something that it cannot know.

You begin with a copy in and a copy out. You reach **paged attention**, which serves
language models: keys and values are in pages all over memory, and a table lists the pages. The last
part ends on two cores.

Some mistakes here never show under `interpret=True`, because there a copy is over as soon as it is
started. On a TPU it is not. So `check` also runs your kernel in a simulator of a TPU that watches
every copy, and names the line that touches a buffer too early.
"""

PARTS = {
    "copy_rows": """## Part I: by hand

Start a copy, wait for it, and keep the next copy in flight while you compute.""",
    "pipelined_add": """## Part II: the pipeline as a function

`emit_pipeline` runs a grid inside a kernel, and makes the copies of Part I for you.""",
    "gather_pages": """## Part III: serving

Pages, a table that finds them, and attention over them.""",
    "scale_rows": """## Part IV: cores

The entry point of JAX's quickstart, `pl.kernel`: copies instead of blocks, and two cores.""",
}

OUTRO = """## Where to go next

You began with a copy in and a copy out. By now you can write the copies of a kernel yourself, keep
them in flight while it computes, let a table choose their sources, and divide the work between two
cores. `collectives.ipynb` goes on from here: its copies go to other chips.

The last cell shows `examine`, which looks for mistakes and waste in the launches of any function.
"""
