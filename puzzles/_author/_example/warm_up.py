"""Scale a matrix, block by block."""

# ✎ Say in the line above what this puzzle teaches.
#   Import only names here that the setup cell imports (puzzles/_author/setup.txt); import
#   anything else in a cell below.
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# ✎ Write the theory: a heading with the puzzle's name and a promise, then the reason before the code.
#   Teach one new idea; explain every word of the API before you use it; read it aloud. Draw what
#   moves through space: a ```text drawing, or an image from diagrams/<ladder>/ with alt text.
# %% [markdown]
# ## warm_up: twice a matrix
#
# A kernel sees one block at a time. The grid walks over all of them:
#
# ```text
#            128 columns  128 columns
# 8 rows    [ step (0,0) | step (0,1) ]
# 8 rows    [ step (1,0) | step (1,1) ]
# ```
#
# `x_ref` is the block that this step was given, `o_ref` the block of the result at the same place.
# Fill the one with twice the other.


# %%
# ✎ Write the spec: the obvious lines of jax.numpy, with which every answer is compared.
def warm_up_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return 2 * x


# %%
# ✎ Write the reference solution; the learner writes the lines between the marks: whole statements,
#   list elements, or keyword arguments. A TPU accepts blocks whose last two dimensions are
#   multiples of (8, 128), or the whole axis.
def warm_up_kernel(x_ref, o_ref):
    ### BEGIN SOLUTION
    o_ref[...] = x_ref[...] * 2
    ### END SOLUTION


def warm_up(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    M, N = x.shape
    bm, bn = 8, 128
    return pl.pallas_call(
        warm_up_kernel,
        grid=(M // bm, N // bn),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        interpret=INTERPRET,
    )(x)


# The author cell. Learners never see it. Puzzle's docstring in puzzles/_puzzle.py explains each
# field. Known mistakes and other right answers are in the TOML file next to this one.
# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng


# ✎ Draw the data of a case, equal for equal keys: signed, and large if large values could fail.
def make_inputs(key, M, N):
    return (array(rng(key).normal(0, 3, (M, N)), jnp.float32),)


# ✎ Give the arguments at a production shape, without data: an answer must not cost more there than
#   your solution does.
def scale(M=8192, N=8192):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


# ✎ Assert only what the costs at scale do not show, with the number, the budget and the reason;
#   most puzzles need no audit: then delete it.
def audit(launch: Launch) -> None:
    assert launch.steps > 1, (
        f"the grid has {launch.steps} step: cut the matrix into blocks, since a large one does not "
        "fit into VMEM"
    )


PUZZLE = Puzzle(
    spec=warm_up_spec,
    solution=warm_up,
    inputs=make_inputs,
    # ✎ Choose cases that a lucky guess fails: unequal dims, several blocks on every axis, ragged
    #   edges or empty groups if the puzzle allows them.
    cases=[dict(M=16, N=384), dict(M=24, N=256)],
    # ✎ Write three hints: the idea, the API, the shape of the code. Never the code itself.
    hints=[
        "Every element of the block is treated alike, so the block can be treated as one value.",
        "Reading a Ref with `[...]` gives an array; assigning to `[...]` fills a Ref.",
        "One line: the output Ref on the left, the input Ref in a product on the right.",
    ],
    # ✎ Explain why the solution works; every pass shows the first sentence.
    explain="""A kernel for one block is a kernel for the whole array: the grid does the rest.""",
    audit=audit,
    scale=scale,
)
