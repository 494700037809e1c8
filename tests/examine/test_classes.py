"""Right kernels by class: at least two of each kind that `examine` once blamed for nothing."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call, cores
from launches import mesh

from puzzles import examine

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
X, PAGES = S((32, 128), f32), S((6, 8, 128), f32)
ROW, PAGE = pl.BlockSpec((8, 128), lambda i: (i, 0)), pltpu.VMEM((8, 128), f32)
REGULAR, DMA = pltpu.SemaphoreType.REGULAR, pltpu.SemaphoreType.DMA
P = jax.sharding.PartitionSpec("x")
wait = pl.semaphore_wait if hasattr(pl, "semaphore_wait") else pltpu.semaphore_wait


# Copies that are counted on a REGULAR semaphore.


def counted_in_slots():
    """Pages through two buffers, each with a semaphore of an array."""

    def kernel(x_hbm, o_ref, buf, sems):
        def fetch(n):
            pltpu.make_async_copy(x_hbm.at[n], buf.at[n % 2], sems.at[n % 2]).start()

        fetch(0)
        for n in range(6):
            if n < 5:
                fetch(n + 1)
            wait(sems.at[n % 2], 1)
            o_ref[n] = buf[n % 2]

    scratch = [pltpu.VMEM((2, 8, 128), f32), pltpu.SemaphoreType.REGULAR((2,))]
    return call(kernel, PAGES, specs=[HBM], scratch=scratch), PAGES


def counted_by_data():
    """As many pages as a scalar says are copied out and waited for in one wait."""

    def kernel(count, x_ref, old, o_hbm, sem):
        def send(n, _):
            pltpu.make_async_copy(x_ref.at[n], o_hbm.at[n], sem).start()
            return 0

        jax.lax.fori_loop(0, count[0], send, 0)
        wait(sem, count[0])

    specs = [pl.BlockSpec(memory_space=pltpu.VMEM), HBM]
    like = dict(specs=specs, out_specs=HBM, scratch=[REGULAR], scalars=1)
    fn = call(kernel, PAGES, input_output_aliases={2: 0}, **like)
    return fn, jnp.array([4], i32), PAGES, PAGES


# A block of an output that comes back, and that every visit writes whole.


def last_turn_counts():
    """Rows of the last turn: each turn writes all blocks anew."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    read = pl.BlockSpec((8, 128), lambda t, i: (2 * t + i, 0))
    written = pl.BlockSpec((8, 128), lambda t, i: (i, 0))
    return call(kernel, S((16, 128), f32), (2, 2), [read], written), X


def written_in_halves():
    """A block is written whole by two stores, or by two others."""

    def kernel(x_ref, o_ref):
        for half in range(2):
            rows = pl.ds(4 * half, 4)

            @pl.when(pl.program_id(0) == 0)
            def _(rows=rows):
                o_ref[rows] = x_ref[rows]

            @pl.when(pl.program_id(0) > 0)
            def _(rows=rows):
                o_ref[rows] = -x_ref[rows]

    read = pl.BlockSpec((8, 128), lambda t, i: (i, 0))
    return call(kernel, S((16, 128), f32), (2, 2), [read], read), S((16, 128), f32)


# No inputs.


def only_a_pipeline():
    def number(o_ref):
        o_ref[...] = jnp.full(o_ref.shape, pl.program_id(0), o_ref.dtype)

    def kernel(o_hbm):
        pltpu.emit_pipeline(number, grid=(4,), in_specs=[], out_specs=[ROW])(o_hbm)

    return (call(kernel, X, (), (), HBM),)


def only_scalars():
    """A table in SMEM is all that the kernel gets."""

    def kernel(table, o_ref):
        i, j = pl.program_id(0), pl.program_id(1)
        lane = jax.lax.broadcasted_iota(i32, o_ref.shape, 1)
        o_ref[...] = jnp.where(lane < table[i], table[i] + j, 0)

    spec = pl.BlockSpec((8, 128), lambda i, j, table: (i, j))
    fn = call(kernel, S((16, 256), i32), (2, 2), (), spec, scalars=1)
    return fn, jnp.array([3, 200], i32)


# Device kinds, asked for inside of `shard_map`.


def sharded(local: Callable):
    return jax.shard_map(local, mesh=mesh(), in_specs=P, out_specs=P, check_vma=False)


