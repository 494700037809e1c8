"""Rung 5: a matmul whose tiles are fetched by hand."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## double_buffered_matmul: two copies a round
#
# Now the same for `a @ b`. The grid walks over blocks of the output; the sum over `K` is a loop in the
# kernel, and you fetch its tiles:
#
# ```text
#                    slot 0             slot 1             slot 0
# a[i, k]  (i fixed) [ k = 0 ]          [ k = 1 ]          [ k = 2 ]
# b[k, j]  (j fixed) [ k = 0 ]          [ k = 1 ]          [ k = 2 ]
#                        \_ o += a b        \_ o += a b        \_ o += a b
# ```
#
# A round needs a tile of `a` and a tile of `b`, and both copies fly side by side. `sems` has (2, 2)
# semaphores: one for each operand and slot. (One for each slot would do: a wait takes as many bytes as
# its copy has, and both waits come before the dot.)
#
# `fetch(k, slot)` gives both descriptions as a pair. The `for` over the pair is Python's: it writes two
# statements into the kernel.
#
# Here every grid step needs its own prologue.

# %%
def double_buffered_matmul_spec(
    a: Float[Array, "M K"], b: Float[Array, "K N"]
) -> Float[Array, "M N"]:
    return jnp.dot(a, b)


# %%
def double_buffered_matmul_kernel(a_ref, b_ref, o_ref, a_slots, b_slots, sems):
    i, j = pl.program_id(0), pl.program_id(1)
    n = a_ref.shape[1] // 128

    def fetch(k, slot):
        # The copies of a's tile (i, k) and of b's tile (k, j) into their slots.
        ### BEGIN SOLUTION
        a_tile = a_ref.at[pl.ds(i * 128, 128), pl.ds(k * 128, 128)]
        b_tile = b_ref.at[pl.ds(k * 128, 128), pl.ds(j * 128, 128)]
        a_copy = pltpu.make_async_copy(a_tile, a_slots.at[slot], sems.at[0, slot])
        b_copy = pltpu.make_async_copy(b_tile, b_slots.at[slot], sems.at[1, slot])
        return a_copy, b_copy
        ### END SOLUTION

    for copy in fetch(0, 0):
        copy.start()
    o_ref[...] = jnp.zeros_like(o_ref)

    def step(k, _):
        slot = jax.lax.rem(k, 2)

        @pl.when(k + 1 < n)
        def _():
            for copy in fetch(k + 1, 1 - slot):
                copy.start()

        # Wait for both tiles, and add their product to o_ref.
        ### BEGIN SOLUTION
        for copy in fetch(k, slot):
            copy.wait()
        o_ref[...] += jnp.dot(a_slots[slot], b_slots[slot], preferred_element_type=jnp.float32)
        ### END SOLUTION

    jax.lax.fori_loop(0, n, step, None)


def double_buffered_matmul(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    M, N = a.shape[0], b.shape[1]
    two_slots = pltpu.VMEM((2, 128, 128), jnp.float32)
    return pl.pallas_call(
        double_buffered_matmul_kernel,
        grid=(M // 128, N // 128),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[two_slots, two_slots, pltpu.SemaphoreType.DMA((2, 2))],
        interpret=INTERPRET,
    )(a, b)


# %% [markdown]
# The reference moves as many bytes as `tiled_matmul` with such blocks: a pipeline hides the time of
# copies, not their bytes.

# %% active="ipynb"
# receipt(double_buffered_matmul, jnp.ones((1024, 2048)), jnp.ones((2048, 1024)))

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.pipelines._audits import multiplied_once, overlapped


def make_inputs(key, M, K, N):
    r = rng(key)
    a, b = r.normal(size=(M, K)), r.normal(size=(K, N))
    return array(a, jnp.float32), array(b, jnp.float32)


def audit(launch: Launch) -> None:
    multiplied_once(launch)
    (a, b), (o,) = launch.inputs, launch.outputs
    for one, along in ((a, o.shape[1]), (b, o.shape[0])):
        times, enough = one.hbm_bytes / (4 * one.shape[0] * one.shape[1]), max(1, along // 128)
        assert times <= enough, (
            f"`{one.name}` is copied {times:.3g} times, where {enough} {'is' if enough == 1 else 'are'} "
            "enough: bring each tile once for each block of the result"
        )
    overlapped(launch, first=launch.outputs[0].transfers)
    waits = (launch.waits or {}).values()
    assert a.shape[1] <= 128 or not waits or any(its.exposed < its.count for its in waits), (
        "no copy comes while the kernel computes: fetch tiles along K, and start the next ones before "
        "the dot of these"
    )


def scale(M=1024, K=2048, N=1024):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


_WAIT = """        for copy in fetch(k, slot):
            copy.wait()
