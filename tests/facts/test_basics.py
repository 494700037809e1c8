"""The statements of basics, shown by running code; basics.toml lists them."""

from __future__ import annotations

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, copy_kernel, interpreted, one, reference, refused, simulated, traced

import puzzles
from puzzles import _puzzle
from puzzles._compile import INSTALL_LIBTPU, NoEstimateError, estimated_cycles, has_libtpu, lowered

f32, bf16 = jnp.float32, jnp.bfloat16
S = jax.ShapeDtypeStruct
ROW = pl.BlockSpec((8, 128), lambda i: (i, 0))
X = jnp.arange(32 * 128, dtype=f32).reshape(32, 128)


# Memory that nobody wrote


@pytest.mark.parametrize("run", [interpreted, simulated])
def test_an_output_and_scratch_begin_as_nan(run):
    def kernel(x_ref, o_ref, acc_ref):
        o_ref[:8] += x_ref[:8]
        o_ref[8:] = acc_ref[8:]

    x = jnp.ones((16, 128))
    out = run(call(kernel, x, scratch=[pltpu.VMEM((16, 128), f32)]), x)
    assert np.isnan(out).all()


@pytest.mark.parametrize("run", [interpreted, simulated])
def test_reads_beyond_the_edge_are_nan_and_writes_there_are_dropped(run):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0
        beyond = jnp.sum(x_ref[...], axis=1, keepdims=True)
        o_ref[:, :1] = jnp.where(pl.program_id(0) == 1, beyond, o_ref[:, :1])

    spec = pl.BlockSpec((8, 128), lambda j: (0, j))
    x = jnp.ones((8, 200))
    out = run(call(kernel, S(x.shape, f32), (2,), [spec], spec), x)
    assert out.shape == (8, 200)
    assert (out[:, :128] == 2).all()
    assert (out[:, 129:] == 2).all()
    assert np.isnan(out[:, 128]).all()  # the sum of the second block, 56 of whose columns are none


