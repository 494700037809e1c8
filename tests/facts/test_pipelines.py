"""What pipelines states, shown by running; pipelines.toml names each."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import interpreted, one, reference, simulated, traced

import puzzles
from puzzles import _puzzle
from puzzles._tpu import CHIPS, SimulationError

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
HBM = pl.BlockSpec(memory_space=pl.ANY)


def random(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), f32)


def mistake(rung: str, name: str):
    puzzle = puzzles.find(rung)
    return _puzzle.mutate(puzzle, puzzle.mistake(name))


def test_interpret_true_copies_at_once_and_the_simulator_does_not():
    fn, x, start = mistake("copy_rows", "does not wait for the rows"), random(128, 128), 8
    want = 2 * np.asarray(x)[start : start + 64]
    np.testing.assert_array_equal(interpreted(fn, x, jnp.array([start])), want)
    with pytest.raises(SimulationError, match="has not been waited for"):
        simulated(fn, x, jnp.array([start]))


def test_copy_rows_moves_64_rows_each_way():
    launch = reference("copy_rows", S((8192, 1024), f32), jnp.array([72]))
    rows = 64 * 1024 * 4
    assert [copy.bytes for copy in launch.copies] == [rows, rows]
    assert launch.hbm_bytes_written == rows


def test_copies_in_flight():
    x = S((512, 256), f32)
    assert list(reference("stream_sum", x).in_flight) == [1] * 8
    assert list(reference("double_buffered_sum", x).in_flight) == [2] * 7 + [1]
    y = S((256, 256), f32)
    flights = reference("pipelined_add", y, y).in_flight
    assert flights[-1] == 1
    assert (flights[:-1] > 1).all()


def test_estimated_cycles_of_the_two_sums():
    cycles = pytest.importorskip("puzzles._tpu.cycles")  # with libtpu, of the newest JAX
    x = S((8192, 1024), f32)
    for rung, said in (("stream_sum", 222_024), ("double_buffered_sum", 12_847)):
        try:
            got = cycles.estimated_cycles(traced(puzzles.find(rung).solution, x), "v5e")
        except Exception as error:  # no libtpu here, or one that estimates nothing
            pytest.skip(str(error))
        assert abs(got - said) < 0.2 * said


def test_the_bytes_alone_take_longer_than_the_estimate():
    chip = CHIPS["v5e"]
    clock = chip.flops_per_second / (4 * 2 * 128 * 128)  # four matrix units of 128 by 128
    assert round(clock / 1e9, 1) == 1.5
    cycles = 8192 * 1024 * 4 / chip.hbm_bytes_per_second * clock
    assert round(cycles, -3) == 62_000
    assert 3 < 222_024 / cycles < 4


def test_the_starter_is_right_under_interpret_true():
    fn, x = mistake("fix_the_copy", "waits after the use"), random(320, 128)
    np.testing.assert_array_equal(interpreted(fn, x), 2 * x)
    with pytest.raises(SimulationError, match="reads `in_ref"):
        simulated(fn, x)


def test_copies_by_hand_move_the_bytes_of_a_tiled_matmul():
    a, b = S((512, 1024), f32), S((1024, 256), f32)
    launch = reference("double_buffered_matmul", a, b)
    tiles = (512 // 128) * (256 // 128) * (1024 // 128)
    assert launch.hbm_bytes_read == 2 * tiles * 128 * 128 * 4
    assert launch.hbm_bytes_written == 512 * 256 * 4


def pipeline(body, grid, o_map, scratch=(), x=None):
    """`body` over (8, 128) blocks of x, written where `o_map` says."""

    def kernel(x_ref, o_ref, *scratch_refs):
        block = pl.BlockSpec((8, 128), lambda *at: (at[-1], 0))
        out = pl.BlockSpec((8, 128), o_map)
        run = pltpu.emit_pipeline(
            functools.partial(body, *scratch_refs), grid=grid, in_specs=[block], out_specs=[out]
        )
        run(x_ref, o_ref)

    return lambda x: pl.pallas_call(
        kernel, in_specs=[HBM], out_specs=HBM, out_shape=S(x.shape, x.dtype),
        scratch_shapes=list(scratch), interpret=True,
    )(x)  # fmt: skip


def test_a_pipeline_counts_its_own_steps():
    def body(x_ref, o_ref):
        step = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1)
        o_ref[...] = jnp.full_like(o_ref, step)

    out = interpreted(pipeline(body, (2, 3), lambda i, j: (3 * i + j, 0)), random(48, 128))
    assert out[::8, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_slot_that_has_left_does_not_come_back():
    def body(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    fn, x = pipeline(body, (2, 3), lambda i, j: (j, 0)), jnp.ones((24, 128))
    for run in (interpreted, simulated):
        assert not (run(fn, x) == 2).all()


def buffered(count: int):
    text = puzzles.find("launch_pipeline").text
    new = text.replace(
        "(k, j), pipeline_mode=pl.Buffered(3)", f"(k, j), pipeline_mode=pl.Buffered({count})"
    )
    assert count == 3 or new != text
    return _puzzle.load(puzzles.find("launch_pipeline"), new, f"{count}-slots")["launch_pipeline"]


MATRICES = S((128, 512), f32), S((512, 512), f32)


def test_a_third_slot_costs_a_block_and_moves_the_same_bytes():
    two, three = (one(buffered(count), *MATRICES) for count in (2, 3))
    assert three.vmem_bytes - two.vmem_bytes == 128 * 256 * 4
    assert three.hbm_bytes == two.hbm_bytes


def test_a_third_slot_is_one_copy_more_in_flight():
    two, three = (one(buffered(count), *MATRICES).in_flight for count in (2, 3))
    assert (three[:8] - two[:8]).tolist() == [1] * 8
    assert max(three) == max(two) + 1


def test_a_pipeline_is_as_long_as_its_sequence():
    lengths = jnp.array([130, 0, 64, 1], i32)
    launch = reference("ragged_row_sums", S((4, 192, 128), f32), lengths)
    fetched = sum(copy.executed for copy in launch.copies)
    assert fetched.tolist() == [3, 0, 1, 1]


def test_pages_beyond_a_length_are_not_fetched():
    lengths, table = (
        jnp.array([37, 0, 16], i32),
        jnp.array([[3, 1, 4, 1], [5, 5, 5, 5], [0, 2, 2, 2]]),
    )
    q, pages = S((3, 1, 128), f32), S((8, 16, 128), f32)
    launch = reference("paged_attention", q, pages, pages, lengths, table)
    assert launch.inputs[1].transfers == 3 + 1 + 1


def test_decoding_is_bound_by_memory():
    shapes = S((8, 32, 128), f32), *2 * [S((8, 1024, 16, 128), f32)]
    lengths = jnp.full((8,), 1024, i32)
    table = jnp.asarray(np.arange(512).reshape(8, 64), i32)
    launch = reference("paged_grouped_attention", *shapes, lengths, table)
    chip = CHIPS["v5e"]
    assert launch.intensity * 20 < chip.flops_per_second / chip.hbm_bytes_per_second
