"""A function is traced for the chip that is asked for, wherever it asks JAX for its TPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, copy_kernel
from launches import mesh

from puzzles import examine

P = jax.sharding.PartitionSpec("x")
ROWS = jax.ShapeDtypeStruct((64, 128), jnp.float32)
VMEM = {"v4": 16, "v5e": 128, "v5p": 64, "v6e": 128, "7x": 64}
pytestmark = [
    pytest.mark.usefixtures("no_libtpu"),
    pytest.mark.skipif(not hasattr(pltpu, "get_tpu_info"), reason="JAX 0.7 describes no TPU"),
]


def by_vmem(x):
    """A launch that asks for three quarters of the VMEM of its TPU."""
    limit = pltpu.get_tpu_info().vmem_capacity_bytes // 4 * 3
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    params = pltpu.CompilerParams(vmem_limit_bytes=limit)
    steps = (x.shape[0] // 8,)
    return call(copy_kernel, x, steps, [spec], spec, compiler_params=params)(x)


WAYS = {
    "plain": by_vmem,
    "jit": jax.jit(by_vmem),  # jit keeps a trace for each kind of device
    "shard_map": jax.shard_map(by_vmem, mesh=mesh(), in_specs=P, out_specs=P, check_vma=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_launcher_gets_the_limits_of_the_chip_that_is_asked_for(way) -> None:
    for chip, mebibytes in VMEM.items():
        found = examine(WAYS[way], ROWS, chips=(chip, "v6e"))
        asked = found.launches[0].vmem_limit_bytes
        assert asked == mebibytes * 2**18 * 3
        assert f"traced for one {chip}: JAX reports this TPU to the function" in found.looked
    assert jax.default_backend() == "cpu"


def test_sparse_cores_are_there_if_the_chip_has_them() -> None:
    def fn(x):
        info = pltpu.get_tpu_info()
        rows = 8 if info.sparse_core is None else 16
        spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
        return call(copy_kernel, x, (64 // rows,), [spec], spec)(x)

    grids = {chip: examine(fn, ROWS, chips=(chip,)).launches[0].grid for chip in VMEM}
    assert grids == {"v4": (8,), "v5e": (8,), "v5p": (4,), "v6e": (4,), "7x": (4,)}


def on_tpus_alone(x):
    return by_vmem(x) if jax.default_backend() == "tpu" else x


@jax.custom_vjp
def tuned(x):
    """Rows by the chip, in a kernel that asks for the chip as well."""
    rows = {"TPU v5 lite": 8, "TPU v6 lite": 16}[jax.devices()[0].device_kind]

    def kernel(x_ref, o_ref):
        lanes = pltpu.get_tpu_info().num_lanes
        o_ref[:, :lanes] = x_ref[:, :lanes]

    spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
    return call(kernel, x, (x.shape[0] // rows,), [spec], spec)(x)


tuned.defvjp(lambda x: (tuned(x), None), lambda _, g: (tuned(g),))


def differentiated(x):
    return jax.grad(lambda x: tuned(x).sum())(x)


@pytest.mark.parametrize(
    ("fn", "steps"), [(on_tpus_alone, (8, 8)), (tuned, (8, 4)), (differentiated, (8, 4))]
)
def test_a_launch_that_depends_on_the_kind_of_device_is_read(fn, steps) -> None:
    for chip, count in zip(("v5e", "v6e"), steps, strict=True):
        found = examine(fn, ROWS, chips=(chip,))
        assert {launch.steps for launch in found.launches} == {count}
        assert [one for one in found.findings if one.severity == "error"] == []
    assert jax.default_backend() == "cpu"


def test_a_function_that_launches_nothing_on_a_tpu_either_says_so() -> None:
    assert "contains no `pallas_call`" in examine(lambda x: x + 1, ROWS).unread


def test_an_examination_leaves_other_traces_as_they_were() -> None:
    before = examine(by_vmem, ROWS).launches[0].vmem_limit_bytes
    examine(by_vmem, ROWS, chips=("7x",))
    assert examine(by_vmem, ROWS).launches[0].vmem_limit_bytes == before
