"""Receipts: every number is calculated by hand, and every bound has its name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call, from_hbm

import puzzles
from puzzles._compile import CHIPS, counted, price
from puzzles._judge.cost import Cost
from puzzles._judge.costs import Scale
from puzzles._judge.verdict import beside as beside_reference
from puzzles._launch import trace
from puzzles._receipt import receipt_text

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct


def rows(fn, *args, chip="v5e") -> dict[str, str]:
    """The lines of a receipt by their labels."""
    lines = receipt_text(trace(fn, *args), chip).splitlines()[1:]
    return {line[:6].strip(): line[7:] for line in lines}


def over_rows(kernel, block=(8, 128), out=None):
    """A function of x that launches `kernel` over blocks of its rows."""

    def fn(x):
        spec = pl.BlockSpec(block, lambda i: (i, 0))
        o_spec = pl.BlockSpec((block[0], out or block[1]), lambda i: (i, 0))
        shape = S((x.shape[0], out or x.shape[1]), x.dtype)
        return call(kernel, shape, (x.shape[0] // block[0],), [spec], o_spec)(x)

    return fn


def twice(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0


def test_the_ridge_is_said_to_be_of_bf16_where_operands_are_f32():
    rounded = "needs 240 to be busy, with f32 operands rounded to bf16, as by default"
    for dtype, said in ((f32, True), (jnp.bfloat16, False)):
        x, w, sizes = S((128, 256), dtype), S((2, 256, 128), dtype), jnp.array([60, 40])
        launches = trace(puzzles.find("grouped_matmul").solution, x, w, sizes)
        assert (rounded in receipt_text(launches)) is said
        assert (rounded.replace("240", "240 FLOPs per byte") in receipt_text(launches * 2)) is said


def test_a_launch_that_moves_nothing_has_no_roof():
    def kernel(x_ref, o_ref):
        del x_ref, o_ref

    fn = from_hbm(kernel, out_specs=HBM)
    assert set(rows(fn, S((8, 128), f32))) == {"grid", "HBM", "VMEM", "FLOPs"}


def test_every_step_that_moves_a_block_has_a_price():
    # two more for the first fetch and the last write; 8 KiB a step at 820 GB/s are 10 ns
    for steps in (1, 3, 63, 64):
        launches = trace(over_rows(twice), S((8 * steps, 128), f32))
        assert price(launches, CHIPS["v5e"]).steps == pytest.approx((steps + 2) * 0.4e-6)
    said = rows(over_rows(twice), S((8 * 64, 128), f32))
    assert said["time"] == "about 26.4 µs on one v5e, bound by its steps"
    assert said["causes"].startswith("its steps 26.4 µs, the vector unit ")
    assert said["causes"].endswith("HBM meanwhile 639 ns")
    v6e = rows(over_rows(twice), S((8 * 64, 128), f32), chip="v6e")
    assert v6e["time"] == "about 13.5 µs on one v6e, bound by its steps"
    v4 = rows(over_rows(twice), S((8 * 64, 128), f32), chip="v4")
    assert v4["time"].startswith("at least ")
    assert "of v4 are not estimated" in v4["causes"]
    large = rows(over_rows(twice, (1024, 1024)), S((64 * 1024, 1024), f32))
    assert large["time"] == "at least 655 µs on one v5e, bound by HBM"


def test_a_block_that_stays_costs_no_step():
    def still(x):
        spec = pl.BlockSpec((8, 128), lambda i: (0, 0))
        return call(twice, x, (64,), [spec], spec)(x)

    (launch,) = trace(still, S((8, 128), f32))
    assert (launch.steps, launch.moving_steps) == (64, 1)


def test_steps_of_emit_pipeline_count_as_the_grid_s_do():
    puzzles.pipelines_on_cpu()
    for size, steps in ((256, 8), (4096, 2048)):  # the second is too long to follow
        x = S((size, size), f32)
        (launch,) = trace(puzzles.find("pipelined_add").solution, x, x)
        assert launch.steps == 1
        if launch.unknown_loops:  # JAX 0.7 makes the second a loop whose length is not known
            assert price((launch,), CHIPS["v5e"]).bound == "at least"
        else:
            assert counted(launch).moving_steps == steps


def test_precision_takes_passes_of_the_matrix_unit():
    def product(precision):
        def kernel(x_ref, o_ref):
            o_ref[...] = jnp.dot(x_ref[...], x_ref[...], precision=precision)

        x = S((256, 256), f32)
        return over_rows(kernel, (256, 256)), x

    seconds = {}
    for precision, passes in ((None, 1), ("high", 3), ("highest", 6)):
        (launch,) = trace(*product(precision))
        assert launch.dots[0].passes == passes
        seconds[passes] = price((launch,), CHIPS["v5e"]).matrix - CHIPS["v5e"].dot_seconds
        assert ("rounded to bf16" in receipt_text((launch,))) is (passes == 1)
    assert seconds[6] == pytest.approx(6 * seconds[1])
    assert seconds[3] == pytest.approx(3 * seconds[1])


def test_a_narrow_head_takes_the_matrix_unit_as_long_as_a_full_one():
    def product(depth):
        def kernel(x_ref, y_ref, o_ref):
            o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=f32)

        fn = call(kernel, S((128, 128), f32))
        return trace(fn, S((128, depth), jnp.bfloat16), S((depth, 128), jnp.bfloat16))

    matrix = [price(product(depth), CHIPS["v5e"]).matrix for depth in (64, 128, 256)]
    assert matrix[0] == matrix[1] < matrix[2]


def test_waits_that_no_work_hides_are_said_to_cost_more_than_their_bytes():
    # two copies of 256 KiB, one after the other: 0.64 us of bytes, and 0.8 us of waiting for each
    x = S((128, 1024), f32)
    one_by_one = rows(puzzles.find("stream_sum").solution, x)
    assert one_by_one["time"].endswith("bound by its waits")
    assert one_by_one["causes"].startswith("its waits 1.6 µs")
    on_v6e = rows(puzzles.find("stream_sum").solution, x, chip="v6e")
    assert on_v6e["causes"].startswith("its waits 700 ns")
    # The first copy is never hidden; among many copies it does not take the longest.
    two_slots = rows(puzzles.find("double_buffered_sum").solution, S((4096, 1024), f32))
    assert two_slots["time"].endswith("bound by HBM")


def test_a_column_is_stored_wider_than_it_is():
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.sum(x_ref[...], axis=1, keepdims=True)

    said = rows(over_rows(kernel, (64, 128), out=1), S((192, 128), f32))
    assert said["HBM"] == "read 96 KiB, written 768 B"
    assert said["stored"] == (
        "o_ref (192, 1) takes 96 KiB of HBM: padded to 128 columns, which is not counted above"
    )
    assert "stored" not in rows(over_rows(twice), S((64, 128), f32))
    # Several launches, and a pass, say the same of it, once.
    launches = trace(over_rows(kernel, (64, 128), out=1), S((192, 128), f32))
    assert receipt_text(launches * 2).count(said["stored"]) == 1
    cost = Cost(launches, ())
    assert f"stored  {said['stored']}" in beside_reference(Scale("", cost, cost), ())


def test_scalars_are_no_blocks():
    puzzle = puzzles.find("copy_rows")
    cost = Cost(trace(puzzle.solution, *puzzle.arguments(0)), ())
    assert cost.transfers == 2  # rows in, rows out; their first indices go to SMEM
    assert {one.space for one in cost.launches[0].inputs if one.piped} == {"smem"}


def test_a_launch_that_does_not_compile_says_so_in_its_receipt(capsys):
    def kernel(x_ref, o_ref, slot, sem):
        copy = pltpu.make_async_copy(x_ref, slot, sem)
        copy.start()
        copy.wait()
        o_ref[...] = slot[...].astype(f32)

    def copied(dtype):
        return from_hbm(kernel, pltpu.VMEM((16, 128), dtype), pltpu.SemaphoreType.DMA)

    puzzles.receipt(copied(jnp.bfloat16), S((16, 128), f32))
    said = capsys.readouterr().out
    assert "TPU    does not compile: Mosaic refuses" in said
    assert "source and target element type mismatch" in said
    puzzles.receipt(copied(f32), S((16, 128), f32))
    assert "does not compile" not in capsys.readouterr().out


def branching(x_ref, o_ref):
    @pl.when(x_ref[0, 0] > 0)
    def _():
        o_ref[...] = jnp.dot(x_ref[...], x_ref[...], preferred_element_type=f32)


def looping(x_ref, o_ref):
    count = x_ref[0, 0].astype(i32)
    o_ref[...] = lax.fori_loop(
        0, count, lambda _, c: jnp.dot(c, x_ref[...], preferred_element_type=f32), x_ref[...]
    )


def both(x_ref, o_ref):
    branching(x_ref, o_ref)
    looping(x_ref, o_ref)


def beside(x_ref, o_ref):
    both(x_ref, o_ref)
    o_ref[...] += jnp.dot(x_ref[...], x_ref[...], preferred_element_type=f32)


TAKEN = "1 branch on data or in too long a loop, counted as taken"
ONCE = "1 loop of unknown length, counted once"


@pytest.mark.parametrize(
    ("kernel", "flops", "data"),
    [
        (branching, "at most 8.39 M, ", TAKEN),
        (looping, "8.39 M if each loop runs once", ONCE),
        (both, "16.8 M if each loop runs once", f"{TAKEN}; {ONCE}"),
        (beside, "at least 8.42 M", f"{TAKEN}; {ONCE}"),
    ],
)
def test_what_depends_on_data_is_a_bound(kernel, flops, data):
    said = rows(over_rows(kernel, (128, 128)), S((256, 128), f32))
    assert said["FLOPs"].startswith(flops)
    assert ("roof" in said) == (kernel is branching)  # else no share of a peak is known
    assert said["HBM"] == "read 128 KiB, written 128 KiB"
    assert said["data"] == data


def limited(limit):
    """Two buffers each of 1280 x 1024 f32: 20 MiB."""

    def fn(x):
        spec = pl.BlockSpec((1280, 1024), lambda i: (i, 0))
        params = pltpu.CompilerParams(vmem_limit_bytes=limit)
        return call(twice, x, (2,), [spec], spec, compiler_params=params)(x)

    return fn


@pytest.mark.parametrize(
    ("chip", "limit", "says"),
    [
        ("v5e", None, "20 MiB of the 16 MiB a kernel gets on v5e: does not fit. Take smaller "
         "blocks, or ask for more by pltpu.CompilerParams(vmem_limit_bytes=...): a core of v5e has "
         "128 MiB"),
        ("v4", None, "20 MiB of the 16 MiB a kernel gets on v4: does not fit. Take smaller blocks"),
        ("v5e", 24 * 2**20, "20 MiB of the 24 MiB this launch may use: close, and the compiler may "
         "need some more"),
        ("v5e", 32 * 2**20, "20 MiB of the 32 MiB this launch may use"),
    ],
)  # fmt: skip
def test_what_does_not_fit_into_vmem_is_said_with_the_remedy(chip, limit, says):
    assert rows(limited(limit), S((2560, 1024), f32), chip=chip)["VMEM"] == says


def test_the_receipt_of_several_launches_is_a_table():
    x = S((2560, 1024), f32)
    three = trace(
        lambda x: (
            limited(None)(x),
            over_rows(twice)(x[:, :128]),
            over_rows(looping, (128, 128))(x[:, :128]),
        ),
        x,
    )
    head, columns, first, second, third, chip = receipt_text(three, title="all").splitlines()
    assert head == "receipt for all"
    assert columns.split() == ["grid", "steps", "read", "written", "VMEM", "FLOPs", "time"]
    assert first.split("  ")[0] == "1 twice"
    assert "20 MiB of 16 MiB: does not fit" in first
    assert "(320,)    320" in second
    assert second.count("16 KiB") == 1  # two buffers each of two operands
    assert "83.9 M if each loop runs once" in third
    assert chip.startswith("v5e's matrix unit needs 240 FLOPs per byte")


def test_the_table_has_scalars_and_the_limit_of_each_launch():
    def prefetched(x):
        def kernel(s_ref, x_ref, o_ref):
            twice(x_ref, o_ref)

        spec = pl.BlockSpec((8, 128), lambda i, s_ref: (s_ref[i], 0))
        numbers = jnp.zeros(2**18 + 1024, i32)
        return call(kernel, x, (2,), [spec], spec, scalars=1)(numbers, x)

    both = trace(lambda x: (limited(24 * 2**20)(x), prefetched(x[:16, :128])), S((2560, 1024), f32))
    _, columns, first, second, _ = receipt_text(both).splitlines()
    assert columns.split() == ["grid", "steps", "read", "written", "VMEM", "SMEM", "FLOPs", "time"]
    assert "20 MiB of 24 MiB: close" in first
    assert "1,052,672 B of 1,048,576 B: does not fit" in second


def test_a_puzzle_without_arguments_is_counted_on_its_first_case(capsys):
    fn = puzzles.find("tiled_matmul").solution
    puzzles.receipt(fn)
    alone = capsys.readouterr().out
    puzzles.receipt(fn, *puzzles.find("tiled_matmul").arguments(0))
    assert alone == capsys.readouterr().out
    assert "grid   (2, 2, 3) = 12 steps" in alone
    assert "\ntimes are a sum of terms fitted to libtpu's estimates" in alone
    puzzles.receipt(puzzles.find("choose_blocks").solution)  # a configuration makes a launch
    assert "HBM" in capsys.readouterr().out


def test_a_chip_that_is_not_there_is_named(capsys):
    puzzles.receipt(over_rows(twice), chip="v3")
    assert "no chip is called 'v3'" in capsys.readouterr().out


def aliased(given):
    """Half of the output is written by the kernel, half was there before."""

    def kernel(x_ref, given_ref, o_ref):
        del given_ref
        o_ref[...] = x_ref[...]

    def fn(x, *args):
        row, shape = pl.BlockSpec((8, 128), lambda i: (i, 0)), S((32, 128), f32)
        half = call(kernel, shape, (2,), [row, HBM], row, input_output_aliases={1: 0})
        return half(x, given(x, *args))

    return fn


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda x: jnp.zeros((32, 128), f32), "XLA fills 16 KiB of `o_ref`: not counted above"),
        (lambda x: jnp.tile(x, (2, 1)) * 2, "XLA computes 16 KiB of `o_ref`: not counted above"),
        (lambda x, y: y, "XLA copies 16 KiB for `o_ref`, unless the argument is donated: not "
         "counted above"),
    ],
)  # fmt: skip
def test_a_receipt_tells_what_xla_writes_for_an_aliased_output(given, says):
    args = S((16, 128), f32), S((32, 128), f32)
    said = rows(aliased(given), *args[: given.__code__.co_argcount])
    assert said["before"] == says
    assert said["HBM"] == "read 8 KiB, written 8 KiB"


def test_what_another_launch_wrote_was_counted_there():
    def fn(x):
        first = over_rows(twice)(jnp.zeros((32, 128), f32))
        return aliased(lambda _: first)(x)

    second = trace(fn, S((16, 128), f32))[1]
    assert second.around.made == ()