def by_kind():
    def local(x):
        rows = {"TPU v5 lite": 8, "TPU v6 lite": 16}[jax.devices()[0].device_kind]
        spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
        return call(lambda a, b: b.__setitem__(..., -a[...]), x, (32 // rows,), [spec], spec)(x)

    return sharded(local), S((128, 128), f32)


def by_backend():
    """A kernel that is launched on TPUs alone, of as many rows as there are devices."""

    def local(x):
        assert jax.default_backend() == "tpu"
        assert {one.platform for one in jax.local_devices()} == {"tpu"}
        rows = 8 * min(1, len(jax.devices("tpu")))
        spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
        return call(lambda a, b: b.__setitem__(..., a[...] + 1), x, (4,), [spec], spec)(x)

    return sharded(local), S((128, 128), f32)


# A Ref that is chosen among several.


def chosen_buffer():
    """Two buffers take turns; a `cond` chooses a buffer to copy to, and a buffer to read."""

    def kernel(x_hbm, o_ref, a, b, sem):
        def fetch(buffer):
            return lambda n: pltpu.sync_copy(x_hbm.at[n], buffer)

        def body(n, sum_):
            jax.lax.cond(n % 2 == 0, fetch(a), fetch(b), n)
            return sum_ + jax.lax.cond(n % 2 == 0, lambda a, b: a[...], lambda a, b: b[...], a, b)

        o_ref[...] = jax.lax.fori_loop(0, 6, body, jnp.zeros((8, 128), f32))

    return call(kernel, S((8, 128), f32), specs=[HBM], scratch=[PAGE, PAGE, DMA]), PAGES


def chosen_output():
    """Each step stores in one of three outputs, and all of them are stored in."""

    def kernel(x_ref, *outs):
        def store(out, n):
            return lambda: out.__setitem__(..., x_ref[...] + n)

        step = pl.program_id(0)
        jax.lax.switch(step % 3, [store(out, n) for n, out in enumerate(outs)])

    outs = [pl.BlockSpec((8, 128), lambda i: (0, 0))] * 3
    like = (S((8, 128), f32),) * 3
    return call(kernel, like, (3,), [pl.BlockSpec((8, 128), lambda i: (i, 0))], outs), X


# Tables of scalars: in loops, in two dimensions, batched.


def by_two(table, x):
    """Blocks of `x` at the places of a table of two dimensions."""

    def kernel(table, x_ref, o_ref):
        i, j = pl.program_id(0), pl.program_id(1)
        o_ref[...] = x_ref[...] + table[j, i].astype(f32)

    spec = pl.BlockSpec((8, 128), lambda i, j, table: (table[i, j], 0))
    out = pl.BlockSpec((8, 128), lambda i, j, table: (2 * i + j, 0))
    return call(kernel, x, (2, 2), [spec], out, scalars=1)(table, x)


TABLES = jnp.asarray(np.random.default_rng(2).integers(0, 4, (2, 3, 2)), i32)


def mapped_tables():
    """`lax.map` is a loop whose turns have a table of two dimensions each."""
    return lambda t, x: jax.lax.map(lambda row: by_two(row, x), t), jnp.swapaxes(TABLES, 0, 1), X


def batched_tables():
    """The batch is the second axis of the tables, and the last but one of the arrays."""
    return jax.vmap(by_two, in_axes=(1, 1), out_axes=1), TABLES, S((32, 3, 128), f32)


# Kernels over Refs from outside, and of `pl.kernel`.


def through_refs(copies: Callable):
    def fn(x):
        x_hbm = jax.new_ref(x, memory_space=pltpu.HBM)
        o_hbm = jax.empty_ref(S(x.shape, x.dtype), memory_space=pltpu.HBM)
        pl.core_map(mesh=cores(1))(lambda: copies(x_hbm, o_hbm))
        return jax.freeze(o_hbm)

    return fn, X


def piped_refs():
    def scale(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 3

    specs = dict(in_specs=[ROW], out_specs=[ROW])
    return through_refs(lambda x, o: pltpu.emit_pipeline(scale, grid=(4,), **specs)(x, o))


def paged_refs():
    def copies(x_hbm, o_hbm):
        def inner(buf, sem):
            for n in range(4):
                rows = pl.ds(8 * n, 8)
                pltpu.async_copy(x_hbm.at[rows], buf, sem).wait()
                buf[...] = -buf[...]
                pltpu.async_copy(buf, o_hbm.at[rows], sem).wait()

        pl.run_scoped(inner, PAGE, DMA)

    return through_refs(copies)


# Operands without elements in SMEM.


def no_offsets():
    """A loop over an empty list of offsets."""

    def kernel(offsets, x_ref, o_ref):
        add = lambda n, sum_: sum_ + offsets[n].astype(f32)  # noqa: E731
        o_ref[...] = x_ref[...] + jax.lax.fori_loop(0, offsets.shape[0], add, 0.0)

    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), ROW]
    return call(kernel, X, (4,), specs, ROW), jnp.zeros((0,), i32), X


def no_prefetched_rows():
    """A prefetched table of 0 rows of 4."""

    def kernel(table, x_ref, o_ref):
        o_ref[...] = x_ref[...] + table.shape[0]

    row = pl.BlockSpec((8, 128), lambda i, table: (i, 0))
    return call(kernel, X, (4,), [row], row, scalars=1), jnp.zeros((0, 4), i32), X


# Copies that overlap in a place, and bring the same bytes there.


def overlapping(apart: int = 0, shared: bool = False):
    """Rows 0 to 7 and 4 to 11 of an array in flight at once, to the same rows, or `apart`.

    shared: on one semaphore.
    """

    def kernel(x_hbm, o_ref, buf, sems):
        def copy(n):
            source = x_hbm.at[pl.ds(4 * n + apart * n, 8)]
            return pltpu.make_async_copy(
                source, buf.at[pl.ds(4 * n, 8)], sems.at[0 if shared else n]
            )

        copy(0).start()
        copy(1).start()
        copy(0).wait()
        copy(1).wait()
        o_ref[...] = buf[...]

    rows, out = S((16, 1, 128), f32), S((12, 1, 128), f32)
    scratch = [pltpu.VMEM(out.shape, f32), pltpu.SemaphoreType.DMA((2,))]
    return call(kernel, out, specs=[HBM], scratch=scratch), rows


def overlapping_on_devices(**how):
    local, _ = overlapping(**how)
    return sharded(local), S((64, 1, 128), f32)


RIGHT = {
    "same bytes": (overlapping, overlapping_on_devices),
    "REGULAR semaphores": (counted_in_slots, counted_by_data),
    "written whole": (last_turn_counts, written_in_halves),
    "no inputs": (only_a_pipeline, only_scalars),
    "devices": (by_kind, by_backend),
    "chosen Refs": (chosen_buffer, chosen_output),
    "tables": (mapped_tables, batched_tables),
    "empty operands": (no_offsets, no_prefetched_rows),
    "Refs from outside": (piped_refs, paged_refs),
}
EACH = [pytest.param(kind, make, id=make.__name__) for kind, two in RIGHT.items() for make in two]


@pytest.mark.usefixtures("no_libtpu")
@pytest.mark.parametrize(("kind", "make"), EACH)
def test_a_right_kernel_is_not_blamed(kind: str, make: Callable) -> None:
    if kind == "Refs from outside" and not hasattr(jax, "empty_ref"):
        pytest.skip("JAX makes no such Ref")
    found = examine(*make())
    said = {(one.kind, one.severity) for one in found.findings if one.severity != "note"}
    if kind == "REGULAR semaphores" and jax.__version_info__ < (0, 8):
        said = {one for one in said if one[0] != "lowering"}  # its Mosaic takes DMA semaphores only
    assert said == ({("revisited", "warning")} if kind == "written whole" else set())
    if kind == "Refs from outside":
        assert "cannot read" in found.unread
    else:
        assert (found.unread, found.unseen) == ("", ())


@pytest.mark.usefixtures("no_libtpu")
@pytest.mark.parametrize("how", [dict(apart=2), dict(shared=True)], ids=str)
@pytest.mark.parametrize("make", RIGHT["same bytes"])
def test_overlapping_copies_of_other_bytes_or_on_one_semaphore_are_a_hazard(
    make: Callable, how: dict
) -> None:
    assert [one.kind for one in examine(*make(**how)).findings] == ["hazard"]


@pytest.mark.usefixtures("no_libtpu")
@pytest.mark.parametrize("adds", [False, True])
def test_a_block_that_comes_back_and_is_not_written_whole_is_an_error(adds: bool) -> None:
    def kernel(x_ref, o_ref):
        o_ref[0:4] = x_ref[0:4] + (o_ref[0:4] if adds else 0)

        @pl.when(adds | (pl.program_id(0) == 0))
        def _():
            o_ref[4:8] = x_ref[4:8]

    read = pl.BlockSpec((8, 128), lambda t, i: (i, 0))
    rows = S((16, 128), f32)
    found = examine(call(kernel, rows, (2, 2), [read], read), rows)
    errors = [(one.kind, one.operand) for one in found.findings if one.severity == "error"]
    assert errors == [("revisited", "o_ref")]


@pytest.mark.usefixtures("no_libtpu")
@pytest.mark.newest
@pytest.mark.parametrize("stored", [False, True])
def test_an_empty_array_may_be_memory_to_write_in(stored: bool) -> None:
    def kernel(places, x_ref, o_ref):
        if stored:
            places[0] = 1
        o_ref[...] = x_ref[...] + places[0].astype(f32)

    def fn(x):
        empty = pltpu.with_memory_space_constraint(jax.lax.empty((8,), i32), pltpu.SMEM)
        specs = [pl.BlockSpec(memory_space=one) for one in (pltpu.SMEM, pltpu.VMEM)]
        return call(kernel, x, specs=specs)(empty, x)

    kinds = [one.kind for one in examine(fn, S((8, 128), f32)).findings]
    assert kinds == ([] if stored else ["uninitialised"])


def on_blocks(kernel: Callable, block: tuple):
    """A launch of four steps on blocks of three axes."""
    spec, out = pl.BlockSpec(block, lambda i: (i, 0, 0)), pl.BlockSpec((8, 128), lambda i: (i, 0))
    return call(kernel, X, (4,), [spec], out, [PAGE]), S((4, 16, 128), f32)


def picks(x_ref, o_ref, buf):
    rows = x_ref[0].astype(i32)
    o_ref[...] = jnp.take_along_axis(x_ref[0], rows, axis=0)[:8]


def copies_a_squeezed_block(x_ref, o_ref, buf):
    pltpu.sync_copy(x_ref, buf)
    o_ref[...] = buf[...]


@pytest.mark.slow
@pytest.mark.newest
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("kernel", "block", "words"),
    [
        (picks, (1, 16, 128), "`take_along_axis` picks within a single register"),
        (copies_a_squeezed_block, (None, 8, 128), "keeps the axes that its `BlockSpec` squeezes"),
    ],
)
def test_a_refusal_has_its_cause_and_its_remedy(kernel, block, words) -> None:
    says = [one.says for one in examine(*on_blocks(kernel, block)).findings]
    assert any(words in one for one in says), says


