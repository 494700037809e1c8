"""Puzzle 8: a copy that starts as soon as its slot is free."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## launch_pipeline: as soon as the slot is free
#
# `emit_pipeline` starts a copy **one step** before its block is used. For a large block that is
# used for many steps, one step ahead is too late. Here `b` is cut into strips of columns, and each
# strip is multiplied by every block of `a`:
#
# ```text
# step (j, i)         0,0   0,1   0,2   0,3   1,0   1,1   1,2   1,3
# slot 0            [ strip 0 is used       ]
# slot 1                                    [ strip 1 is used       ]
# emit_pipeline                       [ 1 > ]                 [ 2 > ]
# your copies       [ 1 >                   ][ 2 >                  ]
# ```
#
# The other slot is free from the first step of the current strip on. A copy that starts then may
# take as long as all steps of this strip. It costs no third slot and no extra bytes.
#
# So the body copies `b`'s strips itself; the pipeline fetches `a` and writes back the result. Write
# what happens at a strip's first step, then the prologue and the pipeline: strips are its outer
# axis, blocks of `a` the inner one.


# %%
def launch_pipeline_spec(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return jnp.dot(a, b)


# %%
def launch_pipeline_kernel(a_ref, b_ref, o_ref, strips, sems):
    (M, K), bm, bn = a_ref.shape, 64, 128
    n = b_ref.shape[1] // bn

    def fetch(j):
        strip, slot = b_ref.at[:, pl.ds(j * bn, bn)], jax.lax.rem(j, 2)
        return pltpu.make_async_copy(strip, strips.at[slot], sems.at[slot])

    def multiply(a_block, o_block):
        j, i = pl.program_id(0), pl.program_id(1)

        # At the first step of strip j: start the next one, if there is one, and wait for this one.
        ### BEGIN SOLUTION
        @pl.when(i == 0)
        def _():
            @pl.when(j + 1 < n)
            def _():
                fetch(j + 1).start()

            fetch(j).wait()

        ### END SOLUTION
        strip = strips[jax.lax.rem(j, 2)]
        o_block[...] = jnp.dot(a_block[...], strip, preferred_element_type=jnp.float32)

    # Start strip 0, emit a pipeline of `multiply`, and run it on the refs that it copies.
    ### BEGIN SOLUTION
    fetch(0).start()
    pltpu.emit_pipeline(
        multiply,
        grid=(n, M // bm),
        in_specs=[pl.BlockSpec((bm, K), lambda j, i: (i, 0))],
        out_specs=[pl.BlockSpec((bm, bn), lambda j, i: (i, j))],
    )(a_ref, o_ref)
    ### END SOLUTION


def launch_pipeline(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    (M, K), N = a.shape, b.shape[1]
    return pl.pallas_call(
        launch_pipeline_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((2, K, 128), b.dtype), pltpu.SemaphoreType.DMA((2,))],
        interpret=INTERPRET,
    )(a, b)


# %% [markdown]
# On v5e, copying a bf16 strip takes as long as multiplying 240 rows with it, however large the
# strip is. A step multiplies only 64 rows: one step hides only about a quarter of the copy.
#
# `emit_pipeline` can also start early: give a spec `pipeline_mode=pl.Buffered(2,
# use_lookahead=True)`. A third slot, `pl.Buffered(3)`, costs the VMEM of another block, and starts
# a copy only one step earlier.

# %% active="ipynb"
# show(launch_pipeline)

# %% tags=["author"]
from puzzles import Launch, Puzzle
from puzzles.pipelines._audits import in_hbm, multiplied_once, overlapped
from puzzles.pipelines.double_buffered_matmul import make_inputs


def audit(launch: Launch) -> None:
    in_hbm(launch, blocks=True)
    multiplied_once(launch)
    b = launch.inputs[1]
    assert b.portion != b.shape, (
        f"all of `{b.name}` comes at once, and nothing runs before it has arrived: copy it in "
        "strips of 128 columns"
    )
    times = b.hbm_bytes / (b.shape[0] * b.shape[1] * jnp.dtype(b.dtype).itemsize)
    assert times <= 1, (
        f"`{b.name}` is copied {times:.3g} times: copy a strip only when its number changes"
    )
    its = (launch.waits or {}).get(b.name)  # None where data decide what is copied
    overlapped(launch, first=max(launch.steps, its.count if its else 1))
    could = 1 - 1 / its.count if its else 0  # nothing runs yet when the first strip comes
    assert not its or its.hidden >= 0.6 * could, (
        f"{its.hidden:.0%} of the work runs between a start of `{b.name}`'s copies and the "
        f"wait for it, but {could:.0%} could: start a strip at the first step of the strip "
        "before it, when its slot is free, and wait for it only at its own first step"
    )


def scale(M=256, K=512, N=1024):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


def par(launch: Launch) -> str:
    its = (launch.waits or {}).get(launch.inputs[1].name)
    return f"{its.hidden:.0%} of the work runs while strips of b come" if its else ""


PUZZLE = Puzzle(
    spec=launch_pipeline_spec,
    solution=launch_pipeline,
    inputs=make_inputs,
    cases=[dict(M=256, K=384, N=640), dict(M=192, K=256, N=256)],
    fresh=lambda r: (
        dict(M=256, K=384, N=640)
        if r.integers(4)
        else dict(M=192, K=128 * int(r.choice([1, 2, 4])), N=256)
    ),
    hints=[
        "Which step uses strip j - 1 for the last time? Which step is the first to need strip j + "
        "1?",
        "`@pl.when` guards a strip's first step, when `i` is 0; a second guard inside it keeps the "
        "last strip from starting another copy. `emit_pipeline` is given specs, and then refs, of "
        "two operands only.",
        "In the body, under the guard: start j + 1 if it exists, then wait for j. Below: start "
        "strip 0; a grid of two axes, strips first; a's block is (i, 0), all of K, and the "
        "result's is (i, j).",
    ],
    explain="""A slot is free from the moment its last block has been used. A copy that starts then
    has as long to arrive as its slots allow, and costs neither a byte nor a slot more. `emit_pipeline`
    waits until one step before, unless it is told to look ahead.""",
    audit=audit,
    scale=scale,
    par=par,
)
