"""Rung 10: a table chooses the blocks."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## gather_pages: a table chooses the blocks
#
# A server of a language model holds the keys and values of many texts. Texts grow and end at any time,
# so memory is cut into **pages** of a fixed size, and each text has some of them, anywhere. A **page
# table** says which, in order:
#
# ```text
# table = [5, 2, 7]         pages  0   1  [2]  3   4  [5]  6  [7]
#                                          |         |        |
# result  [5] [2] [7]   step 0 takes 5, step 1 takes 2, step 2 takes 7
# ```
#
# An **index map** may read the table. Scalar prefetch puts it into SMEM, and every index map gets its
# ref **last**, after the program ids: `lambda i, table_ref: …`.
#
# So the pipeline can fetch the page of step `i + 1` while step `i` runs: it asks the map what will
# be needed. The kernel does not even look at the table.

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
            # One page a step, without the axis that counts pages: None.
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
from puzzles import Alternative, Mistake, Puzzle, array, rng


def make_inputs(key, P, page, H, table):
    pages = rng(key).normal(size=(P, page, H))
    return array(pages, jnp.float32), array(table, jnp.int32)


def scale(P=4096, page=16, H=128, n=512):
    table = array([(1237 * i) % P for i in range(n)], jnp.int32)
    return jax.ShapeDtypeStruct((P, page, H), jnp.float32), table


_IN = "pl.BlockSpec((None, page, H), lambda i, table_ref: (table_ref[i], 0, 0))"
_OUT = "pl.BlockSpec((None, page, H), lambda i, table_ref: (i, 0, 0))"
_HAND = """
def gather_pages(pages, table):
    (_, page, H), (n,) = pages.shape, table.shape

    def kernel(table_ref, pages_ref, o_ref, sems):
        def send(i):
            return pltpu.make_async_copy(pages_ref.at[table_ref[i]], o_ref.at[i], sems.at[i % 2])

        def step(i, _):
            pl.when(i >= 2)(lambda: send(i - 2).wait())
            send(i).start()

        jax.lax.fori_loop(0, n, step, None)
        for i in range(max(0, n - 2), n):
            send(i).wait()

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA((2,))],
        ),
        out_shape=jax.ShapeDtypeStruct((n, page, H), pages.dtype),
        interpret=INTERPRET,
    )(table, pages)