"""
_NEXT = """        @pl.when(k + 1 < n)
        def _():
            for copy in fetch(k + 1, 1 - slot):
                copy.start()

"""
_DOT = "        o_ref[...] += jnp.dot(a_slots[slot], b_slots[slot], preferred_element_type=jnp.float32)\n"
_FIRST = """    for copy in fetch(0, 0):
        copy.start()
"""
_COPY_B = "        b_copy = pltpu.make_async_copy(b_tile, b_slots.at[slot], sems.at[1, slot])\n"

PUZZLE = Puzzle(
    spec=double_buffered_matmul_spec,
    solution=double_buffered_matmul,
    inputs=make_inputs,
    cases=[dict(M=256, K=384, N=128), dict(M=256, K=128, N=640)],
    fresh=lambda r: dict(M=256, K=384, N=128) if r.integers(4) else dict(M=384, K=128 * int(r.choice([4, 13, 16])), N=128),
    hints=[
        "A tile is a piece of an array in two directions. Which program id says where it lies along M, "
        "which along N, and what says where along K?",
        "`a_ref.at[pl.ds(…, 128), pl.ds(…, 128)]` names a tile in HBM, `a_slots.at[slot]` a slot, and "
        "`sems.at[operand, slot]` a semaphore.",
        "In `fetch`: name both tiles, describe both copies, return the two. In `step`: a `for` over the "
        "pair that waits for each; then `+=` with the dot of the two slots.",
    ],
    explain="""In the reference both copies of the next round fly while this round's dot runs, and
    each operand has its slots and its semaphores. The bytes are those of `tiled_matmul` with such
    blocks: which tiles are needed, and how often, has not changed.""",
    mistakes=[
        Mistake(
            "swaps the program ids of b's tile",
            old="b_ref.at[pl.ds(k * 128, 128), pl.ds(j * 128, 128)]",
            new="b_ref.at[pl.ds(k * 128, 128), pl.ds(i * 128, 128)]",
            says="b's columns are those that `i` counts, and `j` says which columns of the output are wanted",
        ),
        Mistake(
            "starts the first tiles in the first grid step only",
            old=_FIRST,
            new="""    @pl.when((i == 0) & (j == 0))
    def _():
        for copy in fetch(0, 0):
            copy.start()

