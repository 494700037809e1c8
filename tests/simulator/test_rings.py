"""Devices that NumPy plays: random rings, right and wrong, against a plain model."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles._launch import trace_call
from puzzles._program import over_mesh
from puzzles._simulator import HOP_SECONDS, HazardError, Semantics, Wire, run_devices
from puzzles._simulator.devices import schedules
from puzzles._simulator.topology import Topology
from puzzles._simulator.wire import Clock

DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
ROWS = 4
CREDITS = ("right", "none", "early", "top", "extra", "few", "to the right")
BARRIERS = ("both", "heard from the right", "heard from the left", "no wait")
DRAINS = ("both", "wait_recv only", "wait_send only")


class Ring(NamedTuple):
    """A sum of `n` devices' values that go round through `slots` slots, one way or both ways."""

    n: int
    slots: int
    ways: int
    credits: str
    barrier: str
    drain: str
    shared: bool  # one receive semaphore for all slots

    @property
    def right(self) -> bool:
        """The plain model: a device may be as far ahead as the credits, or the slots, let it."""
        reused = self.slots <= self.n - 1  # a slot is written that was in use
        steps = self.n - 1
        # Both ways, a neighbour's copy of the last step proves that its step before has ended.
        needs = reused and (self.ways == 1 or self.slots == 2)
        ahead = 2 if self.slots >= 3 else 1  # copies of the same neighbour at the same time
        return (
            self.drain == "both"
            and not (self.shared and ahead > 1 and steps > 1)
            and {
                "right": True,
                "none": not needs,
                "early": not needs,
                "top": not needs,
                "extra": self.slots > self.n,
                "few": not reused,
                "to the right": not reused or self.n == 2 or self.ways == 2,
            }[self.credits]
            and {
                "both": True,
                "heard from the right": self.n == 2 or self.ways == 1,
                "heard from the left": self.n == 2,
                "no wait": False,
            }[self.barrier]
        )


def drawn(seed: int) -> Ring:
    """A ring; half of them are right, or wrong in at most one way."""
    r = np.random.default_rng(seed)
    n, slots, ways = int(r.integers(2, 9)), int(r.integers(2, 6)), int(r.integers(1, 3))
    ring = Ring(n, slots, ways, "right", "both", "both", bool(r.integers(4) == 0))
    if ways == 2:
        ring = ring._replace(shared=False)
    faults: list[dict[str, str]] = [{}] * 6
    faults += [{"credits": one} for one in CREDITS[1 : None if ways == 1 else -1]]
    faults += [{"barrier": one} for one in BARRIERS[1:]] + [{"drain": one} for one in DRAINS[1:]]
    return ring._replace(**faults[r.integers(len(faults))])


def program(ring: Ring) -> Any:
    """One device's part of a ring."""
    n, slots, steps = ring.n, ring.slots, ring.n - 1
    last = {"extra": n - slots + 1, "few": n - slots - 1}.get(ring.credits, n - slots)

    def kernel(x_ref, o_ref, slots_ref, send_sems, recv_sems, credits, barrier_of_two):
        me = lax.axis_index("x")
        left, right = lax.rem(me + n - 1, n), lax.rem(me + 1, n)
        barrier = pltpu.get_barrier_semaphore()
        told = {"heard from the right": [left], "heard from the left": [right]}
        told = told.get(ring.barrier, [left, right])
        for other in told:
            pl.semaphore_signal(barrier, 1, device_id=(other,))
        if ring.barrier != "no wait":
            pl.semaphore_wait(barrier, len(told))
        o_ref[...] = x_ref[...]
        for way in range(ring.ways):
            slots_ref[way, 0] = x_ref[...]
        ways = [(left, right), (right, left)][: ring.ways]

        def give(way, source, target, i):
            to = target if ring.credits == "to the right" else source

            @pl.when(i < last)
            def _():
                pl.semaphore_signal(credits.at[way], 1, device_id=(to,))

        def step(i, _):
            here, there = lax.rem(i, slots), lax.rem(i + 1, slots)
            copies = []
            for way, (source, target) in enumerate(ways):
                if ring.credits != "none":
                    if ring.credits == "top":
                        give(way, source, target, i)

                    @pl.when(i >= slots - 1)
                    def _(way=way):
                        pl.semaphore_wait(credits.at[way], 1)

                receive = recv_sems.at[way, 0 if ring.shared else there]
                copy = pltpu.make_async_remote_copy(
                    slots_ref.at[way, here], slots_ref.at[way, there], send_sems.at[way], receive,
                    device_id=(target,),
                )  # fmt: skip
                copy.start()
                copies.append(copy)
            for way, (source, target) in enumerate(ways):
                if ring.drain != "wait_send only":
                    copies[way].wait_recv()
                if way == 0:
                    o_ref[...] += slots_ref[way, there]
                if ring.credits == "early":
                    give(way, source, target, i)
                if ring.drain != "wait_recv only":
                    copies[way].wait_send()
                if ring.credits not in ("none", "early", "top"):
                    give(way, source, target, i)

        lax.fori_loop(0, steps, step, None)

    def ring_sum(x):
        vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
        return pl.pallas_call(
            kernel,
            in_specs=[vmem],
            out_specs=vmem,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[
                pltpu.VMEM((2, slots, *x.shape), x.dtype), DMA((2,)), DMA((2, slots)),
                REGULAR((2,)), REGULAR,
            ],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)  # fmt: skip

    return ring_sum