"""

PUZZLE = Puzzle(
    spec=gather_pages_spec,
    solution=gather_pages,
    inputs=make_inputs,
    cases=[
        dict(P=8, page=16, H=128, table=(5, 2, 2, 7, 2, 1)),
        dict(P=40, page=32, H=256, table=(5, 0, 33, 4, 39, 17)),
    ],
    fresh=lambda r: dict(P=9, page=8, H=128, table=((8, 0, 3, 3), (1, 5, 2, 7), (6, 8, 4, 0), (2, 1, 0, 5))[r.integers(4)]),
    hints=[
        "Step `i` writes page `i` of the result. Which page of `pages` does it read?",
        "An index map gets the program ids first and the refs of scalar prefetch last; a ref is read one "
        "number at a time. It returns block indices, one for each axis of the array.",
        "Two BlockSpecs with blocks of one page, `None` for the axis that is squeezed. In one map the first "
        "index comes out of the table, in the other it is the step.",
    ],
    explain="""In the reference the index map reads the page's number from SMEM, one step ahead of
    the kernel, so scattered pages come as smoothly as neighbours do, page by page. Neighbours in
    one larger block would take fewer steps, and each step has its price.""",
    mistakes=[
        Mistake(
            "takes the pages as they lie",
            old=_IN,
            new=_OUT,
            says="the pages come in the order of memory: the table is not read",
        ),
        Mistake(
            "takes the table's first page at every step",
            old="(table_ref[i], 0, 0)",
            new="(table_ref[0], 0, 0)",
            says="every step takes the page of entry 0: step `i` has entry `i`",
        ),
        Mistake(
            "reads the table backwards",
            old="(table_ref[i], 0, 0)",
            new="(table_ref[n - 1 - i], 0, 0)",
            says="the pages come in reversed order: entry `i` belongs to step `i`",
        ),
        Mistake(
            "takes the page after the one that the table names",
            old="(table_ref[i], 0, 0)",
            new="(jnp.minimum(table_ref[i] + 1, pages.shape[0] - 1), 0, 0)",
            says="each page is the neighbour of the right one: pages are numbered from 0",
        ),
        Mistake(
            "scatters: the table says where a page goes",
            edits=(
                (_OUT, _OUT.replace("(i, 0, 0)", "(jnp.minimum(table_ref[i], n - 1), 0, 0)")),
                (_IN, _IN.replace("table_ref[i]", "i")),
            ),
            says="the table chooses where pages are written; it says where they are read",
        ),
        Mistake(
            "counts rows instead of pages",
            old="(table_ref[i], 0, 0)",
            new="(table_ref[i] * page, 0, 0)",
            says="the map counts rows where it should count pages: a block is a whole page",
        ),
        Mistake(
            "gathers the pages before the kernel",
            edits=(
                (_IN, _IN.replace("table_ref[i]", "i")),
                ("    )(table, pages)", "    )(table, pages[table])"),
            ),
            says="`gather` works on the data outside the kernel",
            stage="pallas",
        ),
        Mistake(
            "takes the table first in its index map",
            old="lambda i, table_ref: (table_ref[i], 0, 0)",
            new="lambda table_ref, i: (table_ref[i], 0, 0)",
            says="In an index map the program ids come first and the Refs of scalar prefetch",
            stage="error",
        ),
        Mistake(
            "keeps the axis of the pages in its blocks",
            edits=((_IN, _IN.replace("None", "1")),),
            says="A 1 in a block shape keeps it, `None` removes",
            stage="error",
        ),
        Mistake(
            "forgets the table in its index map",
            old="lambda i, table_ref: (i, 0, 0)",
            new="lambda i: (i, 0, 0)",
            says="Prefetched Refs come before the kernel's others, and after an index map's program ids",
            stage="error",
        ),
        Mistake(
            "holds all pages in VMEM, and lets the kernel choose",
            edits=(
                (_IN, "pl.BlockSpec(pages.shape, lambda i, table_ref: (0, 0, 0))"),
                ("o_ref[...] = page_ref[...]", "o_ref[...] = page_ref[table_ref[pl.program_id(0)]]"),
            ),
            says="of VMEM, where a kernel gets 16 MiB on v5e unless it asks for more",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative(
            "keeps the axis of the pages on both sides",
            edits=((_IN, _IN.replace("None", "1")), (_OUT, _OUT.replace("None", "1"))),
        ),
        Alternative(
            "gives maps that take any number of arguments",
            edits=(
                (_IN, "pl.BlockSpec((None, page, H), lambda *at: (at[1][at[0]], 0, 0))"),
                (_OUT, "pl.BlockSpec((None, page, H), lambda i, _: (i, 0, 0))"),
            ),
        ),
        Alternative("copies pages from HBM to HBM, two at a time", code=_HAND),
        Alternative(
            "runs a pipeline inside one step",
            code="""
def gather_pages(pages, table):
    (_, page, H), (n,) = pages.shape, table.shape

    def copy(page_ref, o_ref):
        o_ref[...] = page_ref[...]

    def kernel(table_ref, pages_ref, o_ref):
        pltpu.emit_pipeline(
            copy,
            grid=(n,),
            in_specs=[pl.BlockSpec((1, page, H), lambda i: (table_ref[i], 0, 0))],
            out_specs=[pl.BlockSpec((1, page, H), lambda i: (i, 0, 0))],
        )(pages_ref, o_ref)

    return pl.pallas_call(
        kernel,
        in_specs=[
            pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)
        ],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((n, page, H), pages.dtype),
        interpret=INTERPRET,
    )(table, pages)
""",
        ),
    ],
    scale=scale,
)