# Rows of 8 bits: what libtpu takes is not misaligned, and the other way round.


def rows_of(dtype, rows: int, by_hand: bool):
    """128 rows of 8 bits, in blocks or in copies by hand of so many rows."""

    def kernel(x_ref, o_ref, *buf):
        if buf:
            start = pl.multiple_of(rows * pl.program_id(0), rows)
            pltpu.sync_copy(x_ref.at[pl.ds(start, rows)], buf[0])
        o_ref[...] = (buf[0] if buf else x_ref)[...].astype(o_ref.dtype)

    spec, x = pl.BlockSpec((rows, 128), lambda i: (i, 0)), S((128, 128), dtype)
    scratch, read = [pltpu.VMEM((rows, 128), dtype)] * by_hand, HBM if by_hand else spec
    return call(kernel, S((128, 128), f32), (128 // rows,), [read], spec, scratch), x


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("rows", [8, 32])
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
def test_rows_of_8_bits_are_misaligned_only_if_libtpu_refuses_them(dtype, rows, by_hand) -> None:
    found = examine(*rows_of(dtype, rows, by_hand), chips=("v6e",))
    kinds = {one.kind for one in found.findings if one.severity != "note"}
    assert kinds in (set(), {"lowering"}, {"compile"}, {"misaligned", "compile"})
    assert rows < 32 or not kinds
