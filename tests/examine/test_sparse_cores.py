"""Kernels on SparseCores are compiled for the chips that have them, and not simulated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, copy_kernel

from puzzles import examine

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < (0, 10, 1), reason="`pl.kernel` makes no `mpmd_map`"
)
S = jax.ShapeDtypeStruct
ROWS, VECTOR = S((1000, 128), jnp.float32), S((8192,), jnp.float32)
SUBCORES = 16


def on_subcores(out, scratch, **options):
    from jax.experimental.pallas import tpu_sc

    mesh = tpu_sc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name="subcore", num_cores=2)
    return pl.kernel(out_type=out, mesh=mesh, scratch_types=scratch, **options)


def mine(count: int):
    """The slice of this subcore in an array that has `count` elements for each."""
    subcore = jax.lax.axis_index("core") * SUBCORES + jax.lax.axis_index("subcore")
    return pl.ds(subcore * count, count)


def embed(table, ids):
    """Rows of a table, gathered by an indexed copy."""
    count, width = ids.shape[0] // (2 * SUBCORES), table.shape[1]
    scratch = [pltpu.VMEM((count,), jnp.int32), pltpu.VMEM((count, width), table.dtype)]

    @on_subcores(S((ids.shape[0], width), table.dtype), [*scratch, pltpu.SemaphoreType.DMA])
    def embed_kernel(table_hbm, ids_hbm, o_hbm, ids_ref, rows, sem):
        pltpu.sync_copy(ids_hbm.at[mine(count)], ids_ref)
        pltpu.async_copy(table_hbm.at[ids_ref], rows, sem).wait()
        pltpu.sync_copy(rows, o_hbm.at[mine(count)])

    return embed_kernel(table, ids)


def doubled(x, one_by_one=False):
    """Twice a vector, in slices as long as the registers of the chip that is asked for."""
    count = x.shape[0] // (2 * SUBCORES)

    @on_subcores(S(x.shape, x.dtype), [pltpu.VMEM((count,), x.dtype)])
    def doubling_kernel(x_hbm, o_hbm, rows):
        lanes = pltpu.get_tpu_info().sparse_core.num_lanes
        pltpu.sync_copy(x_hbm.at[mine(count)], rows)

        @pl.loop(0, count, step=lanes)
        def _(start):
            at = start if one_by_one else pl.ds(start, lanes)
            rows[at] = 2 * rows[at]

        pltpu.sync_copy(rows, o_hbm.at[mine(count)])

    return doubling_kernel(x)


RIGHT = {
    "embed_kernel": (embed, ROWS, S((4096,), jnp.int32)),
    "doubling_kernel": (doubled, VECTOR),
}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_compiles_and_is_not_simulated(name: str) -> None:
    found = examine(*RIGHT[name], chips=("v5e", "v5p", "v6e", "7x"))
    assert (found.findings, found.launches, found.code) == ((), (), 0)
    assert "compile: libtpu, for v5p, v6e, 7x" in found.looked
    assert "traced for one v5p: JAX reports this TPU to the function" in found.looked
    gaps = " ".join(found.gaps)
    assert f"`{name}`: it runs on SparseCores, which are not simulated" in gaps
    assert f"compile: `{name}` for v5e: The current TPU does not have SparseCores" in gaps
    assert str(found).startswith(
        f"? {found.name}: nothing found; not looked at: memory of `{name}`"
    )


@pytest.mark.usefixtures("compiler")
def test_a_refused_kernel_has_its_chips_and_its_line() -> None:
    found = examine(lambda x: doubled(x, one_by_one=True), VECTOR, chips=("v6e", "7x"))
    (finding,) = found.findings
    assert (finding.kind, finding.launch) == ("lowering", "doubling_kernel")
    assert finding.chips == ("v6e", "7x")
    assert "Get only supports loading scalars from SMEM" in finding.says
    assert finding.place["file"] == __file__
    assert finding.line.endswith("rows[at] = 2 * rows[at]")
    assert found.code == 1


@pytest.mark.usefixtures("compiler")
def test_memory_that_no_subcore_has_is_refused_at_the_call() -> None:
    large = S((32 * 100_000,), jnp.float32)
    (finding,) = examine(doubled, large, chips=("v6e",)).findings
    assert (finding.kind, finding.launch, finding.chips) == ("compile", "doubling_kernel", ("v6e",))
    assert finding.line.endswith("return doubling_kernel(x)")


def test_a_chip_without_sparse_cores_is_named(no_libtpu) -> None:
    found = examine(doubled, VECTOR)
    assert found.code == 2
    assert "The current TPU does not have SparseCores" in found.unread
    assert "which v5p, v6e and 7x have" in found.unread


def test_launches_on_tensor_cores_beside_it_are_simulated(no_libtpu) -> None:
    def both(x):
        return call(copy_kernel, x)(doubled(x))

    found = examine(both, VECTOR, chips=("v6e",))
    assert found.findings == ()
    assert [launch.name for launch in found.launches] == ["copy_kernel"]
    assert "uninitialised, hazard: in NumPy, all steps" in found.looked
    assert found.unseen == ("memory of `doubling_kernel`",)


@pytest.mark.parametrize("order", ["before", "after"])
def test_an_unwritten_output_is_reported_unless_sparse_cores_may_write_it(no_libtpu, order) -> None:
    def half(x_ref, o_hbm, sem):
        rows = pl.ds(0, 4096)
        pltpu.async_copy(x_ref.at[rows], o_hbm.at[rows], sem).wait()

    def fn(x):
        hbm = pl.BlockSpec(memory_space=pl.ANY)
        launch = call(half, x, specs=[hbm], out_specs=hbm, scratch=[pltpu.SemaphoreType.DMA])
        return launch(doubled(x)) if order == "after" else doubled(launch(x))

    found = examine(fn, VECTOR, chips=("v6e",))
    operands = [(one.kind, one.operand) for one in found.findings if one.severity == "error"]
    assert operands == [("uninitialised", "o_hbm")] * (order == "after")
