from __future__ import annotations

import importlib.util
import os
import re

import jax
import jax.numpy as jnp
import launches
import pytest
import sample
import steps
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, copy_kernel, traced

from puzzles import _compile
from puzzles._compile import CHIPS, INSTALL_LIBTPU, Compiler, lowered, messages, supported_chips
from puzzles._compile import compiler as compiler_module
from puzzles._launch import trace
from puzzles._program import kernel_calls

F32 = jnp.float32


def shape(*dims, dtype=F32):
    return jax.ShapeDtypeStruct(dims, dtype)


def thirds_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] // 3


def launch(kernel=copy_kernel, block=(128, 128), interpret=True):
    """A function of one array that launches `kernel` over its blocks with `interpret=True`."""

    def run(x):
        spec = pl.BlockSpec(block, lambda *ids: ids)
        grid = tuple(n // (b or 1) for n, b in zip(x.shape, block, strict=True))
        return call(kernel, x, grid, [spec], spec, interpret=interpret)(x)

    return run


def refused(fn, *args):
    (finding,) = lowered(traced(fn, *args))
    return finding


def dynamic(n, ids, x):
    """Scalar prefetch with a grid whose length is data."""

    def kernel(ids_ref, x_ref, o_ref):
        return copy_kernel(x_ref, o_ref)

    read = pl.BlockSpec((128, 128), lambda i, ids_ref: (ids_ref[i] // 2, 0))
    written = pl.BlockSpec((128, 128), lambda i, ids_ref: (i, 0))
    return call(kernel, x, (n,), [read], written, scalars=1)(ids, x)


# Beside those of launches.py, which `examine` lowers.
GOOD = {
    "interpret=False": lambda: (launch(interpret=False), shape(256, 256)),
    "one dimension": lambda: (launch(block=(1024,)), shape(4096)),
    "traced //": lambda: (launch(thirds_kernel), shape(256, 256)),
    "dynamic grid": lambda: (
        dynamic,
        shape(dtype=jnp.int32),
        shape(4, dtype=jnp.int32),
        shape(512, 128),
    ),
}
COMPILED = {**GOOD, **launches.LAUNCHES}
del COMPILED["sharded"]


@pytest.mark.parametrize("name", GOOD)
def test_a_right_program_lowers(name):
    assert not list(lowered(traced(*GOOD[name]())))


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("name", sample.some(list(COMPILED)))
def test_a_right_program_compiles_for_every_chip(compiler, name):
    assert compiler.compile(traced(*COMPILED[name]())) == dict.fromkeys(supported_chips())


@pytest.mark.parametrize("block", [(128, 100), (100, 128), (1, 128), (128, None), (64,)])
def test_a_misaligned_block_is_refused_with_the_rule(block):
    error = refused(launch(block=block), shape(*(200, 300)[: len(block)]))
    assert error.operand == "x_ref"
    rule = "multiples of (8, 128), or the whole axis of the array."
    rule = rule if len(block) == 2 else "a 1-D block must be the whole array or a multiple of 1024."
    assert rule in error.says
    assert f"the block {block} of `x_ref`" in error.says


def applied(function):
    def kernel(x_ref, o_ref):
        o_ref[...] = function(x_ref[...])

    return launch(kernel)


BROKEN = {
    "cumsum": (lambda x: jnp.cumsum(x, 0), "`cumsum` has no TPU lowering in Pallas: multiply by"),
    "sort": (lambda x: jnp.sort(x, 0), "`sort` has no TPU lowering"),
    "exact GELU": (lambda x: jax.nn.gelu(x, approximate=False), "`erfc` has no TPU lowering"),
    "scatter": (lambda x: x.at[0].set(0.0), "`scatter` has no TPU lowering"),
    "dynamic slice of a value": (
        lambda x: jax.lax.dynamic_slice(x, (pl.program_id(0), 0), (128, 128)),
        "slice the Ref",
    ),
    "bf16 accumulator": (
        lambda x: jnp.dot(x.astype(jnp.bfloat16), x.astype(jnp.bfloat16)).astype(F32),
        "preferred_element_type=jnp.float32",
    ),
    "precision": (
        lambda x: jnp.dot(x, x, precision=jax.lax.DotAlgorithmPreset.TF32_TF32_F32),
        "DEFAULT and HIGHEST",
    ),
    "complex": (lambda x: jnp.real(x.astype(jnp.complex64)), "complex numbers"),
    "outer product": (
        lambda x: jnp.einsum("i,j->ij", x[0, :128], x[1, :128]),
        "An outer product is a broadcast",
    ),
    "a branch with Python's truth": (
        lambda x: x + jax.lax.cond(pl.program_id(0) == 0, lambda: True, lambda: x[0, 0] > 0),
        "Return `jnp.bool_(True)`",
    ),
    "vectors": (lambda x: jnp.dot(x[0], x[1]) + x, "Keep the values in a kernel 2-D"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_operation_that_does_not_lower_is_explained(name):
    function, says = BROKEN[name]
    assert says in refused(applied(function), shape(256, 256)).words


def test_storing_a_scalar_and_indexing_hbm_are_explained_with_the_line():
    def kernel(x_ref, o_ref):
        o_ref[0, 0] = jnp.sum(x_ref[...])

    says = refused(launch(kernel), shape(256, 256)).words
    assert "refuses `o_ref[0, 0] = jnp.sum(x_ref[...])`: VMEM holds vectors" in says
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    whole = pl.pallas_call(copy_kernel, in_specs=[hbm], out_shape=shape(256, 128))
    assert "cannot index a Ref in HBM" in refused(lambda x: whole(x), shape(256, 128)).words


def test_a_float_index_into_smem_is_read_as_the_cpu_does_and_explained():
    def kernel(n_ref, x_ref, o_ref):
        @pl.when(n_ref[pl.program_id(0) / 2] == 7)
        def _():
            o_ref[...] = x_ref[...] + 1

    def run(n, x):
        spec = pl.BlockSpec((8, 128), lambda i, n_ref: (i, 0))
        return call(kernel, x, (4,), [spec], spec, scalars=1)(n, x)

    (one,) = trace(run, jnp.array([5, 7]), shape(32, 128))
    assert one.flops == 4 + 2 * 8 * 128  # four divisions, two blocks
    says = refused(run, jax.ShapeDtypeStruct((2,), jnp.int32), shape(32, 128)).words
    assert says.endswith(
        "an index into a Ref must be an integer, not a float. Divide with `//`, not `/`."
    )


def test_an_unknown_error_is_one_clean_line():
    noise = 'Invalid type:\nerror: "a"(callsite("f"("/x/jax/y.py":1:2))): the thing\nmore'
    found = messages.lowering(ValueError(noise), jax.make_jaxpr(jnp.sin)(1.0))
    assert (found.words, found.operand) == ("Mosaic refuses the kernel: the thing", None)


@pytest.mark.slow
@sample.drill
def test_too_little_vmem_is_found_by_the_compiler_alone(compiler):
    arguments = [shape(2048, 2048)] * 2
    multiplied = traced(lambda a, b: launches.multiply(a, b, 1024, 1024, 1024), *arguments)
    assert not list(lowered(multiplied))
    says = compiler.compile(multiplied, ("v4", "v5e", "v6e"))
    assert re.search(r"needs [\d.]+ MiB of VMEM, but a core of v4 has 16 MiB", says["v4"])
    assert re.search(r"a kernel on v5e gets 16 MiB.*vmem_limit_bytes.*128 MiB", says["v5e"])
    assert says["v6e"] is None
    raised = traced(lambda a, b: launches.multiply(a, b, 1024, 1024, 1024, 64 * 2**20), *arguments)
    assert compiler.compile(raised, ["v5e"]) == {"v5e": None}


@pytest.mark.slow
@sample.drill
def test_a_slice_that_may_be_misaligned_is_explained(compiler):
    def kernel(x_ref, o_ref):
        o_ref[:, :128] = x_ref[:, pl.ds(pl.program_id(0), 128)]

    program = traced(launch(kernel, block=(128, 256)), shape(256, 256))
    assert "start at a multiple of 128 on axis 1" in compiler.compile(program, ["v5e"])["v5e"]


@pytest.mark.slow
def test_too_much_smem_is_explained(compiler):
    program = traced(
        dynamic, shape(dtype=jnp.int32), shape(524_800, dtype=jnp.int32), shape(512, 128)
    )
    assert "SMEM has 1 MiB" in compiler.compile(program, ["v5e"])["v5e"]


@pytest.mark.slow
@sample.drill
def test_of_many_programs_the_first_that_is_refused_is_told(compiler, monkeypatch):
    asked = []
    real = compiler._refusal
    monkeypatch.setattr(
        compiler, "_refusal", lambda *given: asked.append(given[1:]) or real(*given)
    )
    good = [traced(launch(), shape(rows, 256)) for rows in (256, 512)]
    assert compiler.compile_all([*good, good[0]], ["v5e"]) == {"v5e": None}
    assert [len(programs) for programs in asked] == [2], "equal programs are compiled once"

    arguments = [shape(2048, 2048)] * 2
    large = traced(lambda a, b: launches.multiply(a, b, 1024, 1024, 1024), *arguments)
    told = compiler.compile_all([good[0], large, good[1], large], ["v5e", "v6e"])
    assert told["v6e"] is None
    number, why = told["v5e"]
    assert number == 1
    assert "a kernel on v5e gets 16 MiB" in why

    unlowered = traced(applied(lambda x: jnp.cumsum(x, 0)), shape(256, 256))
    number, why = compiler.compile_all([*good, unlowered], ["v5e"])["v5e"]
    assert number == 2
    assert "`cumsum` has no TPU lowering" in why


@pytest.mark.slow
def test_a_kernel_that_is_lost_among_others_is_missed(compiler):
    unused = traced(lambda x: (launch()(x), x + 1)[1], shape(256, 256))
    assert list(kernel_calls(unused.jaxpr.jaxpr))
    told = compiler.compile_all([traced(launch(), shape(256, 256)), unused], ["v5e"])
    assert told["v5e"] == (1, "it compiled, but no kernel is left in it: is its result used?")


@sample.in_turn
@pytest.mark.usefixtures("compiler")
def test_a_dead_worker_is_an_answer_and_the_next_request_works():
    with Compiler() as mortal:
        assert mortal._ask(abort=True) == "the TPU compiler crashed on this kernel"
        assert mortal.compile(traced(launch(), shape(256, 256)), ["v5e"]) == {"v5e": None}


@sample.in_turn
@pytest.mark.usefixtures("compiler")
def test_a_worker_that_takes_too_long_is_an_answer():
    with Compiler(timeout=0.01) as hasty:
        (says,) = hasty.compile(traced(launch(), shape(256, 256)), ["v5e"]).values()
    assert says == "the TPU compiler gave no answer within 0.01 s"


@pytest.mark.slow
def test_a_chip_that_libtpu_does_not_know_is_an_answer(compiler, monkeypatch):
    monkeypatch.setattr(compiler_module, "_supported", [("v5e",)])
    says = compiler.compile(traced(launch(), shape(256, 256)), ["7x"])["7x"]
    assert says.startswith("the installed libtpu does not know 7x")


@pytest.mark.slow
def test_the_compiler_prints_nothing_here(compiler, capfd):
    compiler.compile(traced(launch(), shape(256, 256)), ["v5e"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("module", ["libtpu", "flatbuffers"])
def test_what_is_missing_is_named_with_the_line_that_installs_it(monkeypatch, module):
    def found(name):
        return None if name == module else object()

    monkeypatch.setattr(importlib.util, "find_spec", found)
    assert _compile.has_libtpu() == (module != "libtpu")
    with pytest.raises(_compile.CompilerMissingError, match=module) as caught, Compiler():
        pass
    assert INSTALL_LIBTPU in str(caught.value)
    assert jax.__version__ in INSTALL_LIBTPU


@pytest.mark.skipif(not hasattr(pltpu, "get_tpu_info_for_chip"), reason="JAX 0.8.1 or newer")
@pytest.mark.parametrize("name", CHIPS)
def test_the_figures_are_those_of_jax(name):
    info = pltpu.get_tpu_info_for_chip(
        pltpu.ChipVersion[f"TPU_{name.upper()}" if name[0] == "v" else "TPU_7X"], 1
    )
    chip = CHIPS[name]
    assert chip.vmem_bytes == info.vmem_capacity_bytes
    assert chip.smem_bytes == info.smem_capacity_bytes
    assert chip.hbm_bytes_per_second == pytest.approx(info.mem_bw_bytes_per_second, rel=0.01)
    assert chip.flops_per_second == pytest.approx(info.bf16_ops_per_second, rel=0.01)


def test_the_environment_of_this_process_is_left_alone():
    assert "TPU_WORKER_HOSTNAMES" not in os.environ


@sample.drill
@pytest.mark.newest
@pytest.mark.usefixtures("compiler")
def test_a_receipt_s_cause_and_time_are_libtpu_s_where_steps_are_priced():
    """On launches that no figure was fitted to; docs/prices.md has all of them, on two chips."""
    found = [one for one in steps.estimated(steps.held_out(), ["v5e"]) if one.counts]
    assert len(found) >= 10
    assert sum(one.agrees for one in found) >= 0.9 * len(found)
    # HBM's time alone does not agree: the check can fail
    assert max(one.seconds / one.price.hbm for one in found) > 3


def test_cycles_are_not_estimated_where_they_would_be_wrong():
    with pytest.raises(_compile.NoEstimateError, match="for v5e, v5p and v6e only"):
        _compile.estimated_cycles(traced(launch(), shape(256, 256)), "v4")

    def fn(n, x):
        spec = pl.BlockSpec((128, 128), lambda i, n_ref: (n_ref[i], 0))
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(2,), in_specs=[spec], out_specs=spec
        )
        kernel = lambda n_ref, x_ref, o_ref: copy_kernel(x_ref, o_ref)  # noqa: E731
        return pl.pallas_call(kernel, grid_spec=grid, out_shape=shape(256, 128))(n, x)

    with pytest.raises(_compile.NoEstimateError, match="prefetched scalars"):
        _compile.estimated_cycles(traced(fn, jnp.arange(2), shape(256, 128)), "v5e")


def test_cycles_without_libtpu_are_no_error(monkeypatch):
    def missing():
        raise _compile.CompilerMissingError("not there")

    monkeypatch.setattr(_compile.compiler, "supported_chips", missing)
    with pytest.raises(_compile.NoEstimateError, match="not there"):
        _compile.estimated_cycles(traced(launch(), shape(256, 256)), "v5e")