""",
            says="from the second block on, nobody starts the tiles of k = 0, and old ones are multiplied: every "
            "grid step has a loop of its own, and needs its own prologue",
        ),
        Mistake(
            "takes a's tile from row j, and b's from column i",
            edits=(
                ("pl.ds(i * 128, 128), pl.ds(k * 128, 128)]", "pl.ds(j * 128, 128), pl.ds(k * 128, 128)]"),
                ("pl.ds(k * 128, 128), pl.ds(j * 128, 128)]", "pl.ds(k * 128, 128), pl.ds(i * 128, 128)]"),
            ),
            says="`i` and `j` have changed places: `i` counts blocks of a's rows, `j` blocks of b's columns",
        ),
        Mistake(
            "takes a's tile from row j",
            old="a_ref.at[pl.ds(i * 128, 128), pl.ds(k * 128, 128)]",
            new="a_ref.at[pl.ds(j * 128, 128), pl.ds(k * 128, 128)]",
            says="a's rows are those of block j of the output, and `i` says which rows are wanted",
        ),
        Mistake(
            "takes b's tile from the first columns",
            old="b_ref.at[pl.ds(k * 128, 128), pl.ds(j * 128, 128)]",
            new="b_ref.at[pl.ds(k * 128, 128), pl.ds(0, 128)]",
            says="every block of columns is the first one: `j` says which columns of b are wanted",
        ),
        Mistake(
            "counts tiles where elements are counted",
            old="a_ref.at[pl.ds(i * 128, 128), pl.ds(k * 128, 128)]",
            new="a_ref.at[pl.ds(i, 128), pl.ds(k, 128)]",
            says="`pl.ds` counts rows and columns, not tiles: tile (i, k) begins at (128 * i, 128 * k)",
        ),
        Mistake(
            "counts tiles of K where its elements are counted",
            edits=(
                ("pl.ds(i * 128, 128), pl.ds(k * 128, 128)]", "pl.ds(i * 128, 128), pl.ds(k, 128)]"),
                ("pl.ds(k * 128, 128), pl.ds(j * 128, 128)]", "pl.ds(k, 128), pl.ds(j * 128, 128)]"),
            ),
            says="each round moves on by one column of a and one row of b: tile k begins at number 128 * k",
        ),
        Mistake(
            "counts tiles of a where its columns are counted",
            old="pl.ds(i * 128, 128), pl.ds(k * 128, 128)]",
            new="pl.ds(i * 128, 128), pl.ds(k, 128)]",
            says="a's tile moves on by one column in each round: tile k begins at column 128 * k",
        ),
        Mistake(
            "counts tiles everywhere",
            edits=(
                ("pl.ds(i * 128, 128), pl.ds(k * 128, 128)]", "pl.ds(i, 128), pl.ds(k, 128)]"),
                ("pl.ds(k * 128, 128), pl.ds(j * 128, 128)]", "pl.ds(k, 128), pl.ds(j, 128)]"),
            ),
            says="`pl.ds` counts numbers, not tiles: tile n of an axis begins at number 128 * n",
        ),
        Mistake(
            "counts tiles of b where its rows are counted",
            old="b_ref.at[pl.ds(k * 128, 128), pl.ds(j * 128, 128)]",
            new="b_ref.at[pl.ds(k, 128), pl.ds(j * 128, 128)]",
            says="b's tile moves on by one row in each round: tile k begins at row 128 * k",
        ),
        Mistake(
            "waits for a's tile only",
            old=_WAIT,
            new="        fetch(k, slot)[0].wait()\n",
            says="reads `b_slots[0]`, and the copy into it, started in `copy.start()`",
            stage="memory",
        ),
        Mistake(
            "waits for b's tile only",
            old=_WAIT,
            new="        fetch(k, slot)[1].wait()\n",
            says="reads `a_slots[0]`, and the copy into it, started in `copy.start()`, has not been waited "
            "for. On a TPU the old numbers may still be there, or a part of the new ones. The last wait "
            "was for a copy into `b_slots[0]`",
            stage="memory",
        ),
        Mistake(
            "waits after the dot",
            old=_WAIT + _DOT,
            new=_DOT + _WAIT,
            says="preferred_element_type=jnp.float32)` reads `a_slots[0]`, and the copy into it, started in "
            "`copy.start()`, has not been waited for. On a TPU the old numbers may still be there, or a "
            "part of the new ones. Wait for",
            stage="memory",
        ),
        Mistake(
            "shares a slot's semaphore between a and b",
            old="b_slots.at[slot], sems.at[1, slot]",
            new="b_slots.at[slot], sems.at[0, slot]",
            edits=((_WAIT, "        fetch(k, slot)[0].wait()\n"),),
            says="There was a wait on its semaphore, but 2 copies were in flight on it",
            stage="memory",
        ),
        Mistake(
            "returns one description of the two",
            old="        return a_copy, b_copy\n",
            new="        return a_copy\n",
            says="One copy is looped over as if it were several",
            stage="error",
        ),
        Mistake(
            "has one semaphore for each operand, and none for each slot",
            edits=(
                ("a_slots.at[slot], sems.at[0, slot]", "a_slots.at[slot], sems.at[0, 0]"),
                ("b_slots.at[slot], sems.at[1, slot]", "b_slots.at[slot], sems.at[1, 0]"),
            ),
            says="any of them may have ended that wait: give each its own",
            stage="memory",
        ),
        Mistake(
            "copies b's tile into a's slot",
            old="(b_tile, b_slots.at[slot]",
            new="(b_tile, a_slots.at[slot]",
            says="b's tile went to a's slots: `b_slots` was never written, and holds garbage (NaN here)",
        ),
        Mistake(
            "adds the other slot's product",
            old="jnp.dot(a_slots[slot], b_slots[slot],",
            new="jnp.dot(a_slots[1 - slot], b_slots[1 - slot],",
            says="the slot that is multiplied is the one that is still being filled: tiles k are in slot "
            "`k % 2`",
        ),
        Mistake(
            "multiplies b's tile by a's",
            old="jnp.dot(a_slots[slot], b_slots[slot]",
            new="jnp.dot(b_slots[slot], a_slots[slot]",
            says="a @ b is asked for, and b @ a is another matrix: a's tile stands on the left",
        ),
        Mistake(
            "overwrites the sum in each round",
            old="        o_ref[...] += jnp.dot",
            new="        o_ref[...] = jnp.dot",
            says="only the last k's product is left: the products of all k are added",
        ),
        Mistake(
            "numbers the operands from 1 in `sems`",
            edits=(
                ("a_slots.at[slot], sems.at[0, slot]", "a_slots.at[slot], sems.at[1, slot]"),
                ("b_slots.at[slot], sems.at[1, slot]", "b_slots.at[slot], sems.at[2, slot]"),
            ),
            says="`sems[2, 0]` is used at grid step (0, 0), and there is no such semaphore",
            stage="memory",
        ),
        Mistake(
            "starts the copies of each round when it needs them",
            edits=(
                (_FIRST, ""),
                (_NEXT, ""),
                (_WAIT, "        for copy in fetch(k, slot):\n            copy.start()\n" + _WAIT),
            ),
            says="6 of 6 waits for a copy from `a_ref`, the kernel has computed nothing since that copy started",
            stage="work",
        ),
        Mistake(
            "fetches strips along all of K, and waits for them",
            code="""
