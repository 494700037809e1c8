"""Puzzle 2: where each group starts."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

# %% [markdown]
# ## group_offsets: where each group starts
#
# A router has sent every token to one of `E` experts, and the tokens have been **sorted by expert**.
# So one number per expert is enough: how many rows it got.
#
# ```text
# group_sizes    100       0      156        200        56
# rows        0 ─────── 100 ────────── 256 ───────── 456 ──── 512
#                 g=0   ↑      g=2           g=3        g=4
#                      g=1, empty
#
# offsets     [0, 100, 100, 256, 456, 512]
# ```
#
# Group `g` has the rows from `offsets[g]` up to, but not including, `offsets[g + 1]`. So there are `E + 1`
# offsets; the last is the number of all rows.
#
# The router decides again in every training step, so the sizes are **data**. `jax.jit` compiles the step once, from
# the shapes alone. Then `group_sizes` is a tracer: the spec's NumPy cannot read it, and a loop would unroll into `E`
# additions. Compute all offsets at once, with `jnp`; they are int32, like the sizes. The check calls your function
# under `jit`.
#
# <details><summary>More: this is CSR</summary>
#
# Sparse matrices in
# [CSR form](https://docs.scipy.org/doc/scipy/reference/generated/scipy.sparse.csr_matrix.html) find
# their rows in the same way, with an array called `indptr`.
#
# </details>


# %%
def group_offsets_spec(group_sizes: Int[Array, " E"]) -> Int[Array, " E+1"]:
    offsets = [0]
    for size in np.asarray(group_sizes):
        offsets.append(offsets[-1] + size)
    return np.array(offsets, np.int32)


# %%
def group_offsets(group_sizes: Int[Array, " E"]) -> Int[Array, " E+1"]:
    ### BEGIN SOLUTION
    ends = jnp.cumsum(group_sizes)
    return jnp.concatenate([jnp.zeros(1, jnp.int32), ends])
    ### END SOLUTION


# %% tags=["author"]
from puzzles import Puzzle, array, rng


def draw_sizes(key, E, total, empty=0):
    """Sizes of E groups, `empty` of them 0, that add up to `total`: unequal, in no order."""
    r = rng(key)
    cuts = np.sort(r.choice(np.arange(1, total), E - empty - 1, replace=False))
    sizes = np.zeros(E, np.int32)
    sizes[np.sort(r.permutation(E)[: E - empty])] = np.diff(cuts, prepend=0, append=total)
    return array(sizes, jnp.int32)


def make_inputs(key, sizes=None, **random):
    return (array(sizes, jnp.int32) if sizes else draw_sizes(key, **random),)


def fresh(r):
    E, total, empty = (int(r.choice(n)) for n in ((9, 33), (700, 4096), (1, 6)))
    return dict(E=E, total=total, empty=empty)


PUZZLE = Puzzle(
    spec=group_offsets_spec,
    solution=group_offsets,
    inputs=make_inputs,
    cases=[
        dict(sizes=(100, 0, 156, 200, 56)),
        dict(E=144, total=1000, empty=2),
        dict(sizes=(16_777_217, 0, 3, 20_000_001, 5)),  # more than f32 can count
    ],
    hints=[
        "Group g ends after the rows of all groups up to and including g. It starts at the end of "
        "the group before it.",
        "`jnp.cumsum` gives running sums; `jnp.concatenate` takes a list of arrays, `jnp.pad` "
        "adds zeros at an end.",
        "Two lines: the running sums of the sizes are the ends, E of them; put one int32 zero "
        "in front.",
    ],
    explain="""The running sum of the sizes gives all ends at once. With a zero in front it also
    gives the starts. Nothing in it depends on a value while Python runs, so one compiled
    program works for all sizes.""",
    kernel=False,
    jit=True,
    fresh=fresh,
)
