"""Copies in flight: what the simulator refuses while one is, and that it refuses nothing else."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
import verdicts
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import traced

import puzzles
from puzzles._tpu import SimulationError, simulate, timeline

HBM = pl.BlockSpec(memory_space=pl.ANY)
X = jnp.asarray(np.random.default_rng(1).normal(size=(112, 256)), jnp.float32)
ON_RECORD = {
    which: line.split("\t")[4]
    for which, line in verdicts.on_record("pipelines").items()
    if line.split("\t")[3] == "hazard"
    and which[0] != "gapless_attention"  # its slot is kept in SMEM: only running it tells
}
assert len(ON_RECORD) > 30


def simulated(fn, *args, eager=False):
    return simulate(traced(fn, *args), eager=eager)


def refused(fn, *args, eager=False):
    with pytest.raises(SimulationError) as caught:
        simulated(fn, *args, eager=eager)
    return caught.value


def faults(fn, *args):
    """What a timeline of all launches finds, without running any."""
    followed = [timeline(launch) for launch in traced(fn, *args).launches]
    return [one for copies in followed if copies for one in copies.faults]


@pytest.mark.graduate
@pytest.mark.parametrize("which", sample.share(list(ON_RECORD), 3), ids="-".join)
def test_a_hazard_has_the_same_words_however_copies_run_and_without_running(which):
    puzzle = puzzles.find(which[0])
    fn = puzzles.mutate(puzzle, puzzle.mistake(which[1]))
    told = {}  # which line of a helper is quoted, the judge decides
    for case in range(len(puzzle.cases)):
        args = puzzle.arguments(case)
        for one in faults(fn, *args)[:1]:
            told.setdefault(unquoted(one.says), (one.says, args))
    says, args = told[unquoted(ON_RECORD[which])]
    for eager in (False, True):
        seen = refused(fn, *args, eager=eager).says
        # The simulator of JAX 0.7 does not know the line of a wait without a start.
        assert seen == says or (OLD and unquoted(seen) == unquoted(says))


OLD = jax.__version_info__ < (0, 8)


def unquoted(says: str) -> str:
    return re.sub("(, in )?`[^`]+`", "", says)


def copied(body, *scratch):
    return lambda x: pl.pallas_call(
        body, in_specs=[HBM], out_specs=HBM, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[*scratch, pltpu.SemaphoreType.DMA((2,))], interpret=True,
    )(x)  # fmt: skip


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


def test_a_copy_into_a_scope_is_waited_for():
    def kernel(x_ref, o_ref, sems):
        def body(tmp):
            pltpu.make_async_copy(x_ref, tmp, sems.at[0]).start()

        pl.run_scoped(body, pltpu.VMEM(X.shape, X.dtype))
        pltpu.sync_copy(x_ref, o_ref)

    says = refused(copied(kernel), X).says
    assert "started in `pltpu.make_async_copy(x_ref, tmp, sems.at[0]).start()`" in says
