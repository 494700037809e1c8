"""The collectives ladder's summits beside the kernels that serve and train models.

tpu-inference's `all_gather_matmul` runs in our simulator, whose traffic can be compared. tokamax's
ring attention has no copies inside: it launches splash attention between `lax.ppermute`s, and runs
in JAX's interpreter, in a process with four CPU devices.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import wheels
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

import puzzles
from puzzles import examine, on_devices
from puzzles._judge import on_chips
from puzzles._launch import trace_call
from puzzles._program import over_mesh

pytestmark = [
    pytest.mark.graduate,
    pytest.mark.newest,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # theirs
]
SPLASH = "tokamax._src.ops.experimental.tpu.splash_attention"
T, H = 256, 128  # rows of a shard, as tokamax's tests have a multiple of


def abstract(devices: int) -> AbstractMesh:
    return AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,))


def theirs(devices: int):
    kernel = wheels.module("tpu_inference.kernels.collectives.all_gather_matmul")
    mesh = abstract(devices)
    return functools.partial(kernel.all_gather_matmul, mesh=mesh, axis_name="x", bn=128, bk=128)


@pytest.mark.parametrize("devices", [4, 8])
def test_the_summit_sends_what_tpu_inference_sends(devices: int) -> None:
    r, (M, K, N) = np.random.default_rng(devices), (64, 256, 256)
    x = jnp.asarray(r.normal(size=(devices, M, K)), jnp.float32)
    w = jnp.asarray(r.normal(size=(devices, K, N)), jnp.float32)
    solution = functools.partial(
        puzzles.find("collective_matmul").solution, bm=32, bk=128, bn=128
    )  # fmt: skip
    programs = {
        "ours": trace_call(over_mesh(solution, {"x": devices}), x, w),
        "theirs": trace_call(theirs(devices), x.reshape(-1, K), jnp.concatenate([*w], axis=1)),
    }
    runs = {name: on_chips(traced, "v5e") for name, traced in programs.items()}
    ours, others = runs["ours"], runs["theirs"]
    columns = np.concatenate([*np.asarray(ours.results[0])], axis=1)
    np.testing.assert_allclose(columns, np.asarray(others.results[0]), rtol=1e-5, atol=1e-4)

    for device in range(devices):
        assert ours.wire.sent(device) == others.wire.sent(device) != {}
        assert len(ours.wire.copies(device)) == len(others.wire.copies(device)) == 2 * devices - 2
        assert ours.wire.at_once[device] == others.wire.at_once[device] == 2
    (mine,), (other,) = (traced.launches for traced in programs.values())
    assert mine.vmem_bytes < other.vmem_bytes  # theirs has a device's rows and columns in VMEM


@pytest.mark.parametrize("devices", [4, 8])
def test_nothing_is_found_wrong_in_tpu_inferences_kernel(devices: int) -> None:
    x = jax.ShapeDtypeStruct((64 * devices, 256), jnp.float32)
    w = jax.ShapeDtypeStruct((256, 256 * devices), jnp.float32)
    found = examine(theirs(devices), x, w)
    assert [one.kind for one in found.findings] == ["idle"]  # in rounds that only copy
    assert not found.unseen
    assert f"in NumPy, all steps on {devices} devices" in str(found)


def ring(mesh: Mesh | AbstractMesh, devices: int, causal: bool, interpret: bool):
    """tokamax's ring attention for a single head over a mesh, with its kernel's default blocks."""
    kernels, masks, rings = (
        wheels.module(f"{SPLASH}.{name}")
        for name in ("splash_attention_kernel", "splash_attention_mask", "ring_attention_kernel")
    )
    rows = (devices * T,) * 2
    config = dataclasses.replace(
        kernels.SplashConfig.get_default(), use_base2_exp=False, interpret=interpret
    )  # fmt: skip
    kernel = rings.make_ring_attention(
        masks.make_causal_mask(rows) if causal else masks.FullMask(rows),
        is_mqa=False, ring_axis="x", config=config, save_residuals=False,
        q_seq_shards=devices, kv_seq_shards=devices,
    )  # fmt: skip
    shards, given = PartitionSpec(None, "x", None), kernel.manual_sharding_spec()
    whole = jax.shard_map(
        lambda kernel, q, k, v: kernel(q, k, v, None), mesh=mesh,
        in_specs=(given, shards, shards, shards), out_specs=shards, check_vma=False,
    )  # fmt: skip
    return functools.partial(whole, kernel)


def differences(devices: int) -> float:
    """The largest difference between ring_attention's reference and tokamax's ring attention."""
    r = np.random.default_rng(devices)
    q, k, v = (r.normal(size=(devices, T, H)).astype(np.float32) for _ in range(3))
    auto = (AxisType.Auto,)
    mesh = jax.make_mesh((devices,), ("x",), axis_types=auto, devices=jax.devices()[:devices])
    attend = jax.jit(ring(mesh, devices, causal=True, interpret=True))
    others = attend(*(a.reshape(1, -1, H) for a in (q * H**-0.5, k, v)))[0]
    ours = on_devices(puzzles.find("ring_attention").solution, q, k, v, axes={"x": devices})
    return float(np.abs(np.concatenate([*np.asarray(ours)]) - np.asarray(others)).max())


@pytest.mark.parametrize("devices", [2, 4])
def test_ring_attention_gives_what_tokamax_gives(devices: int) -> None:
    wheels.module(f"{SPLASH}.ring_attention_kernel")
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, __file__, str(devices)], capture_output=True, text=True, timeout=300,
        env=dict(os.environ, PYTHONPATH=path, NPROC="16"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < float(done.stdout) < 1e-5


def test_tokamaxs_ring_attention_is_read_and_run_between_its_collectives() -> None:
    form = jax.ShapeDtypeStruct((1, 4 * T, H), jnp.float32)
    found = examine(ring(abstract(4), 4, causal=False, interpret=False), form, form, form)
    assert [one.kind for one in found.findings] == ["outside"]  # the merge of two shards
    assert "in NumPy, all steps on 4 devices" in str(found)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    print(differences(int(sys.argv[1])))
