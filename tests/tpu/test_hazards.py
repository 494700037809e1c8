"""Copies in flight: what the simulator refuses while one is, and that it refuses nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import one as launch_of

from puzzles._launch import as_tpu, trace_call
from puzzles._tpu import SimulationError, simulate, timeline
from puzzles._tpu.hazards import Flights, Stuck

BM = 16
HBM = pl.BlockSpec(memory_space=pl.ANY)
X = jnp.asarray(np.random.default_rng(1).normal(size=(7 * BM, 256)), jnp.float32)
GOOD = "good"


def stream(variant):
    """The sum of X's blocks of rows, one copy ahead, with one thing done differently."""

    def kernel(x_ref, o_ref, buf, sems):
        count = x_ref.shape[0] // BM

        def fetch(i, slot):
            sem = sems.at[0 if variant == "one semaphore" else slot]
            rows = BM + 8 if variant == "waits for more" and not isinstance(i, int) else BM
            return pltpu.make_async_copy(
                x_ref.at[pl.ds(i * BM, rows)], buf.at[slot, pl.ds(0, rows)], sem
            )

        def ahead(i, slot):
            if variant == "prefetches into the slot in use":
                fetch(i + 1, slot).start()
            elif variant == "signals the other semaphore":
                source = x_ref.at[pl.ds((i + 1) * BM, BM)]
                pltpu.make_async_copy(source, buf.at[1 - slot, pl.ds(0, BM)], sems.at[slot]).start()
            else:
                fetch(i + 1, 1 - slot).start()

        def wait(i, slot):
            if variant == "waits for the next":
                pl.when(i + 1 < count)(lambda: fetch(i + 1, 1 - slot).wait())
            elif variant != "never waits":
                fetch(i, slot).wait()

        fetch(0, 0).start()
        o_ref[...] = jnp.zeros_like(o_ref)

        def body(i, _):
            slot = lax.rem(i, 2)
            if variant == "prefetches past the end":
                ahead(i, slot)
            elif variant != "waits before it prefetches":
                pl.when(i + 1 < count)(lambda: ahead(i, slot))
            if variant != "waits after the use":
                wait(i, slot)
            if variant == "waits before it prefetches":
                pl.when(i + 1 < count)(lambda: ahead(i, slot))
            o_ref[...] += buf[slot, pl.ds(0, BM)]
            if variant == "waits after the use":
                wait(i, slot)
            return 0

        lax.fori_loop(0, count, body, 0)
        if variant == "waits once too often":
            fetch(0, 0).wait()
        if variant == "starts one more":
            fetch(0, 0).start()

    return lambda x: pl.pallas_call(
        kernel,
        in_specs=[HBM],
        scratch_shapes=[
            pltpu.VMEM((2, BM + 8, x.shape[1]), x.dtype),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        out_shape=jax.ShapeDtypeStruct((BM, x.shape[1]), x.dtype),
        interpret=True,
    )(x)


def simulated(fn, *args, eager=False):
    with as_tpu():
        traced = trace_call(fn, *args)
    return simulate(traced, eager=eager)


def refused(fn, *args, eager=False):
    with pytest.raises(SimulationError) as caught:
        simulated(fn, *args, eager=eager)
    return caught.value


START = "fetch(0, 0).start()"
USE = (
    "`o_ref[...] += buf[slot, pl.ds(0, BM)]` reads `buf[0, 0:16]`, and the copy into it, started "
    f"in `{START}`"
)
SAYS = {
    "never waits": USE,
    "waits after the use": USE,
    "waits for the next": USE,
    "one semaphore": "There was a wait on its semaphore, but 2 copies were in flight on it",
    "signals the other semaphore": "and any of them may have ended that wait: give each its own",
    "prefetches into the slot in use": "starts writes `buf[0, 0:16]`, and the copy",
    "prefetches past the end": "outside `x_ref`, which has shape (112, 256): `x_ref[112:128",
    "waits once too often": "waits for a copy that is not on its way",
    "starts one more": f"ends with a copy that nobody waited for: it was started in `{START}`",
    "waits for more": "waits for 24,576 bytes where the copies in flight on that",
}


@pytest.mark.parametrize("variant", SAYS)
def test_a_hazard_is_named_with_both_lines_however_copies_run_and_without_running(variant):
    fn, says = stream(variant), SAYS[variant]
    for eager in (False, True):
        assert says in refused(fn, X, eager=eager).says
    followed = timeline(launch_of(fn, X))
    assert any(says in fault.says for fault in followed.faults)
    assert ("never gets beyond" in followed.unknown) == says.startswith("waits for ")


@pytest.mark.parametrize("variant", [GOOD, "waits before it prefetches"])
def test_right_streams_are_left_alone(variant):
    want = np.asarray(X).reshape(7, BM, -1).sum(0)
    for eager in (False, True):
        (out,) = simulated(stream(variant), X, eager=eager)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    followed = timeline(launch_of(stream(variant), X))
    assert (followed.faults, followed.unknown) == ((), "")


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


def test_a_scope_does_not_end_before_its_copies_and_its_buffer_has_its_name():
    def kernel(x_ref, o_ref, sems):
        def body(tmp):
            pltpu.make_async_copy(x_ref, tmp, sems.at[0]).start()

        pl.run_scoped(body, pltpu.VMEM(X.shape, X.dtype))
        pltpu.sync_copy(x_ref, o_ref)

    says = refused(copied(kernel), X).says
    assert "frees `tmp`, and the copy into it" in says
    assert "Wait for it inside the scope." in says


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


def test_each_device_has_its_own_buffers_and_semaphores():
    flights = Flights()
    for buffer in (0, 1):
        flights.allocated(buffer, np.zeros((8, 128), np.float32))
    ends = dict(src_id=0, dst_id=1, src_transforms=(), dst_transforms=(), dst_sem_id=2)
    flights.seen("dma_start", dict(ends, device_id=0))
    read = dict(buffer_id=1, transforms=(), source_info=object())
    flights.seen("get", dict(read, device_id=1))
    with pytest.raises(Stuck):
        flights.seen("dma_wait", dict(device_id=1, sem_id=2, size=4096))
    flights.seen("dma_wait", dict(device_id=0, sem_id=2, size=4096))
    flights.seen("get", dict(read, device_id=0))
    flights.nothing_left()