def test_scratch_is_kept_from_the_first_step_to_the_last():
    def kernel(o_ref, acc_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += 1.0
        o_ref[...] = acc_ref[...]

    counts = call(kernel, S((24, 128), f32), (3,), [], ROW, [pltpu.VMEM((8, 128), f32)])
    assert simulated(counts)[::8, 0].tolist() == [1, 2, 3]


# Blocks


def test_interpret_clamps_a_block_that_lies_outside():
    beyond = pl.BlockSpec((8, 128), lambda i: (8 * i, 0))
    copy = call(copy_kernel, X, (4,), [beyond], ROW)
    np.testing.assert_array_equal(interpreted(copy, X)[::8, 0], X[[0, 24, 24, 24], 0])
    assert refused(copy, X).finding.kind == "out-of-bounds"


def test_an_index_map_rounds_down_below_zero_too():
    # (i - 3) // 2 is -2, -1, -1, 0
    back = pl.BlockSpec((8, 128), lambda i: ((i - 3) // 2 + 2, 0))
    copy = call(copy_kernel, X, (4,), [back], ROW)
    assert one(copy, X).inputs[0].blocks[:, 0].tolist() == [0, 1, 1, 2]
    np.testing.assert_array_equal(simulated(copy, X)[::8, 0], X[[0, 8, 8, 16], 0])
    assert not list(lowered(traced(copy, X)))


@pytest.mark.parametrize("case", [0, 1])
def test_fix_the_grid_is_right_to_the_last_digit_under_interpret_alone(case):
    puzzle = puzzles.find("fix_the_grid")
    starter, args = _puzzle.starter_function(puzzle), puzzle.arguments(case)
    np.testing.assert_array_equal(interpreted(starter, *args), puzzle.spec(*args))
    assert "again" in refused(starter, *args).says


def test_debug_print_prints_at_every_step(capfd):
    def kernel(x_ref, o_ref):
        i = pl.program_id(0)
        pl.debug_print("i = {}", i)
        o_ref[...] = x_ref[...]

    jax.block_until_ready(call(kernel, X, (4,), [ROW], ROW)(X))
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.splitlines()) == ["i = 0", "i = 1", "i = 2", "i = 3"]


def printing(*what):
    def kernel(x_ref, o_ref):
        pl.debug_print(*(one(x_ref) if callable(one) else one for one in what))
        o_ref[...] = x_ref[...]

    return call(kernel, S((8, 128), f32))


def test_debug_print_takes_a_float_without_braces_and_one_array_with(capfd):
    x = jnp.full((8, 128), 2.5)
    for printed in (
        printing("x", lambda x_ref: x_ref[0, 0]),
        printing("x {}", lambda x_ref: x_ref[...]),
    ):
        jax.block_until_ready(printed(x))
        jax.effects_barrier()
        assert "2.5" in capfd.readouterr().out
        assert not list(lowered(traced(printed, x)))
    (finding,) = lowered(traced(printing("x", lambda x_ref: x_ref[...]), x))
    assert "at the end of the text for an array" in finding.words
    refused = list(lowered(traced(printing("x {}", lambda x_ref: x_ref[0, 0]), x)))
    before = jax.__version_info__ < (0, 11)
    assert ["cannot stand for a float" in one.words for one in refused] == [True] * before


def test_python_runs_a_body_once_and_not_for_each_step():
    seen = []

    def kernel(x_ref, o_ref):
        seen.append(x_ref)
        o_ref[...] = x_ref[...]

    interpreted(call(kernel, X, (4,), [ROW], ROW), X)
    assert len(seen) == 1


def test_an_index_map_is_arithmetic_on_program_ids_and_looks_up_no_list():
    turned = pl.BlockSpec((8, 128), lambda i: (jnp.where(i < 2, 3 - i, (i * i) % 4), 0))
    copy = call(copy_kernel, X, (4,), [turned], ROW)
    np.testing.assert_array_equal(simulated(copy, X)[::8, 0], X[[24, 16, 0, 8], 0])
    assert not list(lowered(traced(copy, X)))
    for by in (lambda i: ([3, 2, 1, 0][i], 0), lambda i: (3 if i == 0 else 0, 0)):
        with pytest.raises(jax.errors.JAXTypeError):
            interpreted(call(copy_kernel, X, (4,), [pl.BlockSpec((8, 128), by)], ROW), X)


# Products


def test_jax_does_not_differentiate_a_matmul_like_these():
    matmul = puzzles.find("tiled_matmul").solution
    with pytest.raises((AssertionError, NotImplementedError)):
        jax.vjp(matmul, jnp.ones((64, 128)), jnp.ones((128, 256)))


def test_a_backward_rule_gives_no_forward_mode_and_no_second_derivative():
    matmul = puzzles.find("trainable_matmul").solution
    a, b = jnp.ones((64, 128)), jnp.ones((128, 256))

    def loss(a):
        return jnp.sum(matmul(a, b) ** 2)

    assert jax.grad(loss)(a).shape == a.shape
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (a,), (a,))
    with pytest.raises((AssertionError, NotImplementedError)):
        jax.grad(lambda a: jnp.sum(jax.grad(loss)(a) ** 2))(a)


def test_vmap_is_the_launch_of_batched_matmul_and_puts_b_before_tiled_matmuls_axes():
    shapes = S((3, 256, 384), f32), S((3, 384, 512), f32)

    def product(a_ref, b_ref, o_ref):
        o_ref[...] = jnp.dot(a_ref[...], b_ref[...])

    plain = pl.pallas_call(product, out_shape=S((256, 512), f32), interpret=puzzles.INTERPRET)
    mapped, batched = one(jax.vmap(plain), *shapes), reference("batched_matmul", *shapes)
    assert mapped.grid == batched.grid == (3,)
    assert [x.block for x in mapped.operands] == [x.block for x in batched.operands]
    for a, b in zip(mapped.operands, batched.operands, strict=True):
        np.testing.assert_array_equal(a.blocks, b.blocks)

    tiled = puzzles.find("tiled_matmul").solution
    inner = reference("tiled_matmul", *(S(shape.shape[1:], f32) for shape in shapes))
    assert one(jax.vmap(tiled), *shapes).grid == (3, *inner.grid)


XLA = """
import os
os.environ.update(
    JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost", ALLOW_MULTIPLE_LIBTPU_LOAD="1",
)
import jax, jax.numpy as jnp, puzzles
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

on = SingleDeviceSharding(topologies.get_topology_desc("v5e:2x2", "tpu").devices[0])
shapes = ((8192, 4096), jnp.bfloat16), ((4096, 4096), jnp.bfloat16), ((4096,), jnp.float32)
operands = [jax.ShapeDtypeStruct(*one, sharding=on) for one in shapes]
spec = puzzles.find("fused_matmul").spec
compiled = jax.jit(spec).lower(*operands).compile()
entry = compiled.as_text().partition("ENTRY")[2].partition("}\\n\\n")[0]
print(entry.count(" fusion("), "kind=kOutput" in entry)
print(compiled.memory_analysis().temp_size_in_bytes)
big = jax.ShapeDtypeStruct((8192, 4096), jnp.float32, sharding=on)
added = jax.jit(lambda x, y, z: x + y + z).lower(big, big, big).compile()
print(int(added.cost_analysis()["bytes accessed"]) // 2**20)
"""


@sample.drill
@pytest.mark.skipif(not has_libtpu(), reason=INSTALL_LIBTPU)
def test_xla_fuses_bias_and_activation_by_itself_and_reads_three_sums_arrays_once():
    done = subprocess.run([sys.executable, "-c", XLA], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True", "0", "512"]


@sample.drill
def test_small_blocks_take_more_cycles_by_the_compilers_estimate():
    square = S((1024, 1024), bf16)

    def cycles(bm, bk, bn):
        fn = functools.partial(puzzles.find("matmul_bf16").solution, bm=bm, bk=bk, bn=bn)
        try:
            return estimated_cycles(traced(fn, square, square), "v5e")
        except NoEstimateError as error:
            pytest.skip(str(error))

    large = cycles(512, 512, 512)
    assert round(cycles(128, 128, 128) / large) == 16
    assert round(cycles(512, 128, 512) / large, 1) == 1.6
