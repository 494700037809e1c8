"""The statements of pipelines, shown by running code; pipelines.toml lists them."""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import (
    HBM,
    call,
    from_hbm,
    interpreted,
    mistaken,
    one,
    reference,
    refused,
    simulated,
    traced,
)

import puzzles
from puzzles import _puzzle
from puzzles._compile import CHIPS

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct


def random(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), f32)


X = S((16, 128), f32)
SLOT = pltpu.VMEM((16, 128), f32), pltpu.SemaphoreType.DMA


@pytest.mark.parametrize(
    ("puzzle", "name", "more"),
    [
        ("copy_rows", "does not wait for the rows", [jnp.array([8])]),
        ("fix_the_copy", "waits after the use", []),  # its starter
    ],
)
def test_interpret_true_copies_at_once_and_the_simulator_does_not(puzzle, name, more):
    fn, x = mistaken(puzzle, name), random(320, 128)
    want = 2 * np.asarray(x)[8:72] if more else 2 * x
    np.testing.assert_array_equal(interpreted(fn, x, *more), want)
    assert "before a wait for the copy" in refused(fn, x, *more).says


def test_a_simulated_copy_comes_when_it_is_waited_for():
    def kernel(x_ref, o_ref, rows_ref, sem):
        copy = pltpu.make_async_copy(x_ref, rows_ref, sem)
        copy.start()
        o_ref[...] = rows_ref[...]  # too early
        copy.wait()

    for interpret, comes in ((pltpu.InterpretParams(), np.nan), (True, 1)):
        fn = from_hbm(kernel, *SLOT, interpret=interpret)
        np.testing.assert_array_equal(fn(jnp.ones((16, 128))), np.full((16, 128), comes))


@pytest.mark.newest
@pytest.mark.parametrize(("shared", "told"), [(False, True), (True, False)])
def test_detect_races_tells_a_missing_wait_and_no_shared_semaphore(shared, told, capfd):
    def kernel(x_ref, o_ref, rows_ref, sem):
        parts = [pl.ds(0, 8), pl.ds(8, 8)]
        come = [pltpu.make_async_copy(x_ref.at[rows], rows_ref.at[rows], sem) for rows in parts]
        for copy in come:
            copy.start()
        for copy, rows in zip(come, parts, strict=True):
            if shared:
                copy.wait()  # the bytes of either end it
            o_ref[rows] = 2 * rows_ref[rows]
        for copy in () if shared else come:
            copy.wait()

    x, racing = random(16, 128), pltpu.InterpretParams(detect_races=True)
    raises = told and jax.__version_info__ >= (0, 12)  # JAX has printed the race to it
    with pytest.raises(RuntimeError) if raises else contextlib.nullcontext() as error:
        jax.block_until_ready(from_hbm(kernel, *SLOT, interpret=racing)(x))
    pltpu.reset_tpu_interpret_mode_state()
    said = "".join(capfd.readouterr()) + (str(error.value) if raises else "")
    assert ("RACE DETECTED" in said) is told
    assert (said.count(f"{__file__}:") >= 2) is told
    assert "before a wait for the copy" in refused(from_hbm(kernel, *SLOT), x).says


def halves(waited: int):
    """Twice x: its halves come on one semaphore, and one wait takes the bytes of `waited` rows."""

    def kernel(x_ref, o_ref, rows_ref, sem):
        for half in (pl.ds(0, 8), pl.ds(8, 8)):
            pltpu.make_async_copy(x_ref.at[half], rows_ref.at[half], sem).start()
        taken = pl.ds(0, waited)
        pltpu.make_async_copy(x_ref.at[taken], rows_ref.at[taken], sem).wait()
        o_ref[...] = 2 * rows_ref[...]

    return from_hbm(kernel, *SLOT)


def test_a_wait_takes_as_many_bytes_as_its_copy_has():
    x = random(16, 128)
    np.testing.assert_array_equal(simulated(halves(16), x), 2 * x)
    assert "2 copies were in flight on it" in refused(halves(8), x).says


