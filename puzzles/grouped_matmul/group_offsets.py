"""Rung 2: where each group starts."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

# %% [markdown]
# ## group_offsets: where each group starts
#
# A router has sent every token to one of `E` experts, and the tokens have been **sorted by expert**.
# So one number for each expert says it all: how many rows it got.
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
# Group `g` has the rows from `offsets[g]` up to, not including, `offsets[g + 1]`. So there are `E + 1`
# offsets; the last is the number of all rows.
#
# The router decides anew in every step, so the sizes are **data**. `jax.jit` compiles the step once,
# for shapes alone. The spec's NumPy cannot hold what `group_sizes` is then, and a loop would unroll
# into `E` additions. Compute all offsets at once, with `jnp`; they are int32, like the sizes. The
# check calls your function under `jit`.
#
# <details><summary>More: this is CSR</summary>
#
# Sparse matrices in
# [CSR form](https://docs.scipy.org/doc/scipy/reference/generated/scipy.sparse.csr_matrix.html) find
# their rows in the same way, by an array called `indptr`.
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
from puzzles import Alternative, Mistake, Puzzle, array, rng


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


_ENDS = "ends = jnp.cumsum(group_sizes)"
_RETURN = "return jnp.concatenate([jnp.zeros(1, jnp.int32), ends])"

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
        "Group g ends where all groups up to and including g have had their rows. And it starts where the group "
        "before it ends.",
        "`jnp.cumsum` gives running sums; `jnp.concatenate` takes a list of arrays, `jnp.pad` adds zeros at an end.",
        "Two lines: the running sums of the sizes are the ends, E of them; put one int32 zero in front.",
    ],
    explain="""The running sum of the sizes gives all ends at once, and a zero in front makes of them the
    starts, too. Nothing in it depends on a value while Python runs, so one compiled program serves
    all sizes.""",
    kernel=False,
    jit=True,
    fresh=fresh,
    mistakes=[
        Mistake(
            "gives the ends only",
            old=_RETURN,
            new="return ends",
            says="expected (6,), got (5,)",
        ),
        Mistake(
            "gives the starts, and appends no end",
            old=_RETURN,
            new="return ends - group_sizes",
            says="expected (6,), got (5,)",
        ),
        Mistake(
            "puts the zero at the end",
            old=_RETURN,
            new="return jnp.concatenate([ends, jnp.zeros(1, jnp.int32)])",
            says="the zero belongs in front: group 0 starts at row 0, and the last offset is the number of all rows",
        ),
        Mistake(
            "does not add the sizes up",
            old=_ENDS,
            new="ends = group_sizes",
            says="a size is no offset: group g starts after *all* groups before it",
        ),
        Mistake(
            "starts with the first size twice",
            old=_RETURN,
            new="return jnp.concatenate([ends[:1], ends])",
            says="group 0 starts at row 0",
        ),
        Mistake(
            "gives the start of the last group where its end belongs",
            old=_RETURN,
            new="return jnp.concatenate([ends - group_sizes, (ends - group_sizes)[-1:]])",
            says="offsets[E] is where the last group ends",
        ),
        Mistake(
            "gives every empty group a row",
            old=_ENDS,
            new="ends = jnp.cumsum(jnp.maximum(group_sizes, 1))",
            says="an empty group has no rows: it starts where it ends",
        ),
        Mistake(
            "adds up in floating point",
            old=_ENDS,
            new="ends = jnp.cumsum(group_sizes.astype(jnp.float32)).astype(jnp.int32)",
            says="f32 holds whole numbers exactly up to 2 to the power of 24 only: keep the sizes int32",
        ),
        Mistake(
            "lets a float zero in",
            old="jnp.zeros(1, jnp.int32)",
            new="jnp.zeros(1)",
            says="wrong dtype: expected int32, got float32",
        ),
        Mistake(
            "adds up in Python",
            old=_ENDS,
            new="ends = jnp.array(np.cumsum([int(size) for size in group_sizes]), jnp.int32)",
            says="not known while Python runs",
            stage="error",
        ),
        Mistake(
            "joins with NumPy",
            old=_RETURN,
            new="return np.concatenate([[0], ends])",
            says="not known while Python runs",
            stage="error",
        ),
        Mistake(
            "throws away what `.at[].set()` returns",
            old="    return jnp.concatenate([jnp.zeros(1, jnp.int32), ends])",
            new="""    offsets = jnp.zeros(len(group_sizes) + 1, jnp.int32)
    offsets.at[1:].set(ends)
    return offsets""",
            says="an array of JAX does not change: a new one comes back, and wants a name",
        ),
    ],
    alternatives=[
        Alternative("pads in front", old=_RETURN, new="return jnp.pad(ends, (1, 0))"),
        Alternative(
            "pads first and sums then",
            edits=((_ENDS, "padded = jnp.pad(group_sizes, (1, 0))"), (_RETURN, "return padded.cumsum()")),
        ),
        Alternative(
            "writes into zeros",
            old=_RETURN,
            new="return jnp.zeros(len(group_sizes) + 1, jnp.int32).at[1:].set(ends)",
        ),
        Alternative(
            "adds the sizes of all groups before, in a table",
            code="""
def group_offsets(group_sizes):
    E = group_sizes.shape[0]
    before = jnp.arange(E)[None, :] < jnp.arange(E + 1)[:, None]
    return jnp.sum(jnp.where(before, group_sizes, 0), axis=1)
""",
        ),
    ],
)