def double_buffered_matmul(a, b):
    (M, K), (_, N) = a.shape, b.shape

    def kernel(a_ref, b_ref, o_ref, a_strip, b_strip, sems):
        i, j = pl.program_id(0) * 128, pl.program_id(1) * 128
        a_copy = pltpu.make_async_copy(a_ref.at[pl.ds(i, 128)], a_strip, sems.at[0])
        b_copy = pltpu.make_async_copy(b_ref.at[:, pl.ds(j, 128)], b_strip, sems.at[1])
        a_copy.start()
        b_copy.start()
        a_copy.wait()
        b_copy.wait()
        o_ref[...] = jnp.dot(a_strip[...], b_strip[...], preferred_element_type=jnp.float32)

    return pl.pallas_call(
        kernel,
        grid=(M // 128, N // 128),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
        out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((128, K), jnp.float32),
            pltpu.VMEM((K, 128), jnp.float32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        interpret=INTERPRET,
    )(a, b)
""",
            says="no copy comes while the kernel computes",
            stage="work",
        ),
        Mistake(
            "is one tile of a ahead, and starts b's when it needs it",
            edits=(
                (_FIRST, "    fetch(0, 0)[0].start()\n"),
                (_NEXT, _NEXT.replace("            for copy in fetch(k + 1, 1 - slot):\n                copy.start()", "            fetch(k + 1, 1 - slot)[0].start()")),
                (_WAIT, "        fetch(k, slot)[1].start()\n" + _WAIT),
            ),
            says="6 of 6 waits for a copy from `b_ref`, the kernel has computed nothing since that copy started",
            stage="work",
        ),
        Mistake(
            "multiplies element by element",
            old="jnp.dot(a_slots[slot], b_slots[slot], preferred_element_type=jnp.float32)",
            new="a_slots[slot] * b_slots[slot]",
            says="a product of tiles is `jnp.dot`",
        ),
        Mistake(
            "counts tiles of a where its rows are counted",
            old="pl.ds(i * 128, 128), pl.ds(k * 128, 128)]",
            new="pl.ds(i, 128), pl.ds(k * 128, 128)]",
            says="a slice starts at an element: tile i begins at row i * 128",
        ),
    ],
    alternatives=[
        Alternative(
            "accumulates in the loop's carry",
            edits=(
                ("def step(k, _):", "def step(k, total):"),
                (
                    _DOT,
                    "        return total + jnp.dot(\n            a_slots[slot], b_slots[slot], "
                    "preferred_element_type=jnp.float32\n        )\n",
                ),
                (
                    "    jax.lax.fori_loop(0, n, step, None)",
                    "    o_ref[...] = jax.lax.fori_loop(0, n, step, jnp.zeros_like(o_ref))",
                ),
            ),
        ),
        Alternative(
            "waits for a, then for b, by name",
            old=_WAIT,
            new="        a_copy, b_copy = fetch(k, slot)\n        b_copy.wait()\n        a_copy.wait()\n",
        ),
        Alternative(
            "has one semaphore for each slot, and waits for both copies of it",
            edits=(
                ("a_slots.at[slot], sems.at[0, slot]", "a_slots.at[slot], sems.at[slot]"),
                ("b_slots.at[slot], sems.at[1, slot]", "b_slots.at[slot], sems.at[slot]"),
                ("pltpu.SemaphoreType.DMA((2, 2))", "pltpu.SemaphoreType.DMA((2,))"),
            ),
        ),
        Alternative(
            "fetches the first tiles of the next grid step in the last round of this one",
            code="""
def double_buffered_matmul(a, b):
    (M, K), (_, N) = a.shape, b.shape
    n, columns = K // 128, N // 128
    rounds = M // 128 * columns * n

    def kernel(a_ref, b_ref, o_ref, a_slots, b_slots, sems):
        step = pl.program_id(0) * columns + pl.program_id(1)

        def fetch(round):
            slot, k, at = round % 2, round % n, round // n
            i, j = at // columns * 128, at % columns * 128
            tiles = (
                (a_ref.at[pl.ds(i, 128), pl.ds(k * 128, 128)], a_slots),
                (b_ref.at[pl.ds(k * 128, 128), pl.ds(j, 128)], b_slots),
            )
            return [
                pltpu.make_async_copy(tile, slots.at[slot], sems.at[operand, slot])
                for operand, (tile, slots) in enumerate(tiles)
            ]

        @pl.when(step == 0)
        def _():
            for copy in fetch(0):
                copy.start()

        o_ref[...] = jnp.zeros_like(o_ref)

        def body(k, _):
            round = step * n + k

            @pl.when(round + 1 < rounds)
            def _():
                for copy in fetch(round + 1):
                    copy.start()

            for copy in fetch(round):
                copy.wait()
            slot = round % 2
            o_ref[...] += jnp.dot(a_slots[slot], b_slots[slot], preferred_element_type=jnp.float32)

        jax.lax.fori_loop(0, n, body, None)

    two_slots = pltpu.VMEM((2, 128, 128), jnp.float32)
    return pl.pallas_call(
        kernel,
        grid=(M // 128, N // 128),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
        out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        scratch_shapes=[two_slots, two_slots, pltpu.SemaphoreType.DMA((2, 2))],
        interpret=INTERPRET,
    )(a, b)
""",
        ),
    ],
    audit=audit,
    scale=scale,
)
