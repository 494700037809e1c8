"""Right kernels of kinds that `examine` once blamed, or could not read."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call

from puzzles import examine
from puzzles._launch import trace_call
from puzzles._simulator import simulate

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
X = S((32, 128), f32)
PAGES = S((3, 8, 128), f32)
ROW = pl.BlockSpec((8, 128), lambda i: (i, 0))
wait = pl.semaphore_wait if hasattr(pl, "semaphore_wait") else pltpu.semaphore_wait
signal = pl.semaphore_signal if hasattr(pl, "semaphore_signal") else pltpu.semaphore_signal
alone = pytest.mark.usefixtures("no_libtpu")


def gathered(waited: int, *, first: int = 0, signals: int = 0):
    """A launch that copies three pages on a REGULAR semaphore and waits for so many."""

    def kernel(x_hbm, o_ref, buf, sem):
        for n in range(3):
            pltpu.make_async_copy(x_hbm.at[n], buf.at[n], sem).start()
        if signals:
            signal(sem, signals)
        if first:
            wait(sem, first)
        wait(sem, waited - first)
        o_ref[...] = buf[...]

    scratch = [pltpu.VMEM(PAGES.shape, f32), pltpu.SemaphoreType.REGULAR]
    return call(kernel, PAGES, specs=[HBM], scratch=scratch)


@alone
@pytest.mark.parametrize("given", [dict(), dict(first=1), dict(signals=2)])
def test_copies_on_a_regular_semaphore_are_counted(given) -> None:
    found = examine(gathered(3 + given.get("signals", 0), **given), PAGES)
    # Mosaic of JAX 0.7 knows copies on DMA semaphores only
    assert [one for one in found.findings if one.kind != "lowering"] == []
    assert found.unseen == ()


@alone
@pytest.mark.parametrize("waited", [2, 4])
def test_a_wait_for_another_number_of_copies_is_a_hazard(waited) -> None:
    assert "hazard" in [one.kind for one in examine(gathered(waited), PAGES).findings]


def constant(o_ref):
    o_ref[...] = jnp.full(o_ref.shape, pl.program_id(0), o_ref.dtype)


def through_scratch(o_hbm, buf, sem):
    buf[...] = jnp.zeros_like(buf)
    start = pl.multiple_of(8 * pl.program_id(0), 8)
    pltpu.sync_copy(buf, o_hbm.at[pl.ds(start, 8)])


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("kernel", "spec", "scratch"),
    [
        (constant, ROW, []),
        (through_scratch, HBM, [pltpu.VMEM((8, 128), f32), pltpu.SemaphoreType.DMA]),
    ],
)
def test_a_kernel_without_inputs_compiles(kernel, spec, scratch) -> None:
    fn = call(kernel, X, (4,), (), spec, scratch)
    found = examine(fn, chips=("v5e", "v6e"))
    assert [one for one in found.findings if one.severity != "note"] == []
    assert "compile: libtpu, for v5e, v6e" in found.looked


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_a_layout_that_libtpu_takes_is_no_fault() -> None:
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    x, row = S((1024,), f32), pl.BlockSpec((256,), lambda i: (i,))
    found = examine(call(kernel, x, (4,), [row], row), x)
    refused = any(one.kind == "compile" for one in found.findings)
    assert refused == any(one.kind == "misaligned" for one in found.findings)


def by_table(table, x):
    """Blocks of `x` in the order of a table, each times the sum of its row."""

    def kernel(table, x_ref, o_ref):
        step = pl.program_id(0)
        add = lambda n, sum_: sum_ + table[step, n]  # noqa: E731
        o_ref[...] = x_ref[...] * jax.lax.fori_loop(0, table.shape[1], add, 0)

    spec = pl.BlockSpec((8, 128), lambda i, table: (table[i, 0], 0))
    out = pl.BlockSpec((8, 128), lambda i, table: (i, 0))
    return call(kernel, x, (4,), [spec], out, scalars=1)(table, x)


def backwards(table, x):
    body = lambda sum_, row: (sum_ + 1.0, by_table(row[0], row[1]) + sum_)  # noqa: E731
    return jax.lax.scan(body, 0.0, (table, x), reverse=True)[1]


@alone
@pytest.mark.parametrize("batched", [jax.vmap(by_table), backwards])
def test_tables_that_differ_in_each_turn_are_read_and_run(batched) -> None:
    table = jnp.asarray(np.random.default_rng(0).permutation(24).reshape(3, 4, 2) % 4, i32)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 32, 128)), f32)
    found = examine(batched, table, x)
    assert [one for one in found.findings if one.severity != "note"] == []
    assert (len(found.launches), found.unseen, found.unread) == (3, (), "")
    (ours,) = simulate(trace_call(batched, table, x))
    np.testing.assert_allclose(ours, batched(table, x), rtol=1e-6)


@alone
def test_a_table_in_a_long_loop_is_not_unrolled() -> None:
    table, x = jnp.zeros((9, 4, 2), i32), S((9, 32, 128), f32)
    assert "inside a `scan`" in examine(jax.vmap(by_table), table, x).unread


@alone
@pytest.mark.skipif(not hasattr(jax, "empty_ref"), reason="JAX makes no such Ref")
def test_a_kernel_on_refs_from_outside_is_said_to_be_unread() -> None:
    # `kernels_on_old_jax` adds a `TensorCoreMesh` to JAX 0.9, which `core_map` does not take
    has_own = jax.__version_info__ >= (0, 11)
    make = pltpu.TensorCoreMesh if has_own else pltpu.create_tensorcore_mesh

    def fn(x):
        x_hbm = jax.new_ref(x, memory_space=pltpu.HBM)
        o_hbm = jax.empty_ref(S(x.shape, x.dtype), memory_space=pltpu.HBM)

        @pl.core_map(mesh=make(axis_name="core", num_cores=1))
        def _():
            def inner(buf, sem):
                pltpu.async_copy(x_hbm, buf, sem).wait()
                pltpu.async_copy(buf, o_hbm, sem).wait()

            pl.run_scoped(inner, pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA)

        return jax.freeze(o_hbm)

    found = examine(fn, jnp.ones((8, 128), i32))
    assert found.code == 2
    assert "cannot read" in found.unread


def chooses_a_load(x_ref, y_ref, o_ref):
    even = pl.program_id(0) % 2 == 0
    o_ref[...] = jax.lax.cond(even, lambda x, y: x[...], lambda x, y: 2 * y[...], x_ref, y_ref)


def chooses_by_number(x_ref, y_ref, o_ref):
    def store(ref):
        return lambda: o_ref.__setitem__(..., ref[...])

    jax.lax.switch(pl.program_id(0) % 3, [store(x_ref), store(y_ref), store(x_ref)])


def chooses_a_copy(x_hbm, y_hbm, o_ref, buffer, sem):
    def copy(ref):
        return lambda: pltpu.sync_copy(ref.at[pl.ds(8 * pl.program_id(0), 8)], buffer)

    jax.lax.cond(pl.program_id(0) % 2 == 0, copy(x_hbm), copy(y_hbm))
    o_ref[...] = buffer[...]


@alone
@pytest.mark.parametrize("kernel", [chooses_a_load, chooses_by_number, chooses_a_copy])
def test_a_ref_that_is_chosen_among_several_is_read_and_run(kernel) -> None:
    copies = kernel is chooses_a_copy
    scratch = [pltpu.VMEM((8, 128), f32), pltpu.SemaphoreType.DMA] if copies else []
    fn = call(kernel, X, (4,), [HBM if copies else ROW] * 2, ROW, scratch)
    found = examine(fn, X, X)
    assert (found.unread, found.findings, found.unseen) == ("", (), ())


@alone
@pytest.mark.parametrize(("unchecked", "rows", "kinds"), [
    (True, 16, []), (False, 16, ["out-of-bounds"]), (True, 24, ["hazard"])
])  # fmt: skip
def test_a_wait_without_bounds_checks_counts_bytes_of_any_part(unchecked, rows, kinds) -> None:
    def kernel(count, x_hbm, o_ref, buf, sem):
        for n in range(2):
            pltpu.make_async_copy(x_hbm.at[n], buf.at[n], sem).start()
        both = buf.at[0, pl.ds(0, count[0])]
        pltpu.make_async_copy(both, both, sem).wait()
        o_ref[...] = buf[...]

    scratch = [pltpu.VMEM((2, 8, 128), f32), pltpu.SemaphoreType.DMA]
    params = pltpu.CompilerParams(disable_bounds_checks=unchecked)
    like = dict(specs=[HBM], scratch=scratch, scalars=1, compiler_params=params)
    found = examine(call(kernel, S((2, 8, 128), f32), **like), jnp.array([rows]), PAGES)
    assert [one.kind for one in found.findings if one.severity == "error"] == kinds