PREFETCH = """        @pl.when(i + 1 < n)
        def _():
            fetch(i + 1, 1 - slot).start()

"""
WAIT = "        fetch(i, slot).wait()\n"


def wait_first():
    """`double_buffered_sum` that waits first, and then starts the next copy."""
    puzzle = puzzles.find("double_buffered_sum")
    assert PREFETCH + WAIT in puzzle.text
    text = puzzle.text.replace(PREFETCH + WAIT, WAIT + "\n" + PREFETCH.rstrip("\n") + "\n")
    return _puzzle.load(puzzle, text, "wait-first")["double_buffered_sum"]


def test_copies_in_flight():
    x = S((512, 256), f32)
    assert list(reference("stream_sum", x).in_flight) == [1] * 8
    assert list(reference("double_buffered_sum", x).in_flight) == [2] * 7 + [1]
    assert list(one(wait_first(), x).in_flight) == [1] * 8
    y = S((256, 256), f32)
    flights = reference("pipelined_add", y, y).in_flight
    assert flights[-1] == 1
    assert (flights[:-1] > 1).all()


def estimated(fn, *args) -> int:
    cycles = pytest.importorskip("puzzles._compile.compiler")  # with libtpu, of the newest JAX
    try:
        return cycles.estimated_cycles(traced(fn, *args), "v5e")
    except Exception as error:  # no libtpu here, or one that estimates nothing
        pytest.skip(str(error))


@sample.drill
def test_estimated_cycles_of_the_two_sums():
    x = S((8192, 1024), f32)
    for puzzle, said in (("stream_sum", 222_024), ("double_buffered_sum", 12_847)):
        assert abs(estimated(puzzles.find(puzzle).solution, x) - said) < 0.2 * said


@sample.drill
def test_both_entry_points_take_equal_cycles() -> None:
    puzzle, x = puzzles.find("pipelined_matmul"), S((512, 512), f32)
    kernel = _puzzle.load(puzzle, puzzle.text, "by-kernel")["pipelined_matmul_kernel"]

    def by_kernel(a: jax.Array, b: jax.Array) -> jax.Array:
        mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
        scratch = [pltpu.VMEM((64, 128), f32)]
        return pl.kernel(kernel, x, mesh=mesh, scratch_types=scratch)(a, b)

    one, other = (estimated(fn, x, x) for fn in (puzzle.solution, by_kernel))
    assert abs(one - other) < 0.02 * one


CLOCK = CHIPS["v5e"].flops_per_second / (4 * 2 * 128 * 128)  # four matrix units of 128 by 128
BYTES_A_CYCLE = CHIPS["v5e"].hbm_bytes_per_second / CLOCK


def a_round(name: str, rows: int) -> float:
    """The estimated cycles of a round of a sum over blocks of `rows` rows."""
    puzzle = puzzles.find(name)
    fn = _puzzle.load(puzzle, puzzle.text.replace("64", str(rows)), f"{rows}-rows")[name]
    few, many = (estimated(fn, S((rows * n, 1024), f32)) for n in (16, 32))
    return (many - few) / 16


@sample.drill
def test_the_estimate_counts_a_copy_that_is_waited_for_and_none_that_was_started_before():
    block = 64 * 1024 * 4
    serial = [a_round("stream_sum", rows) for rows in (64, 512)]
    transfer = (serial[1] - serial[0]) / (7 * block)  # cycles a byte
    assert 0.8 < transfer * BYTES_A_CYCLE < 1.5
    assert serial[0] - transfer * block > 800  # to begin
    assert a_round("double_buffered_sum", 512) < 0.1 * 8 * block / BYTES_A_CYCLE


def pipeline(body, grid, o_map, scratch=()):
    """`body` over (8, 128) blocks of x, written to the blocks of `o_map`."""

    def kernel(x_ref, o_ref, *scratch_refs):
        block = pl.BlockSpec((8, 128), lambda *at: (at[-1], 0))
        out = pl.BlockSpec((8, 128), o_map)
        run = pltpu.emit_pipeline(
            functools.partial(body, *scratch_refs), grid=grid, in_specs=[block], out_specs=[out]
        )
        run(x_ref, o_ref)

    return from_hbm(kernel, *scratch, out_specs=HBM)


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


