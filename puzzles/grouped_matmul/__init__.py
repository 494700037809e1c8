"""From scalar prefetch to a mixture of experts."""

ORDER = 3
AFTER = ("basics",)
TITLE = "Grouped matmul: from scalar prefetch to a mixture of experts"
HOURS = 3  # of a JAX programmer who is new to TPUs
SUMMIT = "Megablox' grouped matmul, in a mixture of experts"
PICTURE = "diagrams/grouped_matmul/grouped_matmul.svg"
RUNGS = (
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
)

# In the notebook's setup cell, before its import of `puzzles`, which starts JAX.
SETUP_FIRST = """
from contextlib import suppress

with suppress(RuntimeError):  # too late if JAX runs already; one device does, too
    jax.config.update("jax_num_cpu_devices", 4)  # for local_experts; a TPU does not mind
"""

INTRO = """
In a mixture of experts every token is multiplied by the weights of the expert that it was routed
to, and how many tokens each expert gets is known only when the step runs. Shapes cannot depend on
it, and a product for every pair of a token and an expert would be mostly waste. This ladder climbs
from one prefetched index to a grouped matmul that visits the same tiles as JAX's own, Megablox, to
a mixture-of-experts layer that trains, and to what serves it.

Three ideas carry all of it: small integer arrays that are in SMEM before the first step, index maps
that read there where to fetch from, and masks for tiles of which only a part is meant: here, where two groups meet. Block-sparse
attention rests on the same three; you can climb the two ladders in either order.

It builds on `basics.ipynb`: Refs, grids, index maps, scratch and `pl.when` are taken as known. Here,
too, every kernel runs on a CPU under `interpret=True`, and unchanged on a TPU. What a rung needs of
an earlier one it takes from the reference, `find(...).solution`, so you can begin anywhere.
"""

PARTS = {
    "permuted_matmul": """## Part I: routing by data

An index map may read numbers that are known only when the program runs. First you let it. Then you
compute, under `jit`, the numbers that a grouped matmul wants to read: where each group starts, which
tiles it touches, and a list of all visits.""",
    "masked_store": """## Part II: sharing a tile

Where two groups meet inside a tile, two visits write to one output block. You write the store that
keeps them apart, by itself, and then the whole call around it.""",
    "grouped_matmul_aligned": """## Part III: grouped matmul

The list of visits, the routing and the store come together around a kernel body that you wrote in
`basics`: first for groups of whole tiles, then for any groups, then for the gradients, and at last in
a layer.""",
    "choose_tiles": """## Part IV: a layer that is served

In training, experts have many rows each; in decoding, token by token, few, and their weights are most
of what is moved.""",
}
