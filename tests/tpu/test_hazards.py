"""Copies in flight: what the simulator refuses while one is, and that it refuses nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import traced

import puzzles
from puzzles._tpu import SimulationError, simulate, timeline

HBM = pl.BlockSpec(memory_space=pl.ANY)
X = jnp.asarray(np.random.default_rng(1).normal(size=(112, 256)), jnp.float32)


def simulated(fn, *args):
    return simulate(traced(fn, *args))


def refused(fn, *args):
    with pytest.raises(SimulationError) as caught:
        simulated(fn, *args)
    return caught.value


def faults(fn, *args):
    """What a timeline of all launches finds, without running any."""
    followed = [timeline(launch) for launch in traced(fn, *args).launches]
    return [one for copies in followed if copies for one in copies.faults]


def test_what_rungs_do_has_no_hazards():
    for puzzle in puzzles.ladder("pipelines"):
        if puzzle.kernel and puzzle.launches is None:
            assert faults(puzzle.solution, *puzzle.arguments(0)) == []


def copied(body, *scratch):
    return lambda x: pl.pallas_call(
        body, in_specs=[HBM], out_specs=HBM, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[*scratch, pltpu.SemaphoreType.DMA((2,))], interpret=True,
    )(x)  # fmt: skip


def test_a_buffer_on_its_way_out_is_not_written():
    def kernel(x_ref, o_ref, buf, sems):
        pltpu.sync_copy(x_ref, buf)
        out = {0: pltpu.make_async_copy(buf, o_ref, sems.at[0])}
        {0: out[0]}[0].start()  # a line with braces
        buf[...] = buf[...] + 1.0
        out[0].wait()

    says = refused(copied(kernel, pltpu.VMEM(X.shape, X.dtype)), X).says
    assert "`buf[...] = buf[...] + 1.0` writes `buf`, and the copy out of it" in says
    assert "started in `{0: out[0]}[0].start()  # a line with braces`, has not been" in says


@pytest.mark.parametrize(
    ("first", "rows", "says"),
    [
        (0, 8, "waits for 114,688 bytes where the copies in flight on that semaphore bring 8,192"),
        (56, 112, "outside `x_ref`, which has shape (112, 256): `x_ref[56:168"),
    ],
)
def test_a_copy_and_its_wait_are_of_one_size_and_inside_their_arrays(first, rows, says):
    def kernel(x_ref, o_ref, buf, sems):
        @pl.loop(0, 1)
        def _(i):
            part = x_ref.at[pl.ds(first + i, rows)]
            pltpu.make_async_copy(part, buf.at[pl.ds(0, rows)], sems.at[0]).start()

        pltpu.make_async_copy(x_ref, buf, sems.at[0]).wait()
        pltpu.sync_copy(buf, o_ref)

    fn = copied(kernel, pltpu.VMEM(X.shape, X.dtype))
    assert says in refused(fn, X).says
    assert says in faults(fn, X)[0].says


def test_a_buffer_on_its_way_out_may_be_read():
    def kernel(x_ref, o_ref, buf, sems):
        pltpu.sync_copy(x_ref, buf)
        out = pltpu.make_async_copy(buf, o_ref, sems.at[0])
        out.start()
        kept = buf[...]
        out.wait()
        buf[...] = kept

    np.testing.assert_array_equal(simulated(copied(kernel, pltpu.VMEM(X.shape, X.dtype)), X)[0], X)


def test_two_halves_of_a_buffer_are_two_places():
    def kernel(x_ref, o_ref, buf, sems):
        halves = [pl.ds(0, 56), pl.ds(56, 56)]
        ins = [
            pltpu.make_async_copy(x_ref.at[h], buf.at[h], sems.at[n]) for n, h in enumerate(halves)
        ]
        for one in ins:
            one.start()
        for n, (one, h) in enumerate(zip(ins, halves, strict=True)):
            one.wait()
            buf[h] = buf[h] * 2.0
            pltpu.make_async_copy(buf.at[h], o_ref.at[h], sems.at[n]).start()
        for n, h in enumerate(halves):
            pltpu.make_async_copy(buf.at[h], o_ref.at[h], sems.at[n]).wait()

    (out,) = simulated(copied(kernel, pltpu.VMEM(X.shape, X.dtype)), X)
    np.testing.assert_array_equal(out, 2 * X)


def test_copies_of_one_semaphore_are_over_when_all_are_waited_for():
    def kernel(x_ref, o_ref, buf, sems):
        halves = [pl.ds(0, 56), pl.ds(56, 56)]
        for h in halves:
            pltpu.make_async_copy(x_ref.at[h], buf.at[h], sems.at[0]).start()
        pltpu.make_async_copy(x_ref, buf, sems.at[0]).wait()  # the bytes of both
        pltpu.sync_copy(buf, o_ref)

    (out,) = simulated(copied(kernel, pltpu.VMEM(X.shape, X.dtype)), X)
    np.testing.assert_array_equal(out, X)


def test_a_copy_into_a_scope_is_waited_for():
    def kernel(x_ref, o_ref, sems):
        def body(tmp):
            pltpu.make_async_copy(x_ref, tmp, sems.at[0]).start()

        pl.run_scoped(body, pltpu.VMEM(X.shape, X.dtype))
        pltpu.sync_copy(x_ref, o_ref)

    says = refused(copied(kernel), X).says
    assert "started in `pltpu.make_async_copy(x_ref, tmp, sems.at[0]).start()`" in says


def test_an_array_in_hbm_that_is_being_written_is_not_read():
    def kernel(x_ref, o_ref, buf, sems):
        pltpu.sync_copy(x_ref, buf)
        out = pltpu.make_async_copy(buf, o_ref, sems.at[0])
        out.start()
        again = pltpu.make_async_copy(o_ref, buf, sems.at[1])
        again.start()
        out.wait()
        again.wait()

    says = refused(copied(kernel, pltpu.VMEM(X.shape, X.dtype)), X).says
    assert "The copy that `again.start()` starts reads `o_ref`, and the copy into it" in says