def strips(mode=None):
    """a @ b by a pipeline alone: a strip of b, buffered so, meets four blocks of a."""

    def multiply(a_block, strip, o_block):
        o_block[...] = jnp.dot(a_block[...], strip[...], preferred_element_type=f32)

    def kernel(a_ref, b_ref, o_ref):
        (M, K), N = a_ref.shape, b_ref.shape[1]
        pltpu.emit_pipeline(
            multiply,
            grid=(N // 128, M // 64),
            in_specs=[
                pl.BlockSpec((64, K), lambda j, i: (i, 0)),
                pl.BlockSpec((K, 128), lambda j, i: (0, j), pipeline_mode=mode),
            ],
            out_specs=[pl.BlockSpec((64, 128), lambda j, i: (i, j))],
        )(a_ref, b_ref, o_ref)

    return lambda a, b: pl.pallas_call(
        kernel, in_specs=[HBM, HBM], out_specs=HBM, interpret=True,
        out_shape=S((a.shape[0], b.shape[1]), f32),
    )(a, b)  # fmt: skip


MATRICES = S((256, 512), f32), S((512, 640), f32)


def hidden(launch) -> float:
    """The part of a strip's work that runs from the start of the next one's copy to its wait."""
    its = launch.waits["b_ref"]
    assert its.count == 5
    return round(5 * its.hidden / 4, 2)


def test_a_pipeline_starts_a_copy_one_step_ahead_and_earlier_if_it_looks_ahead():
    assert hidden(one(strips(), *MATRICES)) == 1 / 4
    assert hidden(one(strips(pl.Buffered(2, use_lookahead=True)), *MATRICES)) == 1
    assert hidden(reference("launch_pipeline", *MATRICES)) == 1


def test_a_copy_that_starts_early_costs_no_byte_and_no_slot():
    late, early = one(strips(), *MATRICES), reference("launch_pipeline", *MATRICES)
    assert late.hbm_bytes == early.hbm_bytes
    assert late.vmem_bytes == early.vmem_bytes


def test_a_third_slot_is_one_step_and_one_block_more():
    two, three = (one(strips(pl.Buffered(count)), *MATRICES) for count in (2, 3))
    assert hidden(three) - hidden(two) == 1 / 4
    assert three.vmem_bytes - two.vmem_bytes == 512 * 128 * 4
    assert three.hbm_bytes == two.hbm_bytes


@sample.in_turn
def test_smem_pads_rows_to_128_numbers(compiler):
    def copy(table_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    def picked(at, table, x):
        read = pl.BlockSpec((8, 128), lambda i, table_ref: (table_ref[at(i)], 0))
        written = pl.BlockSpec((8, 128), lambda i, table_ref: (i, 0))
        return call(copy, x, (4,), [read], written, scalars=1)(table, x)

    table, x = jnp.zeros((4096, 32), i32), S((32, 128), f32)
    rows = traced(lambda t, x: picked(lambda i: (i, 0), t, x), table, x)
    flat = traced(lambda t, x: picked(lambda i: i, t, x), table.reshape(-1), x)
    assert compiler.compile(flat, ["v5e"]) == {"v5e": None}  # half a MiB
    refused = compiler.compile(rows, ["v5e"])["v5e"]
    assert "an array in SMEM takes 2 MiB" in (refused or "")


@pytest.mark.newest
def test_a_mesh_without_a_number_of_cores_asks_the_device() -> None:
    def twice(cores: dict) -> object:
        mesh = pltpu.TensorCoreMesh(axis_name="core", **cores)
        return jax.eval_shape(pl.kernel(pltpu.sync_copy, X, mesh=mesh), X)

    assert twice({"num_cores": 1}).shape == X.shape
    with pytest.raises(AttributeError):
        twice({})
