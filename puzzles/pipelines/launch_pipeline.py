"""Rung 8: a copy that starts as soon as its slot is free."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## launch_pipeline: as soon as the slot is free
#
# `emit_pipeline` starts a copy **one step** before its block is used. For a large block that stays,
# that is late. Here `b` comes in strips of all its rows, and each meets every block of `a`:
#
# ```text
# step (j, i)         0,0   0,1   0,2   0,3   1,0   1,1   1,2   1,3
# slot 0            [ strip 0 is used       ]
# slot 1                                    [ strip 1 is used       ]
# emit_pipeline                       [ 1 > ]                 [ 2 > ]
# your copies       [ 1 >                   ][ 2 >                  ]
# ```
#
# The other slot is free from the strip's first step on. A copy that starts there has a column of
# steps to arrive: with two slots as before, and not a byte more.
#
# So the body copies `b`'s strips itself; the pipeline brings `a` and takes the result. Write what
# happens at a strip's first step, then the prologue and the pipeline: strips are its outer axis,
# blocks of `a` the inner one.

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

    # Start strip 0, emit a pipeline of `multiply`, and run it on what it brings and takes.
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
# On v5e a strip in bf16 takes as long to come as a product of 240 rows with it, however large it is. A
# step has 64.
#
# `emit_pipeline` can start early, too: give a spec `pipeline_mode=pl.Buffered(2, use_lookahead=True)`.
# A third slot, `pl.Buffered(3)`, only gives a copy one step more, for the VMEM of a block.

# %% active="ipynb"
# show(launch_pipeline)

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.pipelines._audits import in_hbm, multiplied_once, overlapped


def make_inputs(key, M, K, N):
    r = rng(key)
    a, b = r.normal(size=(M, K)), r.normal(size=(K, N))
    return array(a, jnp.float32), array(b, jnp.float32)


def audit(launch: Launch) -> None:
    in_hbm(launch, blocks=True)
    multiplied_once(launch)
    b = launch.inputs[1]
    assert b.portion != b.shape, (
        f"all of `{b.name}` comes at once, and nothing runs before it is there: bring it in strips of 128 columns"
    )
    times = b.hbm_bytes / (b.shape[0] * b.shape[1] * jnp.dtype(b.dtype).itemsize)
    assert times <= 1, (
        f"`{b.name}` is copied {times:.3g} times: bring a strip where its number changes, and nowhere else"
    )
    its = (launch.waits or {}).get(b.name)  # None where data decide what is copied
    overlapped(launch, first=max(launch.steps, its.count if its else 1))
    could = 1 - 1 / its.count if its else 0  # nothing runs yet when the first strip comes
    assert not its or its.hidden >= 0.6 * could, (
        f"{its.hidden:.0%} of the work runs between starts of `{b.name}`'s copies and the waits for them, "
        f"and {could:.0%} could: start a strip at the first step of the one before it, when its slot is free"
    )


def scale(M=256, K=512, N=1024):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


def par(launch: Launch) -> str:
    its = (launch.waits or {}).get(launch.inputs[1].name)
    return f"{its.hidden:.0%} of the work runs while strips of b come" if its else ""


_NEXT = """            @pl.when(j + 1 < n)
            def _():
                fetch(j + 1).start()

"""
_WAIT = "            fetch(j).wait()\n"
_STEP = "        @pl.when(i == 0)\n        def _():\n" + _NEXT + _WAIT
_FIRST = "    fetch(0).start()\n"
_GRID = "        grid=(n, M // bm),\n"
_A = "pl.BlockSpec((bm, K), lambda j, i: (i, 0))"
_O = "pl.BlockSpec((bm, bn), lambda j, i: (i, j))"
_PIPELINE = f"""    pltpu.emit_pipeline(
        multiply,
{_GRID}        in_specs=[{_A}],
        out_specs=[{_O}],
    )(a_ref, o_ref)
