"""Puzzle 6: the whole call, with scalar prefetch."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## launch_masked_store: a call with scalar prefetch, by hand
#
# You have filled in parts of a `PrefetchScalarGridSpec`. Now write the whole call. The columns
# are also cut, `bn` = 128 at a time, so the grid has three axes. The kernel below fixes their
# order: it reads its tile and its group from axes 1 and 2.
#
# ```text
# axis 0   blocks of columns
# axis 1   tiles of rows
# axis 2   groups: visits to one output block
#
# Which axes can go in any order, and which one carries something from step to step?
# ```
#
# The parts of such a call:
#
# * `pl.pallas_call` gets the kernel, **`grid_spec`**, `out_shape`, `compiler_params` and `interpret`.
# * `pltpu.PrefetchScalarGridSpec` gets `num_scalar_prefetch`, `grid`, `in_specs` and `out_specs`.
# * An index map gets the program ids, then the Refs of *all* prefetched arrays. `*_` accepts any
#   number of them.
# * The call takes the prefetched arrays first, in the order of the kernel's Refs.
#
# State the `dimension_semantics` as well. Prefetching does not change them.


# %%
def launch_masked_store_spec(
    x: Float[Array, "G M N"], starts: Int[Array, " G"], ends: Int[Array, " G"]
) -> Float[Array, "M N"]:
    m = jnp.arange(x.shape[1])
    meant = (m >= starts[:, None]) & (m < ends[:, None])  # (G, M)
    return jnp.sum(jnp.where(meant[:, :, None], x, 0.0), axis=0)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to masked_store)
def launch_masked_store_kernel(starts_ref, ends_ref, x_ref, o_ref):
    i, g = pl.program_id(1), pl.program_id(2)
    bm = o_ref.shape[0]

    @pl.when(g == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    row = i * bm + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
    mine = (starts_ref[g] <= row) & (row < ends_ref[g])
    o_ref[...] = jnp.where(mine, x_ref[...], o_ref[...])


# %%
def launch_masked_store(
    x: Float[Array, "G M N"], starts: Int[Array, " G"], ends: Int[Array, " G"]
) -> Float[Array, "M N"]:
    G, M, N = x.shape
    bm, bn = 64, 128
    if M % bm or N % bn:
        whole = -(-M // bm) * bm, -(-N // bn) * bn
        raise ValueError(f"blocks of {bm, bn} do not divide M, N = {M, N}: pad to {whole}")
    ### BEGIN SOLUTION
    return pl.pallas_call(
        launch_masked_store_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(N // bn, M // bm, G),
            in_specs=[pl.BlockSpec((None, bm, bn), lambda j, i, g, *_: (g, i, j))],
            out_specs=pl.BlockSpec((bm, bn), lambda j, i, g, *_: (i, j)),
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=INTERPRET,
    )(starts, ends, x)
    ### END SOLUTION


# %% [markdown]
# What does the reference fetch? Every tile of every `x[g]`, though most groups have no row in most
# tiles. Here are 4096 rows, divided evenly among more and more groups. The number of useful blocks
# stays the same; all the others are fetched for nothing. A grid that steps through the list of
# `tile_metadata` has no step for these useless visits, so they cost nothing. `grouped_matmul`
# has such a grid.

# %% active="ipynb"
# print("groups   blocks of x fetched   with rows that count")
# for G in (4, 16, 64):
#     starts = jnp.arange(G) * (4096 // G)
#     x = jax.ShapeDtypeStruct((G, 4096, 256), jnp.float32)
#     (launch,) = trace(find("launch_masked_store").solution, x, starts, starts + 4096 // G)
#     print(f"{G:6}{launch.inputs[0].transfers:22}{(4096 // 64) * (256 // 128):23}")

# %% tags=["author"]
from puzzles import Launch, Puzzle
from puzzles.grouped_matmul import masked_store


def make_inputs(key, **dims):
    return masked_store.make_inputs(key, **dims)


def scale(G=160, M=960, N=20_480):
    return masked_store.scale(G, M, N)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(G=4, M=192, N=256)
    shapes = ((9, 64, 1152), (8, 128, 640), (11, 64, 1024), (2, 576, 512), (8, 192, 512))
    return dict(zip("GMN", shapes[r.integers(len(shapes))], strict=True))


def audit(launch: Launch) -> None:
    words = launch.dimension_semantics
    assert words is not None, (
        "the launch promises nothing about its axes: pass "
        "compiler_params=pltpu.CompilerParams(dimension_semantics=...)"
    )
    assert words == ("parallel", "parallel", "arbitrary"), (
        f"dimension_semantics is {words}: output blocks do not depend on each other, so axes 0 "
        "and 1 can be shared out among cores; the visits to one block, axis 2, have to stay in "
        "order"
    )


PUZZLE = Puzzle(
    spec=launch_masked_store_spec,
    solution=launch_masked_store,
    inputs=make_inputs,
    cases=[
        dict(G=4, M=192, N=256, ranges=((4, 63), (63, 63), (63, 129), (129, 170))),
        dict(G=144, M=64, N=256),
    ],
    hints=[
        "Begin with the kernel's parameters: which of its Refs are prefetched, which are "
        "blocks? Then the grid, in the order in which the kernel reads its program ids.",
        "`pl.pallas_call(kernel, grid_spec=..., out_shape=..., compiler_params=..., "
        "interpret=...)` is a function of the arrays. The grid spec takes num_scalar_prefetch, "
        "grid, in_specs, out_specs.",
        "Two arrays are prefetched. x has one spec: a squeezed group, then rows and columns, "
        "and its map returns the group first. The output's map ignores the group. Columns, "
        "tiles, groups: two axes are parallel.",
    ],
    explain="""Prefetched arrays come first among the arrays and first among the kernel's Refs,
    and last among the parameters of an index map. The rest is the call that you know: the group
    axis is innermost and in order, since it carries the output block from visit to visit.""",
    audit=audit,
    scale=scale,
    par=masked_store.par,
    fresh=fresh,
)
