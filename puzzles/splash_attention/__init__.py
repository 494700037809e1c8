"""From softmax to block-sparse attention."""

ORDER = 2
TITLE = "SplashAttention: from softmax to block-sparse attention"
RUNGS = ()

INTRO = """
Attention over long sequences is a matrix multiplication, a softmax and another matrix
multiplication whose intermediate result is too large to keep. This ladder will climb from a stable
softmax to a kernel that never materialises the scores and visits only the blocks that a mask
needs, which is what JAX's production SplashAttention does.

Its puzzles are being written. Start with `basics.ipynb`: everything there is used here.
"""

PARTS: dict[str, str] = {}
