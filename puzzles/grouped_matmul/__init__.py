"""From scalar prefetch to a mixture of experts."""

ORDER = 3
AFTER = ("basics",)
TITLE = "Grouped matmul: from scalar prefetch to a mixture of experts"
HOURS = "1½ ★, 3 in all"  # of a JAX programmer who is new to TPUs
SUMMIT = "Megablox' grouped matmul, in a mixture of experts"
PICTURE = "diagrams/grouped_matmul/grouped_matmul.svg"
PUZZLES = (
    "permuted_matmul",
    "group_offsets",
    "tiles_per_group",
    "tile_metadata",
    "masked_store",
    "launch_masked_store",
    "grouped_matmul_aligned",
    "grouped_matmul",
    "launch_grouped_matmul",
    "grouped_matmul_transposed",
    "grouped_outer",
    "moe_layer",
    "choose_tiles",
    "fused_gate_up",
    "local_experts",
    "quantized_grouped_matmul",
    "block_scaled_grouped_matmul",
)
MAIN_ROAD = (
    "permuted_matmul",
    "group_offsets",
    "tile_metadata",
    "masked_store",
    "grouped_matmul_aligned",
    "grouped_matmul",
    "moe_layer",
    "choose_tiles",
)

# In the notebook's setup cell, before its import of `puzzles`, which starts JAX.
SETUP_FIRST = """
from contextlib import suppress

with suppress(RuntimeError):  # too late if JAX already runs; one device works as well
    jax.config.update("jax_num_cpu_devices", 4)  # for local_experts; it does not affect a TPU
"""

INTRO = """
In a mixture of experts every token is multiplied by the weights of the expert that it was routed to.
How many tokens each expert gets is known only when the training step runs, so shapes cannot depend on it. A
product for every pair of a token and an expert would be mostly waste. This ladder leads from one
prefetched index to a grouped matmul that visits the same tiles as JAX's own, Megablox, then to a
mixture-of-experts layer that trains, and to the same layer in serving.

Three ideas carry all of it: small integer arrays that are in SMEM before the first step, index maps that read these
arrays to choose the blocks, and masks for tiles in which only some rows count. (Here: tiles in which rows of several experts meet.)
Block-sparse attention rests on the same three ideas; you can do the two ladders in either order.

This notebook builds on `basics.ipynb`: you should know Refs, grids, index maps, scratch and `pl.when`. As in
`basics`, every kernel runs on a CPU under `interpret=True`, and unchanged on a TPU. If a puzzle needs
an earlier one, it takes the reference, `find(...).solution`, so you can begin anywhere.
"""

PARTS = {
    "permuted_matmul": """## Part I: routing by data

An index map may read numbers that are known only when the program runs. First you write such a map. Then you
compute, under `jit`, the numbers that a grouped matmul reads: where each group starts, which
tiles it touches, and a list of all visits.""",
    "masked_store": """## Part II: sharing a tile

If two groups meet inside a tile, two visits write to one output block. First you write only
the store that keeps their rows apart, then the whole call around it.""",
    "grouped_matmul_aligned": """## Part III: grouped matmul

The list of visits, the routing and the store come together around a kernel body that you wrote in
`basics`: first for groups of whole tiles, then for any groups, then for the gradients, and finally in
a layer.""",
    "choose_tiles": """## Part IV: a layer that is served

In training, experts have many rows each. In decoding, token by token, they have few, and most of the traffic
is their weights.""",
}