@functools.cache
def judged(ring: Ring) -> str:
    """The finding of any schedule, "" if all give the right numbers."""
    x = np.random.default_rng(0).normal(size=(ring.n, ROWS, 128)).astype(np.float32)
    traced = trace_call(over_mesh(program(ring), {"x": ring.n}), jnp.asarray(x))
    for how, slowest in schedules(ring.n):
        try:
            (result,) = run_devices(traced, how, slowest).results
        except HazardError as error:
            return error.finding.says
        if not np.allclose(result, x.sum(0), atol=1e-4):
            return "wrong numbers"
    return ""


RINGS = [drawn(seed) for seed in range(200)]


@pytest.mark.parametrize("ring", sample.share(RINGS, 16), ids=str)
def test_a_random_ring_is_judged_as_a_plain_model_expects(ring: Ring) -> None:
    found = judged(ring)
    assert (not found) == ring.right, found
    assert found != "wrong numbers"


CAUSES = {
    Ring(4, 2, 1, "none", "both", "both", False): "while device 2 still sends it",
    Ring(4, 2, 1, "early", "both", "both", False): "while device 2 still sends it",
    Ring(4, 2, 1, "extra", "both", "both", False): "`credits[0]` of device 0 at 1 instead of zero",
    Ring(4, 2, 1, "few", "both", "both", False): "devices 0, 1, 2 and 3 in `pl.semaphore_wait(",
    Ring(4, 2, 2, "right", "heard from the right", "both", False): "it has heard only from device",
    Ring(4, 2, 1, "right", "no wait", "both", False): "may not be in the kernel yet",
    Ring(4, 2, 1, "right", "both", "wait_send only", False): "has not waited for that copy",
    Ring(2, 2, 1, "right", "both", "wait_recv only", False): "its copy to device",
    Ring(4, 3, 1, "right", "both", "both", True): "any of them may have ended that wait",
}


@pytest.mark.parametrize("ring", CAUSES, ids=str)
def test_the_cause_is_named_with_devices_and_lines(ring: Ring) -> None:
    assert CAUSES[ring] in judged(ring)


LINE, SQUARE = {"x": 4}, {"y": 2, "x": 2}


