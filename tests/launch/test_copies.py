"""Copies that kernels make by hand or by `emit_pipeline`: counts equal to those made by hand."""

from __future__ import annotations

from random import Random

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call, copy_kernel, from_hbm, reference
from launched import one as one_launch

from puzzles._launch import Launch

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct


def test_a_pipeline_in_a_kernel_is_counted_block_by_block():
    # The grid (3, 4, 2): a's index changes at each of the 24 steps (64 x 128 f32), b's as well
    # (128 x 128 f32), and the output's 12 times.
    one = reference("pipelined_matmul", S((192, 256), f32), S((256, 512), f32))
    assert one.hbm_bytes_read == 24 * 64 * 128 * 4 + 24 * 128 * 128 * 4
    assert one.hbm_bytes_written == 192 * 512 * 4
    assert [o.transfers for o in one.inputs + one.outputs] == [24, 24, 12]
    assert one.dots[0].executed.tolist() == [24]
    assert all("emit_pipeline" in copy.line or ")(a_ref, b_ref, o_ref)" in copy.line
               for copy in one.copies)  # fmt: skip


def test_a_pipeline_too_long_to_follow_is_bounded():
    # 32 * 16 * 16 steps: each would fetch (64, 128) and (128, 128), if no index ever stayed.
    one = reference("pipelined_matmul", S((2048, 2048), f32), S((2048, 2048), f32))
    assert not one.exact
    if one.unknown_loops:  # on 0.7 it is a `while`, of which one turn is counted
        assert one.least.dot_flops == 0 < one.dot_flops
        return
    most = 8192 * (64 + 128) * 128 * 4
    assert most <= one.hbm_bytes_read < 1.01 * most
    assert one.least.hbm_bytes_read < one.hbm_bytes_read
    assert one.bound == "at most"
    assert one.dot_flops == one.least.dot_flops == 2 * 2048**3


def test_a_pipeline_is_as_long_as_the_data_say_or_no_certain_traffic():
    # 1 + 3 + 0 + 2 blocks of 64 x 128 f32; four lengths are prefetched.
    x = S((4, 256, 128), f32)
    one = reference("ragged_row_sums", x, jnp.array([64, 192, 0, 128], i32))
    assert one.hbm_bytes_read == 6 * 64 * 128 * 4 + 4 * 4
    assert sum(copy.executed for copy in one.copies).tolist() == [1, 3, 0, 2]
    assert one.exact
    blind = reference("ragged_row_sums", x, S((4,), i32))
    assert not blind.exact
    assert blind.unknown_loops
    assert blind.hbm_bytes_read > blind.least.hbm_bytes_read == 16  # the lengths alone
    assert blind.least.least is blind.least


def test_the_last_block_of_a_pipeline_moves_as_much_as_is_there():
    # 300 rows in blocks of 128: the last has 44, which Mosaic rounds up to a tile of 8 rows, 48.
    def kernel(x_ref, o_ref):
        spec = pl.BlockSpec((128, 128), lambda i, j: (i, j))
        pipeline = pltpu.emit_pipeline(copy_kernel, grid=(3, 2), in_specs=[spec], out_specs=[spec])
        pipeline(x_ref, o_ref)

    one = one_launch(from_hbm(kernel, out_specs=HBM), S((300, 256), f32))
    assert one.hbm_bytes_read == one.hbm_bytes_written == (256 + 48) * 256 * 4
    assert {copy.bytes_each for copy in one.copies} == {128 * 128 * 4, 48 * 128 * 4}


def test_a_slice_whose_size_depends_on_data_is_at_most_its_axis():
    def kernel(x_ref, o_ref, rows_ref, sem):
        rows_ref[...] = jnp.zeros_like(rows_ref)
        size = pl.multiple_of(8 * jnp.minimum(jnp.sum(rows_ref[...]).astype(i32), 2), 8)
        source, target = x_ref.at[pl.ds(0, size)], o_ref.at[pl.ds(0, size)]
        copy = pltpu.make_async_copy(source, target, sem)
        copy.start()
        copy.wait()

    scratch, out = (pltpu.VMEM((8, 128), f32), pltpu.SemaphoreType.DMA), S((16, 128), f32)
    one = one_launch(from_hbm(kernel, *scratch, out=out, out_specs=HBM), S((64, 128), f32))
    (copy,) = one.copies
    assert (copy.exact, copy.bytes_each) == (False, 16 * 128 * 4)  # the smaller of both ends
    assert not one.exact
    assert (one.hbm_bytes_read, one.hbm_bytes_written) == (16 * 128 * 4,) * 2  # both are in HBM
    assert one.least.hbm_bytes == 0


