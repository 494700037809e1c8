"""Rung 6: write the launch yourself."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## launch_vector_add: write the call yourself, for any shape
#
# Now the launch is yours. Three questions lead to it, here and always:
#
# 1. Which block of the **output** does one step produce? That gives `out_specs`.
# 2. How many such blocks cover each axis? That gives `grid`.
# 3. Which blocks of the **inputs** does this output block need? That gives `in_specs`.
#
# Real arrays are seldom multiples of your blocks. `pl.cdiv(size, block)`, division rounded up,
# counts enough of them, and the last one **hangs over the edge**. There, **reads** give garbage, and
# **writes** are dropped. An elementwise kernel need not mind.
#
# ![The third step of a row of blocks hangs over the right edge of all three arrays.](diagrams/basics/launch_vector_add.svg)
#
# Use blocks of `bm` × `bn`: as one block, a large array would not fit into VMEM.

# %%
def launch_vector_add_spec(x: Float[Array, "M N"], y: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return x + y


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (spoils vector_add)
def launch_vector_add_kernel(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


# %%
def launch_vector_add(x: Float[Array, "M N"], y: Float[Array, "M N"]) -> Float[Array, "M N"]:
    M, N = x.shape
    bm, bn = 64, 256
    return pl.pallas_call(
        launch_vector_add_kernel,
        ### BEGIN SOLUTION
        grid=(pl.cdiv(M, bm), pl.cdiv(N, bn)),
        in_specs=[
            pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
            pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        ### END SOLUTION
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        interpret=INTERPRET,
    )(x, y)


# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, M, N):
    r = rng(key)
    return tuple(array(r.normal(size=(M, N)), jnp.float32) for _ in range(2))


def scale(M=16300, N=16100):
    # So wide and so high that a strip of whole rows or whole columns does not fit into 16 MiB.
    return tuple(jax.ShapeDtypeStruct((M, N), jnp.float32) for _ in range(2))


def fresh(r):
    return dict(M=int(r.choice([40, 200, 300, 520])), N=int(r.choice([900, 1300])))


_GRID = "grid=(pl.cdiv(M, bm), pl.cdiv(N, bn))"
_SPEC = "pl.BlockSpec((bm, bn), lambda i, j: (i, j))"
_OUT = f"out_specs={_SPEC}"
_IN = f"in_specs=[\n            {_SPEC},\n            {_SPEC},\n        ]"


def _with(spec: str, grid: str = _GRID) -> tuple[tuple[str, str], ...]:
    """Edits that put one BlockSpec in all three places."""
    return (
        (_IN, f"in_specs=[{spec}, {spec}]"),
        (_OUT, f"out_specs={spec}"),
        (_GRID, grid),
    )


PUZZLE = Puzzle(
    spec=launch_vector_add_spec,
    solution=launch_vector_add,
    inputs=make_inputs,
    cases=[dict(M=150, N=700), dict(M=128, N=1000)],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # every block is needed once
    par=lambda launch: f"{counted(launch.steps, 'step')}, {launch.hbm_bytes / 2**30:.2f} GiB moved",
    hints=[
        "Start from the output: one step makes one block of bm × bn. How many does it take to cover "
        "each axis, the ragged last one included?",
        "`grid` is a tuple of step counts; a `pl.BlockSpec(block_shape, index_map)` goes with each "
        "array; the index map takes one argument for each grid axis.",
        "The grid has two axes; each is the array's length divided by the block's, rounded up. All "
        "three BlockSpecs are alike: the same block shape, and an index map that returns its two "
        "arguments.",
    ],
    explain="""One step, one output block, and the same block of both inputs. The grid counts blocks,
    so it is the array's shape divided by the block's, rounded up; what hangs over the edge is read
    as garbage, added to garbage, and dropped.""",
    mistakes=[
        Mistake(
            "takes everything in one block",
            edits=_with("pl.BlockSpec((M, N), lambda: (0, 0))", "grid=()"),
            says="all of it as one block: cut it into smaller ones",
            stage="work",
        ),
        Mistake(
            "counts whole blocks only",
            old=_GRID,
            new="grid=(M // bm, N // bn)",
            says="`//` rounds down, so no grid step holds the ragged blocks along the lower and the "
            "right edge; `pl.cdiv` rounds up",
        ),
        Mistake(
            "has a grid one step too long",
            old=_GRID,
            new="grid=(pl.cdiv(M, bm), pl.cdiv(N, bn) + 1)",
            says="out of bounds",
            stage="memory",
        ),
        Mistake(
            "gives the whole arrays to every step",
            edits=_with("pl.BlockSpec((M, N), lambda i, j: (0, 0))"),
            says="all of it as one block: cut it into smaller ones",
            stage="work",
        ),
        Mistake(
            "takes whole rows in one block",
            edits=_with("pl.BlockSpec((bm, N), lambda i: (i, 0))", "grid=(pl.cdiv(M, bm),)"),
            says="for blocks of (64, 16100): take smaller ones",
            stage="work",
        ),
        Mistake(
            "takes whole columns in one block",
            edits=_with("pl.BlockSpec((M, bn), lambda j: (0, j))", "grid=(pl.cdiv(N, bn),)"),
            says="for blocks of (16300, 256): take smaller ones",
            stage="work",
        ),
        Mistake(
            "swaps rows and columns of blocks",
            edits=_with("pl.BlockSpec((bm, bn), lambda i, j: (j, i))"),
            says="this grid counts blocks of rows along `i` and blocks of columns along `j`: return "
            "(i, j), or turn the grid round as well",
        ),
        Mistake(
            "takes the numbers of blocks for the shape of a block",
            edits=_with("pl.BlockSpec((pl.cdiv(M, bm), pl.cdiv(N, bn)), lambda i, j: (i, j))"),
            says="`pl.cdiv` says how many blocks there are, and each is bm by bn: the first belongs in "
            "`grid`, the second in every BlockSpec",
        ),
        Mistake(
            "counts in elements",
            edits=_with("pl.BlockSpec((bm, bn), lambda i, j: (i * bm, j * bn))"),
            says="index maps count in blocks: all steps but the first point outside",
        ),
        Mistake(
            "leaves out the last column of blocks",
            old=_GRID,
            new="grid=(pl.cdiv(M, bm), N // bn)",
            says="no grid step holds them: N is no multiple of bn, and `//` rounds down where "
            "`pl.cdiv` rounds up",
        ),
        Mistake(
            "leaves out the last row of blocks",
            old=_GRID,
            new="grid=(M // bm, pl.cdiv(N, bn))",
            says="no grid step holds them: M is no multiple of bm, and `//` rounds down where "
            "`pl.cdiv` rounds up",
        ),
        Mistake(
            "writes the first row of blocks only",
            edits=_with("pl.BlockSpec((bm, bn), lambda j: (0, j))", "grid=(pl.cdiv(N, bn),)"),
            says="no grid step holds the others; the grid needs an axis that counts blocks of rows, "
            "and one that counts blocks of columns",
        ),
        Mistake(
            "reads one y block for a whole row",
            old=f"            {_SPEC},\n        ],",
            new="            pl.BlockSpec((bm, bn), lambda i, j: (i, 0)),\n        ],",
            says="`y`'s index map ignores `j`",
        ),
        Mistake(
            "pads both arrays in HBM first",
            old=")(x, y)",
            new=")(*(jnp.pad(v, ((0, -M % bm), (0, -N % bn))) for v in (x, y)))",
            says="`pad` in `)(*(jnp.pad(v,",
            stage="work",
        ),
        Mistake(
            "cuts blocks of 64 columns",
            edits=_with(
                "pl.BlockSpec((bm, 64), lambda i, j: (i, j))", "grid=(pl.cdiv(M, bm), pl.cdiv(N, 64))"
            ),
            says="the last breaks that (64 is not)",
            stage="tpu",
        ),
        Mistake(
            "cuts blocks of 4 rows",
            edits=_with(
                "pl.BlockSpec((4, bn), lambda i, j: (i, j))", "grid=(pl.cdiv(M, 4), pl.cdiv(N, bn))"
            ),
            says="the second-last breaks that (4 is not)",
            stage="tpu",
        ),
    ],
    alternatives=[
        Alternative(
            "walks column by column",
            edits=_with(
                "pl.BlockSpec((bm, bn), lambda j, i: (i, j))", "grid=(pl.cdiv(N, bn), pl.cdiv(M, bm))"
            ),
        ),
        Alternative(
            "takes strips of eight whole rows",
            edits=_with("pl.BlockSpec((8, N), lambda i: (i, 0))", "grid=(pl.cdiv(M, 8),)"),
        ),
        Alternative(
            "takes the smallest legal blocks, and counts them without cdiv",
            edits=_with("pl.BlockSpec((8, 512), lambda i, j: (i, j))", "grid=((M + 7) // 8, -(-N // 512))"),
        ),
        Alternative(
            "goes down a flat list of blocks, all specs from one function, under jit",
            code="""
@jax.jit
def launch_vector_add(x, y):
    across = pl.cdiv(x.shape[1], 128)

    def spec(rows=64):
        return pl.BlockSpec(index_map=lambda n: (n // across, n % across), block_shape=(rows, 128))

    return pl.pallas_call(
        kernel=launch_vector_add_kernel,
        grid_spec=pl.GridSpec(
            grid=pl.cdiv(x.shape[0], 64) * across, in_specs=(spec(), spec()), out_specs=spec()
        ),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=INTERPRET,
    )(x, y)
""",
        ),
    ],
)