@pytest.mark.parametrize(
    ("kind", "axes"),
    [(kind, axes) for kind in ("tuple", "dict") for axes in (LINE, SQUARE)] + [("number", LINE)],
    ids=str,
)
def test_ids_are_numbers_tuples_and_dicts(kind: str, axes: dict[str, int]) -> None:
    size = axes["x"]

    def kernel(x_ref, o_ref, send, recv):
        right = lax.rem(lax.axis_index("x") + 1, size)
        place = (lax.axis_index("y"), right) if "y" in axes else (right,)
        device = {"tuple": place, "dict": {"x": right}}.get(kind, right)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id=device)
        copy.start()
        copy.wait()

    def send(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            kernel, in_specs=[anywhere], out_specs=anywhere, out_shape=x, scratch_shapes=[DMA, DMA]
        )(x)

    x = jnp.arange(4 * 8 * 128, dtype=jnp.float32).reshape(4, 8, 128)
    traced = trace_call(over_mesh(send, axes), x)
    (result,) = run_devices(traced, Semantics()).results
    rows = np.asarray(x).reshape(-1, size, 8, 128)
    assert np.array_equal(result, np.roll(rows, 1, axis=1).reshape(x.shape))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # JAX 0.12 deprecates logical ids
@pytest.mark.parametrize(
    ("kind", "says"),
    [("MESH", "has 1 of 2 coordinates"), ("LOGICAL", "to device 6, but there are only 4 devices")],
)
def test_an_id_of_another_mesh_is_found(kind: str, says: str) -> None:
    kinds = dict(device_id_type=getattr(pl.DeviceIdType, kind))

    def kernel(x_ref, o_ref, send, recv):
        flat = lax.axis_index("y") * 2 + lax.axis_index("x") + 5
        pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id=flat, **kinds).start()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    x = jnp.zeros((4, 8, 128))
    call = pl.pallas_call(
        kernel, in_specs=[anywhere], out_specs=anywhere, out_shape=x[0], scratch_shapes=[DMA, DMA]
    )
    with pytest.raises(HazardError, match=says):
        run_devices(trace_call(over_mesh(call, SQUARE), x), Semantics())


def test_the_wire_counts_copies_and_whether_a_product_hides_them() -> None:
    ring = Ring(4, 2, 2, "right", "both", "both", False)
    x = jnp.zeros((4, ROWS, 128), jnp.float32)
    wire = run_devices(trace_call(over_mesh(program(ring), {"x": 4}), x), Semantics()).wire
    assert wire.sent(0) == {1: 3 * ROWS * 512, 3: 3 * ROWS * 512}
    assert wire.at_once[0] == 2
    assert {one.hops for one in wire.transfers} == {1}
    # A hop for each copy, for the barrier, and for each of two credits.
    left, hop = 3 * ROWS * 512 / wire.speeds.link, (3 + 1 + 2) * HOP_SECONDS
    assert math.isclose(wire.seconds, left + hop)  # both ways at once, one copy after the other
    assert not any(one.overlapped for one in wire.transfers)


@pytest.mark.parametrize(
    ("source", "target", "moves"),
    [("ANY", "VMEM", 2), ("VMEM", "HBM", 2), ("HBM", "HBM", 4), ("VMEM", "VMEM", 0)],
)
def test_copies_in_flight_share_the_hbm_of_their_device(
    source: str, target: str, moves: int
) -> None:
    """moves: times that HBM moves the bytes of a copy, for two copies in flight at once."""

    def kernel(x_ref, o_ref, sems):
        copies = [pltpu.make_async_copy(x_ref, o_ref.at[n], sems.at[n]) for n in range(2)]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    spaces = dict(ANY=pl.ANY, HBM=pltpu.HBM, VMEM=pltpu.VMEM)
    x = jnp.zeros((3, 8, 128), jnp.float32)
    call = pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=spaces[source])],
        out_specs=pl.BlockSpec(memory_space=spaces[target]),
        out_shape=jax.ShapeDtypeStruct((2, 8, 128), x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA((2,))],
    )
    wire = run_devices(trace_call(over_mesh(call, {"x": 3}), x), Semantics()).wire
    assert math.isclose(wire.seconds, moves * 8 * 512 / wire.speeds.hbm)


def test_a_copy_to_another_device_loads_hbm_at_its_ends() -> None:
    clock = Clock(Wire(), Topology({"x": 4}))
    clock.sends(0, 1, 820, "", None, (True, False))
    clock.sends(2, 1, 820, "", None, (False, True))
    ends = [clock.sends(n, n, 820, "", None, (True, False)) for n in range(4)]
    assert np.allclose(ends, np.array([2, 2, 1, 1]) * 1e-9)  # at 820 bytes in a nanosecond