def test_scalars_that_a_copy_overwrites_are_forgotten_and_those_that_it_reads_are_not():
    def fn(n, m, x):
        def kernel(n_ref, m_ref, far_ref, x_ref, o_ref, scalars):
            pltpu.sync_copy(far_ref, n_ref)
            pltpu.sync_copy(m_ref, scalars)
            o_ref[...] = x_ref[...]
            for ref in (n_ref, m_ref):

                @pl.when(ref[0] > 0)
                def _():
                    o_ref[...] += x_ref[...]

        specs, scratch = [HBM, pl.BlockSpec()], [pltpu.SMEM((8,), i32)]
        return call(kernel, x, (1,), specs, pl.BlockSpec(), scratch, scalars=2)(n, m, n, x)

    one = one_launch(fn, jnp.zeros(8, i32), jnp.ones(8, i32), S((8, 128), f32))
    assert (one.flops, one.least.flops) == (2 * 1024, 1024)
    ends = {(copy.source, copy.target): copy.spaces for copy in one.copies}
    assert ends == {("far_ref", "n_ref"): ("hbm", "smem"), ("m_ref", "scalars"): ("smem", "smem")}


# Any order of starts, work and waits, and the counts of a replay.


def schedule(r: Random, steps: int) -> list[tuple]:
    """Events of some steps: ("start", ref, row, rows, slot), ("wait", slot), ("work",)."""
    flying: dict[int, tuple] = {}
    done = []
    for step in range(steps):
        for _ in range(r.randint(0, 5)):
            kind = r.choice(["start", "start", "wait", "wait", "work"])
            free = [slot for slot in range(3) if slot not in flying]
            if kind == "start" and free:
                slot = r.choice(free)
                flying[slot] = r.choice("xy"), 8 * r.randint(0, 6), r.choice([8, 16]), slot
                done.append((step, "start", *flying[slot]))
            elif kind == "wait" and flying:
                slot = r.choice(list(flying))
                done.append((step, "wait", *flying.pop(slot)))
            elif kind == "work":
                done.append((step, "work"))
    return done + [(steps - 1, "wait", *copy) for copy in flying.values()]


def scheduled(actions: list[tuple], steps: int) -> Launch:
    def kernel(x_ref, y_ref, o_ref, buf, sems):
        o_ref[...] = jnp.zeros_like(o_ref)
        for step, kind, *copy in actions:

            def act(kind=kind, copy=copy):
                if kind == "work":
                    o_ref[...] += 1.0
                    return
                name, row, rows, slot = copy
                more = {"x": x_ref, "y": y_ref}[name].at[pl.ds(row, rows + 8)]
                source = more.at[pl.ds(pl.program_id(0), rows)]
                target = buf.at[slot, pl.ds(0, rows)]
                getattr(pltpu.make_async_copy(source, target, sems.at[slot]), kind)()

            pl.when(pl.program_id(0) == step)(act)

    first = pl.BlockSpec((8, 128), lambda i: (0, 0))
    scratch = [pltpu.VMEM((3, 16, 128), f32), pltpu.SemaphoreType.DMA((3,))]
    fn = call(kernel, S((8, 128), f32), (steps,), [HBM, HBM], first, scratch)
    return one_launch(fn, *[S((80, 128), f32)] * 2)


def test_copies_and_waits_are_those_of_a_replay():
    exposed = hidden = 0
    for seed in range(40):
        r = Random(seed)
        steps = r.randint(1, 4)
        actions = schedule(r, steps)
        launch = scheduled(actions, steps)
        flying, in_flight, found, work = {}, [], {}, 0
        for _, kind, *copy in actions:
            if kind == "work":
                work += 1
                continue
            name, *_, slot = copy
            if kind == "start":
                flying[slot] = name, work
                continue
            in_flight.append(len(flying))
            most = sum(one == name for one, _ in flying.values())
            count, alone, before = found.get(name, (0, 0, 0))
            nothing_done = flying.pop(slot)[1] == work
            found[name] = count + 1, alone + nothing_done, max(before, most)
        assert list(launch.in_flight) == in_flight
        waits = {name: (one.count, one.exposed, one.most) for name, one in launch.waits.items()}
        assert waits == {f"{name}_ref": counts for name, counts in found.items()}
        started = [(step, copy[2]) for step, kind, *copy in actions if kind == "start"]
        assert launch.hbm_bytes_read == sum(rows for _, rows in started) * 128 * 4
        executed = sum((copy.executed for copy in launch.copies), np.zeros(steps, int))
        assert executed.tolist() == [sum(at == n for at, _ in started) for n in range(steps)]
        assert all(copy.exact and copy.spaces == ("hbm", "vmem") for copy in launch.copies)
        assert {copy.line for copy in launch.copies} <= {
            "getattr(pltpu.make_async_copy(source, target, sems.at[slot]), kind)()"
        }
        exposed += sum(one.exposed for one in launch.waits.values())
        hidden += sum(one.count - one.exposed for one in launch.waits.values())
    assert min(exposed, hidden) > 20


def test_where_data_decide_no_copies_are_in_flight():
    def kernel(x_ref, go_ref, o_ref, buf):
        @pl.when(go_ref[0, 0] > 0)
        def _():
            pltpu.sync_copy(x_ref, buf)

        o_ref[...] = buf[...]

    def run(x, go):
        return pl.pallas_call(
            kernel, in_specs=[HBM, pl.BlockSpec(memory_space=pltpu.VMEM)], out_shape=x,
            scratch_shapes=[pltpu.VMEM(x.shape, x.dtype)], interpret=True,
        )(x, go)  # fmt: skip

    launch = one_launch(run, S((8, 128), f32), S((8, 128), f32))
    assert (launch.in_flight, launch.waits) == (None, None)
