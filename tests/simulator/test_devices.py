"""Kernels that speak to each other, on four devices that NumPy plays."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import launches
import pytest
import sample
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles import examine, receipt
from puzzles._examine.subprocesses import Request, run_request

pytestmark = pytest.mark.usefixtures("no_libtpu")
N = 4
SHARD = (8, 128)


def ring(what: str):
    """Each device sends its part to the next one, over a barrier; `what` is done wrong."""

    def kernel(x_ref, o_ref, send, recv, buffer, local):
        me = lax.axis_index("x")
        right, left = lax.rem(me + 1, N), lax.rem(me + N - 1, N)
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id=left)
        if what != "no wait for the barrier":
            pl.semaphore_wait(barrier, 2 if what == "waits for two" else 1)
        there = me + 1 if what == "no such device" else right
        source = buffer if what == "sends what nobody wrote" else x_ref
        if what == "signals nobody":
            pl.semaphore_signal(barrier, 1, device_id=me - 1)
        copy = pltpu.make_async_remote_copy(source, buffer, send, recv, device_id=there)
        if what == "sends what nobody wrote":
            copy = pltpu.make_async_remote_copy(source, o_ref, send, recv, device_id=there)
        copy.start()
        copy.wait_send()
        if what == "uses it early":
            pltpu.sync_copy(buffer, o_ref)
        if what != "no wait_recv":
            copy.wait_recv()
        if what not in ("uses it early", "sends what nobody wrote"):
            pltpu.sync_copy(buffer, o_ref)

    def local(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        semaphores = [pltpu.SemaphoreType.DMA] * 2
        return pl.pallas_call(
            kernel, in_specs=[anywhere], out_specs=anywhere, out_shape=x,
            scratch_shapes=[*semaphores, pltpu.VMEM(SHARD, jnp.float32), pltpu.SemaphoreType.DMA],
            compiler_params=pltpu.CompilerParams(collective_id=0, has_side_effects=True),
        )(x)  # fmt: skip

    axis = jax.sharding.PartitionSpec("x")
    mesh = launches.mesh(N)
    return jax.shard_map(local, mesh=mesh, in_specs=axis, out_specs=axis, check_vma=False)


def gathered():
    """JAX's own `all_gather`, in which several copies are on one semaphore at a time."""
    from jax.experimental.pallas.ops.tpu import all_gather

    mesh = launches.mesh(2, 2)
    return functools.partial(all_gather.all_gather, mesh=mesh, axis_name="x")


FORM = jax.ShapeDtypeStruct((N * SHARD[0], SHARD[1]), jnp.float32)
WRONG = {
    "no wait for the barrier": ("hazard", "may not be in the kernel yet"),
    "waits for two": ("hazard", "(waiting for 2 on the barrier semaphore, which is at 1)"),
    "no such device": ("out-of-bounds", "copies to device 4, but there are only 4 devices"),
    "signals nobody": ("out-of-bounds", "Device 0 signals device -1, but there are only 4 devices"),
    "sends what nobody wrote": ("uninitialised", "hold garbage, from memory that nothing wrote"),
    # JAX knows no lines inside `sync_copy`; these copies have the line of the call.
    "uses it early": ("hazard", "reads `buffer` (`pltpu.sync_copy(buffer, o_ref)`)"),
    "no wait_recv": ("hazard", "reads `buffer` (`pltpu.sync_copy(buffer, o_ref)`)"),
}
ASKED = sample.some(list(WRONG), 3)  # `make graduate` asks of all


@pytest.mark.parametrize("right", [ring("right"), gathered()], ids=["right", "all_gather"])
def test_nothing_is_found_in_a_right_kernel_and_it_was_run(right: Callable) -> None:
    found = examine(right, FORM)
    assert (found.findings, found.unseen) == ((), ())
    assert "\nICI    device 0 sends " in str(found)


def test_examine_prices_the_wire_as_the_receipt_does_on_its_first_chip(
    capsys: pytest.CaptureFixture[str],
) -> None:
    receipt(ring("right"), FORM, chip="v5p")
    rows = [line for line in capsys.readouterr().out.splitlines() if line[:4] in ("ICI ", "wire")]
    lines = str(examine(ring("right"), FORM, chips=("v5p", "v5e"))).splitlines()
    assert len(rows) == 2
    assert {*rows} < {*lines}