"""
_DOT = "        o_block[...] = jnp.dot(a_block[...], strip, preferred_element_type=jnp.float32)\n"
_HAND = "        strip = strips[jax.lax.rem(j, 2)]\n"
_LATE = """        @pl.when((i == M // bm - 1) & (j + 1 < n))
        def _():
            fetch(j + 1).start()

"""


def _all_by_the_pipeline(mode: str) -> str:
    return f"""
def launch_pipeline_kernel(a_ref, b_ref, o_ref):
    (M, K), N, bm, bn = a_ref.shape, b_ref.shape[1], 64, 128

    def multiply(a_block, strip, o_block):
        o_block[...] = jnp.dot(a_block[...], strip[...], preferred_element_type=jnp.float32)

    pltpu.emit_pipeline(
        multiply,
        grid=(N // bn, M // bm),
        in_specs=[
            {_A},
            pl.BlockSpec((K, bn), lambda j, i: (0, j){mode}),
        ],
        out_specs=[{_O}],
    )(a_ref, b_ref, o_ref)


def launch_pipeline(a, b):
    (M, K), N = a.shape, b.shape[1]
    return pl.pallas_call(
        launch_pipeline_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        interpret=INTERPRET,
    )(a, b)
"""


PUZZLE = Puzzle(
    spec=launch_pipeline_spec,
    solution=launch_pipeline,
    inputs=make_inputs,
    cases=[dict(M=256, K=384, N=640), dict(M=192, K=256, N=256)],
    fresh=lambda r: dict(M=256, K=384, N=640) if r.integers(4) else dict(M=192, K=128 * int(r.choice([1, 2, 4])), N=256),
    hints=[
        "At which step has strip j - 1 been used for the last time? Who needs strip j + 1, and when?",
        "`@pl.when` guards a strip's first step, `i` 0; a second guard inside it keeps the last strip from "
        "starting one more. `emit_pipeline` is given specs, and then refs, of two operands only.",
        "In the body, under the guard: start j + 1 if it exists, then wait for j. Below: start strip 0; a grid "
        "of two axes, strips first; a's block is (i, 0), all of K, and the result's is (i, j).",
    ],
    explain="""A slot is free from the moment its last block has been used. A copy that starts then
    has as long to arrive as its slots allow, and costs neither a byte nor a slot more. `emit_pipeline`
    waits until one step before, unless it is told to look ahead.""",
    mistakes=[
        Mistake(
            "starts the next strip in the last step of this one",
            edits=((_NEXT, ""), (_HAND, _LATE + _HAND)),
            says="20% of the work runs between starts of `b_ref`'s copies and the waits for them, and 80% could",
            stage="work",
        ),
        Mistake(
            "gives all three operands to the pipeline",
            code=_all_by_the_pipeline(""),
            says="start a strip at the first step of the one before it, when its slot is free",
            stage="work",
        ),
        Mistake(
            "gives all three operands to the pipeline, and b a third slot",
            code=_all_by_the_pipeline(", pipeline_mode=pl.Buffered(3)"),
            says="40% of the work runs between",
            stage="work",
        ),
        Mistake(
            "brings all of b at once",
            code="""
def launch_pipeline(a, b):
    (M, K), N = a.shape, b.shape[1]

    def kernel(a_ref, b_ref, o_ref, b_all):
        pltpu.sync_copy(b_ref, b_all)

        def multiply(a_block, o_block):
            o_block[...] = jnp.dot(a_block[...], b_all[...], preferred_element_type=jnp.float32)

        pltpu.emit_pipeline(
            multiply,
            grid=(M // 64,),
            in_specs=[pl.BlockSpec((64, K), lambda i: (i, 0))],
            out_specs=[pl.BlockSpec((64, N), lambda i: (i, 0))],
        )(a_ref, o_ref)

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM(b.shape, b.dtype)],
        interpret=INTERPRET,
    )(a, b)
""",
            says="all of `b_ref` comes at once",
            stage="work",
        ),
        Mistake(
            "starts each strip when it is needed",
            edits=((_FIRST, ""), (_NEXT, "            fetch(j).start()\n")),
            says="0% of the work runs between",
            stage="work",
        ),
        Mistake(
            "fetches its strip anew at each step",
            old=_STEP,
            new="        fetch(j).start()\n        fetch(j).wait()\n",
            edits=((_FIRST, ""),),
            says="`b_ref` is copied 4 times: bring a strip where its number changes",
            stage="work",
        ),
        Mistake(
            "starts and waits at every step",
            old=_STEP,
            new="        @pl.when(j + 1 < n)\n        def _():\n            fetch(j + 1).start()\n\n        fetch(j).wait()\n",
            says="has not been waited for: on a TPU it may land on top of what is written now",
            stage="memory",
        ),
        Mistake(
            "waits at every step",
            old=_WAIT,
            new="",
            edits=((_HAND, "        fetch(j).wait()\n" + _HAND),),
            says="waits for a copy that is not on its way, in `fetch(j).wait()`",
            stage="memory",
        ),
        Mistake(
            "forgets the prologue",
            old=_FIRST,
            new="",
            says="nobody starts strip 0: the first strip is what lay in its slot (NaN here)",
        ),
        Mistake(
            "starts strip 0 at the first step of each strip",
            old=_FIRST,
            new="",
            edits=((_NEXT, "            fetch(0).start()\n\n" + _NEXT),),
            says="strip 0 comes again and again, on top of the one that is used: the prologue runs once, before "
            "the pipeline",
        ),
        Mistake(
            "starts a strip more than there are",
            old=_NEXT,
            new="            fetch(j + 1).start()\n",
            says="reaches outside `b_ref`, which has shape (384, 640): `b_ref[0:384, 640:768]`",
            stage="memory",
        ),
        Mistake(
            "waits for the next strip",
            old=_WAIT,
            new=_NEXT.replace(".start()", ".wait()").rstrip("\n") + "\n",
            says="The last wait was for a copy into `strips[1]`",
            stage="memory",
        ),
        Mistake(
            "never waits",
            old=_WAIT,
            new="",
            says="`strip = strips[jax.lax.rem(j, 2)]` reads `strips[0]`",
            stage="memory",
        ),
        Mistake(
            "waits at the last step of each strip",
            old=_WAIT,
            new="",
            edits=((_DOT, _DOT + "\n        @pl.when(i == M // bm - 1)\n        def _():\n            fetch(j).wait()\n"),),
            says="On a TPU the old numbers may still be there",
            stage="memory",
        ),
        Mistake(
            "is two strips ahead, with two slots",
            edits=(
                (_FIRST, _FIRST + "    if n > 1:\n        fetch(1).start()\n"),
                (_NEXT, _NEXT.replace("j + 1", "j + 2")),
            ),
            says="strip j + 2 comes into the slot of strip j, which is about to be used: with two slots, the "
            "next strip is j + 1",
        ),
        Mistake(
            "takes slots in turn by step",
            old="strips[jax.lax.rem(j, 2)]",
            new="strips[jax.lax.rem(i, 2)]",
            says="the slot changes with the step, and should with the strip: strip j is in slot j % 2",
        ),
        Mistake(
            "has strips as the inner axis of its grid, and not of its maps",
            old=_GRID,
            new="        grid=(M // bm, n),\n",
            says="the grid counts blocks of rows first, and `j`, the first number of the maps and the body, "
            "counts strips: strips come first",
        ),
        Mistake(
            "takes a's first block at every step",
            old="lambda j, i: (i, 0)",
            new="lambda j, i: (0, 0)",
            says="every block of rows is the first: a's rows go with i",
        ),
        Mistake(
            "gives a's rows to j",
            old="lambda j, i: (i, 0)",
            new="lambda j, i: (j, 0)",
            says="j counts strips of b, and a's block of rows is i",
        ),
        Mistake(
            "writes each block of the result to its mirror place",
            old="lambda j, i: (i, j)",
            new="lambda j, i: (j, i)",
            says="blocks of the result lie in other places: rows go with i, columns with j, so its block is (i, j)",
        ),
        Mistake(
            "leaves out the last strip",
            old=_GRID,
            new="        grid=(n - 1, M // bm),\n",
            says="the last strip's columns were never written (NaN there): the grid has n strips",
        ),
        Mistake(
            "runs the pipeline on b, too",
            old=")(a_ref, o_ref)",
            new=")(a_ref, b_ref, o_ref)",
            says="A pipeline has a spec for each of its Refs",
            stage="error",
        ),
        Mistake(
            "emits the pipeline and never runs it",
            old="    )(a_ref, o_ref)",
            new="    )",
            says="nothing was written (NaN here): `emit_pipeline` only returns a function; call it with the refs",
        ),
        Mistake(
            "turns the overlap of copies and work off",
            old="    )(a_ref, o_ref)",
            new="        no_pipelining=True,\n    )(a_ref, o_ref)",
            says="at 20 of 20 waits for a copy from `a_ref`, the kernel has computed nothing since that copy started",
            stage="work",
        ),
        Mistake(
            "writes all strips to the first columns",
            old="lambda j, i: (i, j)",
            new="lambda j, i: (i, 0)",
            says="strip j of the result lies in columns j * bn: its block is (i, j)",
        ),
        Mistake(
            "names i before j in its maps",
            edits=(
                ("lambda j, i: (i, 0)", "lambda i, j: (i, 0)"),
                ("lambda j, i: (i, j)", "lambda i, j: (i, j)"),
            ),
            says="a map's arguments stand in the order of the grid, and this one has strips outside, j "
            "first",
        ),
    ],
    alternatives=[
        Alternative("waits before it starts the next strip", old=_NEXT + _WAIT, new=_WAIT + "\n" + _NEXT.rstrip("\n") + "\n"),
        Alternative(
            "lets the pipeline look ahead",
            code=_all_by_the_pipeline(", pipeline_mode=pl.Buffered(2, use_lookahead=True)"),
        ),
        Alternative("takes blocks of 32 rows", old="64, 128\n    n", new="32, 128\n    n"),
        Alternative(
            "has a prologue in the body",
            old=_FIRST,
            new="",
            edits=((_NEXT, "            pl.when(j == 0)(fetch(0).start)\n\n" + _NEXT),),
        ),
        Alternative(
            "starts the next strip once this one has been used",
            edits=((_NEXT, ""), (_DOT, _DOT + "\n        @pl.when((i == 0) & (j + 1 < n))\n        def _():\n            fetch(j + 1).start()\n")),
        ),
        Alternative(
            "runs a pipeline for each strip, in a loop",
            old=_PIPELINE,
            new="""
    def strip_by_strip(j, _):
        pl.when(j + 1 < n)(lambda: fetch(j + 1).start())
        fetch(j).wait()

        def multiply(a_block, o_block):
            strip = strips[j % 2]
            o_block[...] = jnp.dot(a_block[...], strip, preferred_element_type=jnp.float32)

        pltpu.emit_pipeline(
            multiply,
            grid=(M // bm,),
            in_specs=[pl.BlockSpec((bm, K), lambda i: (i, 0))],
            out_specs=[pl.BlockSpec((bm, bn), lambda i: (i, 0))],
        )(a_ref, o_ref.at[:, pl.ds(j * bn, bn)])

    jax.lax.fori_loop(0, n, strip_by_strip, None)
""",
        ),
        Alternative(
            "leaves a and the result to pallas_call",
            code="""
def launch_pipeline(a, b):
    (M, K), N = a.shape, b.shape[1]
    bm, bn = 64, 128

    def kernel(a_ref, b_ref, o_ref, strips, sems):
        j, i = pl.program_id(0), pl.program_id(1)

        def fetch(j):
            strip = b_ref.at[:, pl.ds(j * bn, bn)]
            return pltpu.make_async_copy(strip, strips.at[j % 2], sems.at[j % 2])

        @pl.when(i == 0)
        def _():
            pl.when(j == 0)(lambda: fetch(0).start())
            pl.when(j + 1 < N // bn)(lambda: fetch(j + 1).start())
            fetch(j).wait()

        o_ref[...] = jnp.dot(a_ref[...], strips[j % 2], preferred_element_type=jnp.float32)

    return pl.pallas_call(
        kernel,
        grid=(N // bn, M // bm),
        in_specs=[
            pl.BlockSpec((bm, K), lambda j, i: (i, 0)),
            pl.BlockSpec(memory_space=pl.ANY),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda j, i: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[pltpu.VMEM((2, K, bn), b.dtype), pltpu.SemaphoreType.DMA((2,))],
        interpret=INTERPRET,
    )(a, b)
""",
        ),
    ],
    audit=audit,
    scale=scale,
    par=par,
)
