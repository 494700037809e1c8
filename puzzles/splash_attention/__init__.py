"""From softmax to block-sparse attention."""

ORDER = 2
AFTER = ("basics",)
TITLE = "SplashAttention: from softmax to block-sparse attention"
HOURS = "3 ★, 7 in all"  # of a JAX programmer who is new to TPUs
SUMMIT = "JAX's SplashAttention: any mask, and training"
PICTURE = "diagrams/splash_attention/causal_attention.svg"
PUZZLES = (
    "attention",
    "softmax_two_pass",
    "online_softmax",
    "attention_one_block",
    "flash_attention",
    "multi_head_attention",
    "causal_attention",
    "causal_prefetch",
    "local_attention",
    "segment_attention",
    "soft_cap_attention",
    "classify_blocks",
    "block_sparse_attention",
    "active_tiles",
    "splash_attention",
    "computed_masks",
    "splash_multi_head",
    "attention_lse",
    "merge_attention",
    "attention_dq",
    "attention_dkv",
    "splash_vjp",
    "linear_attention",
    "gated_linear_attention",
    "vocabulary_loss",
    "vocabulary_gradients",
)
MAIN_ROAD = (
    "attention",
    "online_softmax",
    "attention_one_block",
    "flash_attention",
    "multi_head_attention",
    "causal_attention",
    "causal_prefetch",
    "classify_blocks",
    "block_sparse_attention",
    "active_tiles",
    "splash_attention",
)

INTRO = """
Attention is a matrix multiplication, a softmax and another matrix multiplication. For long sequences, the
intermediate result is too large to keep. This ladder leads from a stable softmax to kernels that never
materialise the scores, and that neither compute nor fetch the blocks that a mask hides entirely. After Part III
you compare your own kernel with SplashAttention, which JAX ships for TPUs: yours gives the same numbers
for every row that attends to anything, and computes no more tiles. Then you add the gradients, try
attention without a softmax, and at last compute the loss of a large vocabulary in the same way.

It builds on `basics.ipynb`: you should know Refs, grids, index maps, scratch and `pl.when`.
As in `basics`, every kernel runs on a CPU under `interpret=True`, and unchanged on a TPU.
"""

PARTS = {
    "attention": """## Part I: flash

A softmax seems to need the whole row before it can give the first weight. You take it apart until it works block by block,
with three things that stay in VMEM: a maximum, a sum and an accumulator. One kernel body grows from one block of queries
to many heads.""",
    "causal_attention": """## Part II: masks

A mask says which scores count. A kernel that only applies a causal mask wastes half of its work. A kernel that looks at
the mask block by block can leave out the blocks that are hidden entirely: first their arithmetic, then their traffic.
Masks by position, by distance and by document, and a cap on the scores, take a line or two each.""",
    "classify_blocks": """## Part III: splash

Every mask so far cost you a kernel. Now the mask becomes data: first a table of blocks, then a list of the **tiles**: the
blocks that have work. One kernel walks this list, for any mask. At the end you compare it with JAX's own SplashAttention: the
same numbers, and no more steps or dots.""",
    "attention_lse": """## Part IV: training

JAX does not differentiate a `pallas_call` like yours, so `jax.grad` of `splash_multi_head` raises an error. You write the
backward pass: two kernels walk the list again, by rows for q, by columns for k and v, with no more steps or dots than
JAX's two backward kernels.
The forward pass keeps one number per row for the backward pass. The same number also lets you merge attention that was computed
in pieces.""",
    "linear_attention": """## Part V: a state in place of the keys

Without the softmax, one matrix replaces all earlier keys and values. In some models of 2025, most layers work this way. Your
kernel carries the matrix in scratch, from chunk to chunk. Then the matrix learns to forget. This part does not need
Parts II to IV.""",
    "vocabulary_loss": """## Part VI: the last layer

A language model ends with another softmax, over all words that could come next. For a large vocabulary, its scores are
the largest array of a training step. The online softmax never stores them. Of the earlier parts, you need Part I and
`attention_lse`.""",
}