@pytest.mark.graduate
@pytest.mark.parametrize("what", ASKED)
def test_what_is_wrong_between_devices_is_told_with_its_line(what: str) -> None:
    (one,) = examine(ring(what), FORM).findings
    assert (one.severity, str(one.line).partition(":")[0]) == ("error", Path(__file__).name)
    assert (one.kind, WRONG[what][1] in one.says) == (WRONG[what][0], True)


def to_all(heard: tuple[int, ...]):
    """Each device sends its rows to all others, and hears before from those so far to its left."""

    def kernel(x_hbm, o_hbm, send, recv, local):
        me = lax.axis_index("x")
        mine = o_hbm.at[pl.ds(pl.multiple_of(8 * me, 8), 8)]
        barrier = pltpu.get_barrier_semaphore()
        for away in heard:
            pl.semaphore_signal(barrier, 1, device_id=lax.rem(me + away, N))
        pl.semaphore_wait(barrier, len(heard))
        copies = [
            pltpu.make_async_remote_copy(
                x_hbm, mine, send, recv.at[away], device_id=lax.rem(me + away, N)
            )
            for away in range(1, N)
        ]
        for copy in copies:
            copy.start()
        own = pltpu.make_async_copy(x_hbm, mine, local)
        own.start()
        own.wait()
        for copy in copies:
            copy.wait()

    def launch(x):
        hbm = pl.BlockSpec(memory_space=pl.ANY)
        dma = pltpu.SemaphoreType.DMA
        return pl.pallas_call(
            kernel, in_specs=[hbm], out_specs=hbm, out_shape=FORM,
            scratch_shapes=[dma, dma((N,)), dma],
            compiler_params=pltpu.CompilerParams(collective_id=0, has_side_effects=True),
        )(x)  # fmt: skip

    axis = jax.sharding.PartitionSpec("x")
    return jax.shard_map(
        launch, mesh=launches.mesh(N), in_specs=axis, out_specs=axis, check_vma=False
    )


def along_another_axis():
    """Devices of a square signal along its rows, and copy along its columns."""

    def kernel(x_hbm, o_hbm, send, recv):
        row, column = lax.axis_index("x"), lax.axis_index("y")
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id={"x": row, "y": 1 - column})
        pl.semaphore_wait(barrier, 1)
        there = {"x": 1 - row, "y": column}
        copy = pltpu.make_async_remote_copy(x_hbm, o_hbm, send, recv, device_id=there)
        copy.start()
        copy.wait()

    def launch(x):
        hbm = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            kernel, in_specs=[hbm], out_specs=hbm, out_shape=x,
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
            compiler_params=pltpu.CompilerParams(collective_id=0, has_side_effects=True),
        )(x)  # fmt: skip

    axes = jax.sharding.PartitionSpec(("x", "y"))
    return jax.shard_map(
        launch, mesh=launches.mesh(2, 2), in_specs=axes, out_specs=axes, check_vma=False
    )


@pytest.mark.parametrize(
    ("fn", "right"),
    [(to_all((1, 2, 3)), True), (to_all((1,)), False), (to_all((1, 3)), False),
     (along_another_axis(), False)],
)  # fmt: skip
def test_a_copy_needs_a_signal_of_the_device_that_it_goes_to(fn, right: bool) -> None:
    found = examine(fn, FORM)
    assert [one.kind for one in found.findings] == ["hazard"] * (not right)
    for one in found.findings:
        assert "may not be in the kernel yet" in one.says
        assert "it has heard only from device" in one.says
        assert "On the barrier semaphore, signal each device that writes to you" in one.remedy


@sample.in_turn
def test_the_shell_gives_a_kernel_that_speaks_its_devices(tmp_path: Path) -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    text += "\n\ndef make():\n    return ring('no wait_recv'), FORM\n"
    (tmp_path / "rings.py").write_text(text, encoding="utf-8")
    before = dict(os.environ)
    report = run_request(Request(f"{tmp_path}/rings.py:make"))
    assert [one.kind for one in report.findings] == ["hazard"], report.text
    assert "has not waited for that copy" in report.findings[0].says
    assert dict(os.environ) == before


@pytest.mark.parametrize("count", [4, 8])
def test_jax_all_gather_is_only_warned_of_its_shared_semaphore(count: int) -> None:
    from jax.experimental.pallas.ops.tpu import all_gather

    gather = functools.partial(all_gather.all_gather, mesh=launches.mesh(count), axis_name="x")
    found = examine(gather, jax.ShapeDtypeStruct((count * 16, 128), jnp.float32))
    assert [one.severity for one in found.findings] == ["warning"]
    assert "copies arrive there, and any of them may have ended that wait" in found.findings[0].says
