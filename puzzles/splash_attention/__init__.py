"""From softmax to block-sparse attention."""

ORDER = 2
AFTER = ("basics",)
TITLE = "SplashAttention: from softmax to block-sparse attention"
HOURS = 5  # of a JAX programmer who is new to TPUs
SUMMIT = "JAX's SplashAttention: any mask, and training"
PICTURE = "diagrams/splash_attention/causal_attention.svg"
RUNGS = (
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
)

INTRO = """
Attention over long sequences is a matrix multiplication, a softmax and another matrix
multiplication whose intermediate result is too large to keep. This ladder climbs from a stable
softmax to kernels that never materialise the scores, and neither compute nor fetch the blocks
that a mask hides whole. Near its top a kernel of your own stands beside SplashAttention, which JAX ships for TPUs: its forward pass, with the same
numbers for all rows that see anything, and no more tiles. At the top stand its gradients.

It builds on `basics.ipynb`: Refs, grids, index maps, scratch and `pl.when` are taken as known.
Here, too, every kernel runs on a CPU under `interpret=True`, and unchanged on a TPU.
"""

PARTS = {
    "attention": """## Part I: flash

A softmax seems to need a whole row before its first weight. You take it apart until it works block by block, with three
things that stay in VMEM: a maximum, a sum and an accumulator. One kernel body grows from one block of queries to many
heads.""",
    "causal_attention": """## Part II: masks

A mask says which scores count. A kernel that only obeys it wastes half of its work under a causal mask; one that
reads it block by block can leave out what is masked whole, arithmetic and traffic. Masks by position, by distance and by document, and a
cap on the scores, are a line or two each.""",
    "classify_blocks": """## Part III: splash

Every mask so far cost you a kernel. Now the mask becomes data: a table of blocks, then a list of the tiles that have work; and
one kernel walks it, for any mask. At the end it stands beside JAX's own SplashAttention: the same numbers, and no
more steps or dots.""",
    "attention_lse": """## Part IV: training

JAX cannot run a `pallas_call` backwards, so `jax.grad` of the summit raises. You write it: two kernels walk the
list again, by rows for q, by columns for k and v, with no more steps or dots than JAX's two backward kernels.
The forward pass keeps one number a row for them, which also joins attention that was cut in pieces.""",
}
