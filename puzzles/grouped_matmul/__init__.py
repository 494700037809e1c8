"""From scalar prefetch to a mixture of experts."""

ORDER = 3
AFTER = ("basics",)
TITLE = "Grouped matmul: from scalar prefetch to a mixture of experts"
RUNGS = ()

INTRO = """
In a mixture of experts every token is multiplied by the weights of the expert that it was routed
to, and nobody knows before the step runs how many tokens each expert gets. This ladder will climb
from one prefetched index to a grouped matmul in the manner of Megablox and to a layer that trains.

Its puzzles are being written. Start with `basics.ipynb`: everything there is used here.
"""

PARTS: dict[str, str] = {}
