"""Kernels that speak to each other, on four devices of the host: in a process of their own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import sample
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles import examine
from puzzles._examine import examining
from puzzles._examine.apart import Asked, apart

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
    mesh = jax.sharding.AbstractMesh((N,), ("x",))
    return jax.shard_map(local, mesh=mesh, in_specs=axis, out_specs=axis, check_vma=False)


def gathered():
    """JAX's own `all_gather`, in which several copies are on one semaphore at a time."""
    from jax.experimental.pallas.ops.tpu import all_gather

    mesh = jax.sharding.AbstractMesh((2, 2), ("x", "y"))
    return functools.partial(all_gather.all_gather, mesh=mesh, axis_name="x")


FORM = jax.ShapeDtypeStruct((N * SHARD[0], SHARD[1]), jnp.float32)
WRONG = {
    "no wait for the barrier": ("hazard", "a barrier semaphore that is not back at zero"),
    "waits for two": ("hazard", "waits for a semaphore that nothing signals"),
    "no such device": ("out-of-bounds", "copies to device 4, and there are 4, numbered from 0"),
    "signals nobody": ("out-of-bounds", "Device 0 signals device -1, and there are 4"),
    "sends what nobody wrote": ("uninitialised", "depends on memory that nothing wrote"),
    "uses it early": ("hazard", "change with the moment at which copies land"),
    "no wait_recv": ("hazard", "a copy between devices was not waited for"),
}
ASKED = sample.some(list(WRONG), 3)  # `make graduate` asks of all

NOT_IN_0_9 = pytest.mark.skipif(
    jax.__version_info__[:2] == (0, 9), reason="its simulator runs no side effects on devices"
)


def main() -> None:
    """Examine them, and print the findings as JSON."""
    examining.has_libtpu = lambda: False
    found = {what: examine(ring(what), FORM) for what in ("right", *ASKED)}
    found["all_gather"] = examine(gathered(), FORM)
    told = {
        what: [one.headline, [[f.kind, f.severity, f.says, f.line] for f in one.findings]]
        for what, one in found.items()
    }
    print(json.dumps(told))


@pytest.fixture(scope="module")
def told() -> dict[str, list]:
    flags = f"--xla_force_host_platform_device_count={N}"
    env = os.environ | {"XLA_FLAGS": flags, "NPROC": "16", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, __file__], env=env, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("right", [pytest.param("right", marks=NOT_IN_0_9), "all_gather"])
def test_nothing_is_found_in_a_right_kernel_and_it_was_run(told: dict, right: str) -> None:
    headline, findings = told[right]
    assert (findings, "not looked at" in headline) == ([], False)


@pytest.mark.newest  # JAX 0.7 does not look at barriers when a kernel ends
@pytest.mark.graduate
@pytest.mark.parametrize("what", ASKED)
def test_what_is_wrong_between_devices_is_told_with_its_line(told: dict, what: str) -> None:
    _, ((kind, severity, says, line),) = told[what]
    assert (severity, line.partition(":")[0]) == ("error", "test_together.py")
    assert (kind, WRONG[what][1] in says) == (WRONG[what][0], True)


@sample.in_turn
def test_the_shell_gives_a_kernel_that_speaks_its_devices(tmp_path: Path) -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    text += "\n\ndef make():\n    return ring('no wait_recv'), FORM\n"
    (tmp_path / "rings.py").write_text(text, encoding="utf-8")
    before = dict(os.environ)
    report = apart(Asked(f"{tmp_path}/rings.py:make"))
    assert [one.kind for one in report.findings] == ["hazard"], report.text
    assert "not waited for" in report.findings[0].says
    assert dict(os.environ) == before


def test_with_too_few_devices_it_says_how_to_have_more() -> None:
    found = examine(ring("no wait_recv"), FORM)
    assert found.headline.endswith("not looked at: memory")
    assert any("this Python has 1" in one and "device_count=4" in one for one in found.not_looked)


if __name__ == "__main__":
    main()
