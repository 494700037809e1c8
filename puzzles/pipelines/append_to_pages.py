"""Puzzle 17: new rows, sent to their pages."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## append_to_pages: new rows leave from the slot in which they are used
#
# Each sequence gets `T` new tokens: one when it decodes, several when its prompt comes in chunks. A
# token's keys and values, (R, H), are one **row** of a page. The kernel writes the new rows to their
# pages, and attention reads old and new rows. A sum stands in for attention.
#
# ![Copies as bars over time. Pages come into two slots. From a slot with new rows, copies of these rows leave while the kernel computes and the next page arrives.](diagrams/pipelines/append_to_pages.svg)
#
# **One memory.** `input_output_aliases={operand: output}` makes an output share an operand's
# memory: unwritten rows stay unchanged. Prefetched arrays count as operands. Use `pages_ref`,
# the output.
#
# **No round trip.** The new rows are already in VMEM. Store them in the slot, among the page's old
# rows: the sum reads them there, and the copies out start there.
#
# **Who waits?** Not the round that sends, right afterwards: nothing would hide the wait. The
# round that next copies **into** that slot waits first. What still leaves after the last round?


# %%
def append_to_pages_spec(
    pages: Float[Array, "P page R H"],
    new: Float[Array, "B T R H"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
) -> tuple[Float[Array, "P page R H"], Float[Array, "B R H"]]:
    page, T = pages.shape[1], new.shape[1]
    at = lengths[:, None] + jnp.arange(T)
    pages = pages.at[jnp.take_along_axis(table, at // page, axis=1), at % page].set(new)
    rows = pages[table].reshape(len(table), -1, *new.shape[2:]).astype(jnp.float32)
    counts = (jnp.arange(rows.shape[1]) < lengths[:, None] + T)[:, :, None, None]
    return pages, jnp.sum(jnp.where(counts, rows, 0), axis=1).astype(new.dtype)


# %%
def started(copy):
    copy.start()


def awaited(copy):
    copy.wait()


def append_to_pages_kernel(
    lengths_ref, table_ref, new_ref, _, pages_ref, o_ref, slots, sems, out_sem, sum_ref
):
    b, page, T = pl.program_id(0), slots.shape[1], new_ref.shape[1]
    length, most = lengths_ref[b], table_ref.shape[0] // lengths_ref.shape[0]
    n = pl.cdiv(length + T, page)

    def fetch(i, slot):
        source = pages_ref.at[table_ref[b * most + i]]
        return pltpu.make_async_copy(source, slots.at[slot], sems.at[slot])

    def new_rows(i, do):
        # Calls do(t, row) for each new row t of page i. `row` is its place in the page.
        first, last = jnp.maximum(i * page - length, 0), jnp.minimum(i * page + page - length, T)
        jax.lax.fori_loop(first, last, lambda t, _: do(t, length + t - i * page), None)

    def send(i, slot, do):
        # Calls `do` (`started` or `awaited`) with each copy of a new row of page i, out of `slot`.
        ### BEGIN SOLUTION
        def one(t, row):
            target = pages_ref.at[table_ref[b * most + i], row]
            do(pltpu.make_async_copy(slots.at[slot, row], target, out_sem))

        new_rows(i, one)
        ### END SOLUTION

    fetch(0, 0).start()
    sum_ref[...] = jnp.zeros_like(sum_ref)

    def add(i, _):
        slot = jax.lax.rem(i, 2)

        # Fetch page i + 1, if there is one. Wait for page i, store its new rows, and send them.
        ### BEGIN SOLUTION
        @pl.when(i + 1 < n)
        def _():
            send(i - 1, 1 - slot, awaited)
            fetch(i + 1, 1 - slot).start()

        def store(t, row):
            slots[slot, row] = new_ref[0, t]

        fetch(i, slot).wait()
        new_rows(i, store)
        send(i, slot, started)
        ### END SOLUTION
        rows = i * page + jax.lax.broadcasted_iota(jnp.int32, slots.shape[1:], 0)
        counted = jnp.where(rows < length + T, slots[slot].astype(jnp.float32), 0)
        sum_ref[...] += jnp.sum(counted, axis=0)

    jax.lax.fori_loop(0, n, add, None)
    o_ref[...] = sum_ref[...].astype(o_ref.dtype)
    # Wait for the rows that are still on their way.
    ### BEGIN SOLUTION
    for i in (n - 2, n - 1):
        send(i, jax.lax.rem(i + 2, 2), awaited)
    ### END SOLUTION


def append_to_pages(
    pages: Float[Array, "P page R H"],
    new: Float[Array, "B T R H"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B pages"],
) -> tuple[Float[Array, "P page R H"], Float[Array, "B R H"]]:
    page, (B, T, R, H) = pages.shape[1], new.shape
    return pl.pallas_call(
        append_to_pages_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B,),
            in_specs=[
                pl.BlockSpec((1, T, R, H), lambda b, *_: (b, 0, 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=[
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec((None, R, H), lambda b, *_: (b, 0, 0)),
            ],
            scratch_shapes=[
                pltpu.VMEM((2, page, R, H), pages.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SemaphoreType.DMA,
                pltpu.VMEM((R, H), jnp.float32),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct(pages.shape, pages.dtype),
            jax.ShapeDtypeStruct((B, R, H), new.dtype),
        ],
        # The pages that come out are the pages that went in.
        ### BEGIN SOLUTION
        input_output_aliases={3: 0},
        ### END SOLUTION
        interpret=INTERPRET,
    )(lengths, table.reshape(-1), new, pages)


# %% [markdown]
# Could you write a row and then fetch its page? Two copies have no order until you wait, so the
# fetch would have to wait for the write.
#
# An alias lets the kernel write into its operand, but the caller's array has to stay as it is. So
# XLA copies all pages first, unless the caller donates them, as `jax.jit(append_to_pages,
# donate_argnums=0)` does. A receipt warns of that copy:

# %% active="ipynb"
# receipt(append_to_pages, *find("append_to_pages").arguments(0))

# %% [markdown]
# tpu-inference's `ragged_paged_attention` v3 (2025) works in the same order. It fetches only the
# old rows of a page, copies the new ones into the same slot, and starts the copies out before it
# attends. It waits for these before the next copy into the slot, even if that belongs to
# another sequence: SMEM holds, for each slot, how many new rows are still leaving.

# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import overlapped
from puzzles.pipelines._paged import pages_needed, spoiled, table_for


def make_inputs(key, lengths, T, page, P, pages, garbage, R, H, dtype="float32"):
    r = rng(key)
    table, _ = table_for(r, tuple(n + T for n in lengths), page, P, pages, shared=False)
    rows = np.zeros(P, int)
    for b, length in enumerate(lengths):
        for i in range(-(-length // page)):
            rows[table[b, i]] = min(page, length - i * page)
    old = spoiled(r, r.normal(0.5, 1, (P, page, R * H)), rows, garbage, dtype)
    new = array(r.normal(0.5, 1, (len(lengths), T, R, H)), dtype)
    return old.reshape(P, page, R, H), new, array(lengths, jnp.int32), array(table, jnp.int32)


def audit(launch: Launch, *, args) -> None:
    pages, new, lengths, _ = args
    fetched = pages_needed(np.asarray(lengths) + new.shape[1], pages.shape[1])
    needed = fetched * pages.nbytes // pages.shape[0] + sum(one.nbytes for one in args[1:])
    assert launch.hbm_bytes_read <= needed, (
        f"{launch.hbm_bytes_read:,} bytes are read, but the pages of these sequences and the "
        f"other arguments have only {needed:,}: fetch each page once, and let the new rows come in "
        "their block only"
    )
    written = new.nbytes + new.nbytes // new.shape[1]
    assert launch.hbm_bytes_written <= written, (
        f"{launch.hbm_bytes_written:,} bytes are written, but the new rows and the sums have only "
        f"{written:,}: send only the new rows of a page, once"
    )
    its_own = [one.name for one in (*launch.inputs, *launch.outputs) if one.shape == pages.shape]
    for name, its in (launch.waits or {}).items():
        assert name in its_own or not its.pauses, (
            f"at {its.pauses} of {its.count} waits for a row that leaves `{name}`, the kernel has "
            "computed nothing since that row was sent: it only waits. Send rows before the page is "
            "summed, and wait when their slot is needed again"
        )
    overlapped(launch, first=len(lengths))


def scale(B=8, T=4, page=16, P=1024, pages=32, R=16, H=128):
    S, bf16 = jax.ShapeDtypeStruct, jnp.bfloat16
    lengths = array([(331 * b + 40) % (page * pages - T) for b in range(B)], jnp.int32)
    table = array([[(37 * b + 5 * i) % P for i in range(pages)] for b in range(B)], jnp.int32)
    return S((P, page, R, H), bf16), S((B, T, R, H), bf16), lengths, table


def par(launch: Launch) -> str:
    read, written = launch.hbm_bytes_read, launch.hbm_bytes_written
    return f"{read / 2**20:.2f} MiB read, {written / 2**10:,.0f} KiB written"


def fresh(r):
    lengths = ((13, 0, 16, 6), (1, 19, 0, 4), (0, 3, 18, 9), (12, 15, 7, 2))
    if r.integers(4) == 0:
        return dict(lengths=(7, 20), T=1, page=8, P=12, pages=3, R=16, H=128, garbage=1.0)
    shapes = dict(T=6, page=4, P=32, pages=7, R=8, H=128)
    return dict(lengths=lengths[r.integers(4)], **shapes, garbage=float("nan"))


PUZZLE = Puzzle(
    spec=append_to_pages_spec,
    solution=append_to_pages,
    inputs=make_inputs,
    results=("pages", "sums"),
    cases=[
        dict(lengths=(13, 0, 16, 3), T=6, page=4, P=32, pages=7, garbage=1.0, R=8, H=128),
        dict(
            lengths=(64, 31, 5, 40, 78),
            T=3,
            page=32,
            P=12,
            pages=4,
            garbage=float("nan"),
            R=16,
            H=256,
            dtype="bfloat16",
        ),
    ],
    fresh=fresh,
    hints=[
        "Go through one round. Which slot does the next page go to, and what may still be leaving "
        "it? After which line does a slot hold all rows of its page?",
        "`slots.at[slot, row]` is one row, in VMEM; `pages_ref.at[number, row]` is its place. A "
        "wait needs a description with the semaphore and the size of the started copy. "
        "`input_output_aliases` maps the number of an operand to that of an output.",
        "A round: if a next page exists, wait for the rows that leave the other slot and start "
        "that page's copy; wait for this page; store its new rows, and send them. At the end, wait "
        "for the rows of the last two pages: each has its own slot.",
    ],
    explain="""New rows go from VMEM to their pages, and nothing reads them back. In the reference
    the only waits for them are before a copy into their slot, and at the end of a step.""",
    audit=audit,
    scale=scale,
    par=par,
)
