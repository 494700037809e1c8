"""Puzzle 10: a table chooses the blocks."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## gather_pages: a table chooses the blocks
#
# A server of a language model holds the keys and values of many sequences. Sequences grow and end
# at any time, so memory is cut into **pages** of a fixed size, and the pages of a sequence may be
# anywhere. Its **page table** lists them in order:
#
# ```text
# table = [5, 2, 7]         pages  0   1  [2]  3   4  [5]  6  [7]
#                                          |           |       |
# result  [5] [2] [7]                    step 1      step 0  step 2
# ```
#
# An **index map** may read the table. Scalar prefetch puts it into SMEM, and every index map gets
# its ref **last**, after the program ids: `lambda i, table_ref: …`.
#
# So the pipeline can fetch the page of step `i + 1` while step `i` runs: it evaluates the map one
# step ahead. The kernel does not even look at the table.


# %%
def gather_pages_spec(
    pages: Float[Array, "P page H"], table: Int[Array, " n"]
) -> Float[Array, "n page H"]:
    return pages[table]


# %%
def gather_pages_kernel(table_ref, page_ref, o_ref):
    o_ref[...] = page_ref[...]


def gather_pages(
    pages: Float[Array, "P page H"], table: Int[Array, " n"]
) -> Float[Array, "n page H"]:
    (_, page, H), (n,) = pages.shape, table.shape
    return pl.pallas_call(
        gather_pages_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(n,),
            # One page a step. `None` squeezes the axis that counts pages.
            ### BEGIN SOLUTION
            in_specs=[pl.BlockSpec((None, page, H), lambda i, table_ref: (table_ref[i], 0, 0))],
            out_specs=pl.BlockSpec((None, page, H), lambda i, table_ref: (i, 0, 0)),
            ### END SOLUTION
        ),
        out_shape=jax.ShapeDtypeStruct((n, page, H), pages.dtype),
        interpret=INTERPRET,
    )(table, pages)


# %% [markdown]
# Watch which page each step takes.

# %% active="ipynb"
# show(gather_pages)

# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.pipelines._audits import in_two_slots


def make_inputs(key, P, page, H, table):
    pages = rng(key).normal(size=(P, page, H))
    return array(pages, jnp.float32), array(table, jnp.int32)


def scale(P=4096, page=16, H=128, n=512):
    table = array([(1237 * i) % P for i in range(n)], jnp.int32)
    return jax.ShapeDtypeStruct((P, page, H), jnp.float32), table


PUZZLE = Puzzle(
    spec=gather_pages_spec,
    solution=gather_pages,
    inputs=make_inputs,
    cases=[
        dict(P=8, page=16, H=128, table=(5, 2, 2, 7, 2, 1)),
        dict(
            P=40,
            page=32,
            H=256,
            table=(5, 0, 33, 4, 39, 17, 8, 21, 2, 30, 11, 36, 1, 25, 14, 7, 28),
        ),
    ],
    fresh=lambda r: dict(
        P=9,
        page=8,
        H=128,
        table=((8, 0, 3, 3), (1, 5, 2, 7), (6, 8, 4, 0), (2, 1, 0, 5))[r.integers(4)],
    ),
    hints=[
        "Step `i` writes page `i` of the result. Which page of `pages` does it read?",
        "An index map gets the program ids first and the refs of scalar prefetch last; a ref "
        "is read one number at a time. It returns block indices, one for each axis of the "
        "array.",
        "Two BlockSpecs with blocks of one page, `None` for the axis that is squeezed. In one "
        "map the first index comes out of the table, in the other it is the step.",
    ],
    explain="""In the reference the index map reads the page's number from SMEM, one step ahead of
    the kernel, so scattered pages arrive as fast as neighbouring pages, one page a step.
    Neighbouring pages could share a larger block, which would take fewer steps.""",
    scale=scale,
    audit=in_two_slots,
)
