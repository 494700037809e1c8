"""From one remote copy to a collective matmul: fifteen puzzles."""

from puzzles.collectives._costs import compare_gathers
from puzzles.collectives._ring import barrier, neighbours

__all__ = ["barrier", "compare_gathers", "neighbours"]

ORDER = 5
AFTER = ("pipelines",)
TITLE = "Collectives: from one remote copy to a collective matmul"
HOURS = "2 ★, 4 in all"  # of a JAX programmer who is new to TPUs
SUMMIT = "a matmul that hides its all-gather, as tpu-inference's does"
PICTURE = "diagrams/collectives/ring_all_gather.svg"
PUZZLES = (
    "right_permute",
    "permute_on_mesh",
    "broadcast_ring",
    "barrier_first",
    "ring_all_gather",
    "ring_all_reduce",
    "fix_the_ring",
    "ring_reduce_scatter",
    "bidirectional_all_gather",
    "all_to_all",
    "dispatch_tokens",
    "all_gather_matmul",
    "matmul_reduce_scatter",
    "ring_attention",
    "collective_matmul",
)
MAIN_ROAD = (
    "right_permute",
    "barrier_first",
    "ring_all_gather",
    "ring_all_reduce",
    "fix_the_ring",
    "bidirectional_all_gather",
    "all_to_all",
    "all_gather_matmul",
    "collective_matmul",
)

# Appended to the notebook's setup cell.
SETUP = """
from jax import lax
from puzzles import on_devices, pipelines_on_cpu
from puzzles.collectives import barrier, neighbours  # for the puzzles after `barrier_first`

pipelines_on_cpu()  # lets `emit_pipeline` run without a TPU; on a TPU it does nothing
"""

INTRO = """
A large model is spread over many chips, which exchange data by *collectives*: all-gather,
all-reduce, all-to-all. Usually XLA provides them. Here you write them as kernels: a chip copies from
its own memory straight into its neighbour's, while its matrix unit goes on working.

You begin with one copy to the right. You end with a **collective matmul**, whose communication hides
behind its products.

You need no TPU. You write what **one** device runs, and `check` runs it on three to eight devices,
simulated in NumPy. It also catches what a plain run cannot show: a copy that lands in memory that
its owner still reads.
"""

PARTS = {
    "right_permute": """## Part I: one neighbour

One copy from chip to chip, its two semaphores, and a barrier.""",
    "ring_all_gather": """## Part II: rings

Data travel around a ring, step by step. Who may overwrite what, and when?""",
    "all_to_all": """## Part III: everybody to everybody

Every device sends to every other device, first equal shares, then as many rows as a router says.""",
    "all_gather_matmul": """## Part IV: hide the wire

While data travel, the matrix unit has time. Give it work.""",
}
