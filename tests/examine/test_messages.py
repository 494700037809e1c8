"""A message names the cause, the launch, the operand and the line, once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call, from_hbm
from launches import mesh

import puzzles
from puzzles import Examination, examine
from puzzles._compile.messages import refusal
from puzzles._launch import Finding

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
PAGE, CACHE = S((8, 128), f32), S((8, 8, 128), f32)
DMA = pltpu.SemaphoreType.DMA
SLOTS, NEW = jnp.array([4, 1, 6]), S((3, 8, 128), f32)
pytestmark = pytest.mark.usefixtures("no_libtpu")


def only(found: Examination) -> Finding:
    """The only finding that is no note."""
    (one,) = (one for one in found.findings if one.severity != "note")
    return one


def summed(dtype, masked: bool):
    """Sums along rows of 200 numbers, in two blocks of 128."""

    def kernel(x_ref, o_ref, acc):
        k = pl.program_id(1)

        @pl.when(k == 0)
        def _():
            acc[...] = jnp.zeros_like(acc)

        column = 128 * k + jax.lax.broadcasted_iota(i32, x_ref.shape, 1)
        x = jnp.where(column < 200, x_ref[...], 0) if masked else x_ref[...]
        acc[...] += jnp.sum(x, axis=1, keepdims=True)
        o_ref[...] = acc[...]

    read, written = (pl.BlockSpec((8, n), lambda i, k, n=n: (i, k * (n > 1))) for n in (128, 1))
    scratch = [pltpu.VMEM((8, 1), dtype)]
    return call(kernel, S((16, 1), dtype), (2, 2), [read], written, scratch), S((16, 200), dtype)


def attention(_, masked: bool):
    """One block of queries and two of keys, of which the second hangs over."""

    def kernel(q_ref, k_ref, v_ref, o_ref, sums, acc):
        j = pl.program_id(0)

        @pl.when(j == 0)
        def _():
            sums[...], acc[...] = jnp.zeros_like(sums), jnp.zeros_like(acc)

        row = 128 * j + jax.lax.broadcasted_iota(i32, k_ref.shape, 0)
        k, v = k_ref[...], v_ref[...]
        if masked:
            k, v = jnp.where(row < 200, k, -1e3), jnp.where(row < 200, v, 0)
        p = jnp.exp(q_ref[...] @ k.T)
        sums[...] += jnp.sum(p, axis=1, keepdims=True)
        acc[...] += p @ v
        o_ref[...] = acc[...] / sums[...]

    first, each = (
        pl.BlockSpec((8, 128), lambda j: (0, 0)),
        pl.BlockSpec((128, 128), lambda j: (j, 0)),
    )
    scratch = [pltpu.VMEM((8, 1), f32), pltpu.VMEM((8, 128), f32)]
    fn, keys = call(kernel, PAGE, (2,), [first, each, each], first, scratch), jnp.ones((200, 128))
    return fn, jnp.full((8, 128), 0.01), keys, keys


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("make", "dtype", "operand"),
    [(summed, f32, "x_ref"), (summed, i32, "x_ref"), (attention, f32, "k_ref")],
)
def test_padding_is_no_unwritten_accumulator(make, dtype, operand, masked: bool) -> None:
    fn, *args = make(dtype, masked)
    found = examine(lambda *given: fn(*given), *args)
    if masked:
        assert (found.findings, found.unseen) == ((), ())
        return
    one = only(found)
    assert (one.kind, one.operand, one.launch) == ("uninitialised", operand, "kernel")
    assert f"the block of `{operand}` at grid step" in one.says
    assert "beyond the edge of its array of shape" in one.says
    assert "jnp.where" in one.remedy
    assert one.line


def update(slots, new):
    """Three pages of eight, written by copies."""

    def update(slots, new, out, sem):
        page = slots[pl.program_id(0)]
        pltpu.sync_copy(new.at[pl.program_id(0)], out.at[page])

    return call(update, CACHE, (3,), [HBM], HBM, [DMA], scalars=1)(slots, new)


def doubled(x):
    def double(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    page = pl.BlockSpec((1, 8, 128), lambda i: (i, 0, 0))
    return call(double, x, (len(x),), [page], page)(x)


AROUND = {
    "reshaped": lambda s, x: update(s, x).reshape(64, 128),
    "used by XLA": lambda s, x: update(s, x) + 1,
    "used by a launch": lambda s, x: doubled(update(s, x)),
    "after a launch": lambda s, x: update(s, doubled(x)),
    "one of two": lambda s, x: (doubled(x), update(s, x)),
    "two": lambda s, x: (update(s, x), update(s, x)),
    "in a loop": lambda s, x: jax.lax.map(lambda n: update(s, x + n), jnp.arange(2.0)),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_an_output_that_is_written_in_part_is_named_whatever_is_around_it(around) -> None:
    one = only(examine(around, SLOTS, NEW))
    assert (one.kind, one.launch, one.operand) == ("uninitialised", "update", "out")
    assert "hold garbage, from memory that nothing wrote: 0, 2, 3, 5, 7." in one.says
    assert "input_output_aliases" in one.remedy
    assert one.line


def piped(blocks, steps: int, rows: int = 8):
    """A pipeline of so many steps whose body writes so many rows of each output block."""

    def scaled(x_hbm, o_hbm):
        def body(x_ref, o_ref):
            o_ref[0:rows] = 2 * x_ref[0:rows]

        specs = [pl.BlockSpec((8, 128), index) for index in (lambda i: (i, 0), blocks)]
        pltpu.emit_pipeline(body, grid=(steps,), in_specs=specs[:1], out_specs=specs[1:])(
            x_hbm, o_hbm
        )

    x = S((32, 128), f32)
    return call(scaled, x, specs=[HBM], out_specs=HBM), x


@pytest.mark.parametrize(
    ("made", "count", "shown"),
    [
        (piped(lambda i: (2 * i, 0), 2), 16, "8, 9, 10"),
        (piped(lambda i: (i // 2, 0), 4), 16, "16, 17, 18"),
        (piped(lambda i: (i, 0), 3), 8, "24, 25, 26"),
        (piped(lambda i: (i, 0), 4, rows=4), 16, "4, 5, 6, 7, 12"),
    ],
)
def test_rows_that_a_pipeline_leaves_unwritten_have_its_index_map(made, count, shown) -> None:
    one = only(examine(*made))
    assert (one.kind, one.launch, one.operand) == ("uninitialised", "scaled", "o_hbm")
    assert f"{count} of 32 entries along axis 0 of `o_hbm` hold garbage" in one.says
    assert f": {shown}" in one.says
    assert "the index map of this output" in one.remedy
    assert one.line


def test_lanes_that_nothing_wrote_are_counted_along_their_axis() -> None:
    def kernel(x_ref, o_hbm):
        pltpu.sync_copy(x_ref.at[:, pl.ds(0, 128)], o_hbm.at[:, pl.ds(128, 128)])

    wide = S((8, 256), f32)
    one = only(examine(call(kernel, wide, out_specs=HBM), wide))
    assert "128 of 256 entries along axis 1 of `o_hbm`" in one.says
    assert ": 0, 1, 2" in one.says


def test_a_copy_out_of_unwritten_memory_has_a_line_though_jax_gives_it_none() -> None:
    def kernel(x_ref, o_hbm, spare):
        pltpu.sync_copy(spare, o_hbm)

    one = only(
        examine(call(kernel, PAGE, out_specs=HBM, scratch=[pltpu.VMEM((8, 128), f32)]), PAGE)
    )
    assert (one.kind, one.operand) == ("uninitialised", "spare")
    assert one.line


@pytest.mark.usefixtures("compiler")
def test_a_kernel_between_devices_that_mosaic_refuses_is_one_finding(monkeypatch) -> None:
    monkeypatch.setattr("puzzles._compile.compiler.has_libtpu", lambda: True)

    def unguarded(x_hbm, o_hbm, send, recv):
        there = (jax.lax.axis_index("x") + 1) % 4
        copy = pltpu.make_async_remote_copy(x_hbm, o_hbm, send, recv, device_id=there)
        copy.start()
        copy.wait()

    def local(x):
        params = pltpu.CompilerParams(collective_id=0)  # and no barrier semaphore
        like = dict(specs=[HBM], out_specs=HBM, scratch=[DMA] * 2, compiler_params=params)
        return call(unguarded, x, interpret=False, **like)(x)

    axis = jax.sharding.PartitionSpec("x")
    fn = jax.shard_map(local, mesh=mesh(), in_specs=axis, out_specs=axis, check_vma=False)
    found = examine(fn, S((32, 128), f32))
    refusals = [one for one in found.findings if one.kind == "lowering"]
    assert [(one.launch, bool(one.line)) for one in refusals] == [("unguarded", True)]


def test_a_copy_between_devices_of_xla_is_no_arithmetic() -> None:
    def fn(x):
        return doubled(jax.device_put(x))

    assert examine(fn, NEW).findings == ()
    (note,) = examine(lambda x: doubled(jax.device_put(x) + 1), NEW).findings
    assert (note.kind, "`add`" in note.says, "device_put" in note.says) == ("outside", True, False)


def test_garbage_that_nobody_uses_is_no_fault() -> None:
    assert examine(lambda s, x: update(s, x)[4], SLOTS, NEW).findings == ()
    both = examine(lambda s, x: (update(s, x)[4], accumulated(x[0])), SLOTS, NEW)
    assert (only(both).launch, only(both).operand) == ("accumulate", "acc")


def accumulated(x):
    def accumulate(x_ref, o_ref, acc):
        acc[...] += x_ref[...]
        o_ref[...] = acc[...]

    return call(accumulate, x, scratch=[pltpu.VMEM(x.shape, f32)])(x)


def half(x_ref, o_ref):
    o_ref[pl.ds(0, 4)] = x_ref[pl.ds(0, 4)]


def half_of_scratch(x_ref, o_ref, acc):
    acc[pl.ds(0, 4)] = x_ref[pl.ds(0, 4)]
    o_ref[...] = acc[...]


@pytest.mark.parametrize(
    ("kernel", "operand", "words"),
    [
        (half, "o_ref", "the kernel does not write all elements of `o_ref`"),
        (half_of_scratch, "acc", "before all of it was written"),
    ],
)
def test_a_block_that_is_written_in_part_has_a_line(kernel, operand, words) -> None:
    scratch = [pltpu.VMEM(PAGE.shape, f32)] * (kernel is half_of_scratch)
    one = only(examine(lambda x: call(kernel, PAGE, scratch=scratch)(x), PAGE))
    assert (one.operand, words in one.says) == (operand, True)
    assert one.line


def test_a_scoped_buffer_that_is_read_first_is_named() -> None:
    def kernel(x_ref, o_ref):
        def inner(total):
            total[...] += x_ref[...]
            o_ref[...] = total[...]

        pl.run_scoped(inner, pltpu.VMEM(PAGE.shape, f32))

    assert only(examine(call(kernel, PAGE), PAGE)).operand == "total"


def early(x_hbm, o_ref, buffer, sem):
    pltpu.make_async_copy(
        x_hbm,
        buffer,
        sem,
    ).start()
    o_ref[...] = buffer[...]
    pltpu.make_async_copy(x_hbm, buffer, sem).wait()


def never(x_hbm, o_ref, buffer, sem):
    pltpu.make_async_copy(x_hbm,
                          buffer, sem).start()  # fmt: skip
    o_ref[...] = jnp.zeros_like(o_ref)


def in_pieces(x_hbm, o_ref):
    def inner(*pieces):
        copy = pltpu.make_async_copy(x_hbm, pieces[0], pieces[1])
        copy.start()
        o_ref[...] = pieces[0][...]
        copy.wait()

    pl.run_scoped(inner, pltpu.VMEM(PAGE.shape, f32), DMA)


@pytest.mark.parametrize(
    ("kernel", "quoted"),
    [
        (early, "`pltpu.make_async_copy( … ).start()`"),
        (never, "`pltpu.make_async_copy(x_hbm, … buffer, sem).start()"),
        (in_pieces, "`VMEM((8, 128), float32)`"),
    ],
)
def test_a_quote_can_be_found_in_the_kernel(kernel, quoted) -> None:
    scratch = [pltpu.VMEM(PAGE.shape, f32), DMA] * (kernel is not in_pieces)
    one = only(examine(call(kernel, PAGE, specs=[HBM], scratch=scratch), PAGE))
    assert (one.kind, quoted in one.says) == ("hazard", True), one.says


def by_map(table, x):
    spec = pl.BlockSpec((8, 128), lambda b, n, table: (table[b, n], 0))
    out = pl.BlockSpec((8, 128), lambda b, n, table: (7 * b + n, 0))
    kernel = lambda table, x_ref, o_ref: o_ref.__setitem__(..., x_ref[...])  # noqa: E731
    return call(kernel, S((112, 128), f32), (2, 7), [spec], out, scalars=1)(table, x)


def by_loop(table, x):
    def kernel(table, x_ref, o_ref):
        row = pl.program_id(0)
        add = lambda n, total: total + table[row, n]  # noqa: E731
        o_ref[...] = x_ref[...] * jax.lax.fori_loop(0, 7, add, 0)

    spec = pl.BlockSpec((8, 128), lambda b, table: (b, 0))
    return call(kernel, S((16, 128), f32), (2,), [spec], spec, scalars=1)(table, x)


@pytest.mark.parametrize("fn", [by_map, by_loop])
def test_an_entry_of_a_table_has_an_index_for_each_axis(fn) -> None:
    one = only(examine(fn, jnp.zeros((2, 6), i32), S((16, 128), f32)))
    assert (one.kind, one.operand, "`table[0, 6]`" in one.says) == ("out-of-bounds", "table", True)


def loads_rows(n_ref, x_ref, o_ref):
    o_ref[...] = x_ref[n_ref[...], :]


def copies_rows(n_ref, x_hbm, o_ref, buffer, sem):
    pltpu.make_async_copy(x_hbm.at[n_ref[...]], buffer, sem).start()
    pltpu.make_async_copy(x_hbm.at[n_ref[...]], buffer, sem).wait()
    o_ref[...] = buffer[...]


@pytest.mark.parametrize("in_hbm", [False, True])
@pytest.mark.parametrize("kernel", [loads_rows, copies_rows])
def test_an_array_of_indices_is_one_finding(kernel, in_hbm: bool) -> None:
    specs = [pl.BlockSpec(memory_space=pltpu.VMEM), HBM if in_hbm else pl.BlockSpec()]
    scratch = [pltpu.VMEM(PAGE.shape, f32), DMA] * (kernel is copies_rows)
    rows, fn = S((64, 128), f32), call(kernel, PAGE, specs=specs, scratch=scratch)
    one = only(examine(fn, jnp.arange(8), rows))
    assert (one.kind, one.operand) == ("lowering", kernel.__code__.co_varnames[1])
    assert one.remedy
    assert "512 bytes" not in one.says


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The contiguous inner slice in the DMA transfer must be divisible by 512 b", "128 lanes"),
        ("The dynamic offset times the element size is not a multiple of the memory space word "
         "size (4096 bits). If this originates from a memref_slice, try ...", "128 lanes"),
        ("Slice shape along dimension 1 must be aligned to tiling (128), but is 64.", "128 lanes"),
        ("Mosaic refuses the kernel: Regular semaphores in EnqueueDMA are not supported on this "
         "target.", "use `pltpu.SemaphoreType.DMA`"),
        ("Not implemented: Only 8-, 16- and 32-bit Iota supported", "jax_enable_x64"),
        ("failed to legalize operation 'func.return': (%0) : (i32, i64) -> ()", "jax_enable_x64"),
        ("Offsets along tiled dimensions must be aligned to tiles. Failed to verify that the index "
         "at dimension 0 is divisible by the tile dimension 8.", "`i * 8`"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", "MLIR module name `kernel` HLO name `function.1`"])
def test_a_sentence_of_libtpu_gets_a_cause_and_a_remedy(text, words, prefix) -> None:
    before = f"Mosaic failed to compile TPU kernel{' with ' + prefix if prefix else ''}: "
    said = refusal(before + text, "v5e")
    assert words in said
    assert "module name" not in said


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_libtpu_says_so_of_half_a_row_and_of_64_bits(monkeypatch) -> None:
    monkeypatch.setattr("puzzles._compile.compiler.has_libtpu", lambda: True)

    def half_a_row(x_hbm, o_ref, buffer, sem):
        pltpu.sync_copy(x_hbm.at[:, pl.ds(0, 64)], buffer)
        o_ref[...] = buffer[...]

    half, spec = S((8, 64), f32), pl.BlockSpec((8, 128), lambda i: (i, 0))
    fn = call(half_a_row, half, specs=[HBM], scratch=[pltpu.VMEM((8, 64), f32), DMA])
    assert "128 lanes" in only(examine(fn, S((8, 256), f32))).says
    x, copies = S((16, 128), f32), lambda x_ref, o_ref: o_ref.__setitem__(..., x_ref[...])
    fn = call(copies, x, (2,), [spec], spec)
    jax.config.update("jax_enable_x64", True)
    try:
        assert "64-bit" in only(examine(fn, x)).says
    finally:
        jax.config.update("jax_enable_x64", False)


def test_an_exception_keeps_the_lines_with_the_reason() -> None:
    def checked(x):
        raise TypeError("A check of `f` failed.\n\nIt is about the parameter `x`.\nExpected: int32")

    def tuned(x):
        try:
            return {}["TPU v9"]
        except KeyError as error:
            raise RuntimeError("no blocks are known") from error

    assert "about the parameter `x`.\nExpected: int32" in examine(checked, PAGE).unread
    assert "no blocks are known\nIts cause: KeyError: 'TPU v9'" in examine(tuned, PAGE).unread


def test_a_launch_that_cannot_be_read_has_the_name_of_its_kernel() -> None:
    def of_three(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...]

    with puzzles.examining(fail_on=None) as seen, pytest.raises(TypeError):
        pl.pallas_call(of_three, out_shape=PAGE, interpret=True)(jnp.ones(PAGE.shape))
    assert [one.headline for one in seen.examinations] == ["? of_three: it could not be read"]


@pytest.mark.parametrize(
    ("rows", "size", "hangs_over"), [(20, 8, True), (12, 8, False), (2, 1, False)]
)
def test_the_last_block_of_a_pipeline_may_hang_over(rows: int, size: int, hangs_over) -> None:
    def kernel(x_hbm, o_hbm):
        spec = pl.BlockSpec((size, 128), lambda i: (i, 0))
        body = lambda x_ref, o_ref: o_ref.__setitem__(..., x_ref[...])  # noqa: E731
        pltpu.emit_pipeline(body, grid=(3,), in_specs=[spec], out_specs=[spec])(x_hbm, o_hbm)

    found = examine(from_hbm(kernel, out_specs=HBM, out=S((rows, 128), f32)), S((rows, 128), f32))
    kinds = [one.kind for one in found.findings]
    assert kinds == ([] if hangs_over else ["out-of-bounds"])
    assert found.unseen == ("memory",) * hangs_over
