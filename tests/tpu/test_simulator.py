from __future__ import annotations

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles._launch import as_tpu, trace_call
from puzzles._tpu import SimulationError, simulate, simulator, watch

X = jnp.asarray(np.random.default_rng(0).normal(size=(256, 256)), jnp.float32)
TILE = pl.BlockSpec((128, 128), lambda i, j: (i, j))
HBM = pl.BlockSpec(memory_space=pl.ANY)
COPY = (pltpu.VMEM((128, 128), jnp.float32), pltpu.SemaphoreType.DMA)


def copy_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def launch(kernel=copy_kernel, x=TILE, o=TILE, grid=(2, 2), scratch=(), interpret=True, **params):
    """A function of one (256, 256) array that launches `kernel`."""

    def run(array):
        return pl.pallas_call(
            kernel,
            grid=grid,
            in_specs=[x],
            out_specs=o,
            out_shape=jax.ShapeDtypeStruct((256, 256), jnp.float32),
            scratch_shapes=list(scratch),
            compiler_params=pltpu.CompilerParams(**params),
            interpret=interpret,
        )(array)

    return run


def simulated(fn, *args):
    with as_tpu():
        traced = trace_call(fn, *args)
    return simulate(traced)


def refused(fn, *args):
    with pytest.raises(SimulationError) as caught:
        simulated(fn, *args)
    return caught.value.finding


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
    error = refused(launch(kernel), X)
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
    error = refused(launch(kernel, x=x), X)
    assert (error.kind, error.operand) == ("lowering", "x_ref")


def test_after_an_error_the_next_run_is_clean_and_nothing_is_printed(caplog, capsys):
    off = pl.BlockSpec((128, 128), lambda i, j: (i + 1, j))
    for _ in range(2):
        refused(launch(x=off), X)
        np.testing.assert_array_equal(simulated(launch(), X)[0], X)
    assert not caplog.records
    assert capsys.readouterr() == ("", "")


def test_after_an_interrupt_the_next_run_is_clean(monkeypatch):
    def interrupt(self, *given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(watch.Watch, "here", interrupt)
        with pytest.raises(KeyboardInterrupt):
            simulated(launch(), X)
    np.testing.assert_array_equal(simulated(launch(), X)[0], X)


def test_an_unknown_exception_is_one_line(monkeypatch):
    def fail(self, *given):
        raise RuntimeError("something new\nwith much detail")

    monkeypatch.setattr(watch.Watch, "here", fail)
    with pytest.raises(SimulationError) as caught:
        simulated(launch(), X)
    assert caught.value.finding is None  # the simulator stops, not the kernel
    assert caught.value.says == "The TPU simulator stops: RuntimeError: something new"


@pytest.mark.parametrize("words", [("parallel", "arbitrary"), ("arbitrary", "arbitrary")])
def test_vmap_of_a_launch_whose_axes_have_words(words):
    batch = jnp.stack([X, 2 * X])
    fn = jax.vmap(launch(dimension_semantics=words))
    np.testing.assert_array_equal(simulated(fn, batch)[0], batch)


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_and_branches_around_a_launch(reverse):
    def sums(x, rows):
        def step(total, row):
            return (launch()(total + row), total[0])

        return jax.lax.scan(step, x, rows, reverse=reverse)

    rows = jnp.arange(3, dtype=jnp.float32)
    for got, want in zip(simulated(sums, X, rows), sums(X, rows), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)

    def doubled(x, n):
        def more(state):
            return state[0] < n

        return jax.lax.while_loop(
            more, lambda state: (state[0] + 1, 2 * launch()(state[1])), (0, x)
        )

    np.testing.assert_allclose(simulated(doubled, X, jnp.int32(2))[1], 4 * X, rtol=1e-6)

    def maybe(x, yes):
        return jax.lax.cond(yes, launch(), lambda x: -x, x)

    np.testing.assert_array_equal(simulated(maybe, X, jnp.bool_(True))[0], X)
    np.testing.assert_array_equal(simulated(maybe, X, jnp.bool_(False))[0], -X)


def test_parallel_axes_run_in_the_order_of_the_seed_and_steps_stay_right():
    traced = trace_call(launch(loads, dimension_semantics=("parallel", "parallel")), X)
    for seed in range(4):
        with pytest.raises(SimulationError) as caught:
            simulate(traced, seed=seed)
        assert caught.value.finding.step[0] == 1


def test_results_without_a_kernel_and_of_many_dtypes():
    def fn(x):
        return (x.astype(jnp.bfloat16), jnp.arange(3), x > 0)

    out = simulated(fn, X)
    assert [str(x.dtype) for x in out] == ["bfloat16", "int32", "bool"]


def test_shapes_alone_are_not_simulated():
    with pytest.raises(TypeError, match="needs data"):
        simulated(launch(), jax.ShapeDtypeStruct((256, 256), jnp.float32))


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
    says = refused(launch(kernel, x=HBM, scratch=COPY), X).words
    assert "waits for a copy that is not on its way, or for more than it brings" in says
    line = "in `pltpu.make_async_copy(x_ref.at[:128, :128], buffer, semaphore).wait()`"
    assert line in says or jax.__version_info__ < (0, 8)  # there the simulator knows no line


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

    assert says in refused(launch(unequal, scratch=[pltpu.SemaphoreType.REGULAR]), X).words
    assert capsys.readouterr() == ("", "")
