from __future__ import annotations

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call, copy_kernel, refused, simulated, traced

from puzzles._simulator import simulate, simulator

FORM = jax.ShapeDtypeStruct((256, 256), jnp.float32)
X = jnp.asarray(np.random.default_rng(0).normal(size=(256, 256)), jnp.float32)
TILE = pl.BlockSpec((128, 128), lambda i, j: (i, j))
COPY = (pltpu.VMEM((128, 128), jnp.float32), pltpu.SemaphoreType.DMA)


def launch(kernel=copy_kernel, x=TILE, o=TILE, scratch=(), **params):
    """A launch of `kernel` on one (256, 256) array."""
    params = pltpu.CompilerParams(**params)
    return call(kernel, FORM, (2, 2), [x], o, scratch, compiler_params=params)


def loads(x_ref, o_ref):
    o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 64, 128)]


def stores(x_ref, o_ref, start=100):
    o_ref[...] = x_ref[...]
    o_ref[pl.ds(start * pl.program_id(1), 64)] = x_ref[:64]


@pytest.mark.parametrize(
    ("kernel", "name", "step", "says"),
    [
        (loads, "x_ref", (1, 0), "`x_ref[64:192, 0:128]` at grid step (1, 0)"),
        (loads, "x_ref", (1, 0), "in `o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 64, 128)]`"),
        (stores, "o_ref", (0, 1), "`o_ref[100:164, 0:128]`"),
        (partial(stores, start=-1), "o_ref", (0, 1), "`o_ref[-1:63, 0:128]`"),
    ],
)
def test_what_lies_outside_a_block_is_named_with_its_line(kernel, name, step, says):
    error = refused(launch(kernel), X).finding
    assert (error.kind, error.operand, error.step) == ("out-of-bounds", name, step)
    assert says in error.words


def scoped(x_ref, o_ref):
    def body(buffer):
        buffer[...] = x_ref[:128, :128]
        o_ref[...] = buffer[...]

    pl.run_scoped(body, pltpu.VMEM((128, 128), jnp.float32))


def one_step(x_ref, o_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        o_ref[...] = x_ref[:128, :128]


def by_array(x_ref, o_ref):
    o_ref[...] = x_ref[jnp.arange(128)]


@pytest.mark.parametrize(("kernel", "x"), [(one_step, HBM), (scoped, HBM), (by_array, TILE)])
def test_a_ref_in_hbm_is_not_indexed(kernel, x):
    """Nor any by an array."""
    error = refused(launch(kernel, x=x), X).finding
    assert (error.kind, error.operand) == ("lowering", "x_ref")


def test_after_an_error_the_next_run_is_clean_and_nothing_is_printed(caplog, capsys):
    off = pl.BlockSpec((128, 128), lambda i, j: (i + 1, j))
    for _ in range(2):
        refused(launch(x=off), X)
        np.testing.assert_array_equal(simulated(launch(), X), X)
    assert not caplog.records
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("words", [("parallel", "arbitrary"), ("arbitrary", "arbitrary")])
def test_vmap_of_a_launch_whose_axes_have_words(words):
    batch = jnp.stack([X, 2 * X])
    fn = jax.vmap(launch(dimension_semantics=words))
    np.testing.assert_array_equal(simulated(fn, batch), batch)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_around_a_launch(reverse):
    def sums(x, rows):
        def step(total, row):
            return (launch()(total + row), total[0])

        return jax.lax.scan(step, x, rows, reverse=reverse)

    rows = jnp.arange(3, dtype=jnp.float32)
    for got, want in zip(simulate(traced(sums, X, rows)), sums(X, rows), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_shapes_alone_are_not_simulated():
    with pytest.raises(TypeError, match="needs data"):
        simulated(launch(), FORM)


@sample.in_turn
def test_importing_starts_no_backend():
    code = "import puzzles\nfrom jax._src import xla_bridge\nassert not xla_bridge._backends"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_cpu_dispatches_in_order_so_that_no_callback_waits_for_its_caller():
    assert jax.config.values["jax_cpu_enable_async_dispatch"] is False


def test_a_wait_for_more_than_comes_is_told_where_copies_are_not_followed(monkeypatch):
    """As many waits as starts, and too few bytes; the TPU would hang."""

    def kernel(x_ref, o_ref, buffer, semaphore):
        pltpu.make_async_copy(x_ref.at[:8, :128], buffer.at[:8], semaphore).start()
        pltpu.make_async_copy(x_ref.at[:128, :128], buffer, semaphore).wait()
        o_ref[...] = buffer[...]

    monkeypatch.setattr(simulator, "copied", lambda _: None)
    says = refused(launch(kernel, x=HBM, scratch=COPY), X).says
    assert "waits for 65,536 bytes, but the copies in flight on that semaphore carry 4,096" in says
    assert "in `pltpu.make_async_copy(x_ref.at[:128, :128], buffer, semaphore).wait()`" in says


def test_a_semaphore_that_is_not_there_is_told_where_copies_are_not_followed(monkeypatch):
    def kernel(x_ref, o_ref, buffer, semaphores):
        copy = pltpu.make_async_copy(x_ref.at[:128, :128], buffer, semaphores.at[2])
        copy.start()
        copy.wait()
        o_ref[...] = buffer[...]

    monkeypatch.setattr(simulator, "copied", lambda _: None)
    scratch = [COPY[0], pltpu.SemaphoreType.DMA((2,))]
    says = refused(launch(kernel, x=HBM, scratch=scratch), X).says
    assert "`semaphores[2]` is used at grid step (0, 0), in `copy.start()`, but there is no" in says


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ("waits", "waits for a semaphore that nothing signals"),
        ("signals", "ends with a semaphore that is not back at zero"),
    ],
)
def test_a_semaphore_is_waited_for_as_often_as_it_is_signalled(capsys, kernel, says):
    def unequal(x_ref, o_ref, semaphore):
        o_ref[...] = x_ref[...]
        if kernel == "signals":
            pl.semaphore_signal(semaphore)
        else:
            pl.semaphore_wait(semaphore)

    assert says in refused(launch(unequal, scratch=[pltpu.SemaphoreType.REGULAR]), X).says
    assert capsys.readouterr() == ("", "")
