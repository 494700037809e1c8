"""What a kernel reads too early, never reads or writes, and which blocks nobody is given."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles._launch import Launch, trace_call
from puzzles._launch.touched import begun_elsewhere

SPEC = pl.BlockSpec((8, 128), lambda i, j: (i, j))


def launched(
    kernel: Callable, *, x_map: Callable = lambda i, j: (i, j), column: bool = False
) -> Launch:
    """Two inputs in 2 × 3 blocks, the output in 2 × 3, or a column of 2; scratch of a block."""
    out = pl.BlockSpec((8, 128), (lambda i, j: (i, 0)) if column else (lambda i, j: (i, j)))

    def call(x, y):
        return pl.pallas_call(
            kernel,
            grid=(2, 3),
            in_specs=[pl.BlockSpec((8, 128), x_map), SPEC],
            out_specs=out,
            out_shape=jax.ShapeDtypeStruct((16, 128 if column else 384), jnp.float32),
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
            interpret=True,
        )(x, y)

    (launch,) = trace_call(call, jnp.ones((16, 384)), jnp.ones((16, 384))).launches
    return launch


def stores(x_ref, y_ref, o_ref, acc_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


def sums(x_ref, y_ref, o_ref, acc_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[...] + y_ref[...]

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...]


def sums_in_a_loop(x_ref, y_ref, o_ref, acc_ref):
    o_ref[...] = jnp.zeros_like(o_ref)

    def add(n, _):
        rows = pl.ds(2 * n, 2)
        o_ref[rows, :] += x_ref[rows, :] + y_ref[rows, :]

    jax.lax.fori_loop(0, 4, add, None)


def by_data(x_ref, y_ref, o_ref, acc_ref):
    @pl.when(x_ref[0, 0] > 0)
    def _():
        o_ref[...] = y_ref[...]

    o_ref[...] += y_ref[...]


@pytest.mark.parametrize("kernel", [stores, sums_in_a_loop])
def test_of_a_kernel_that_reads_what_was_written_nothing_is_told(kernel: Callable) -> None:
    seen = launched(kernel).touched
    assert (seen.early, seen.unread, seen.unwritten) == ((), (), ())


def test_a_sum_that_is_zeroed_at_its_first_step_is_not_read_early() -> None:
    seen = launched(sums, column=True).touched
    assert (seen.early, seen.unwritten) == ((), ())


def test_what_a_branch_on_data_may_have_written_is_not_read_early() -> None:
    assert launched(by_data).touched.early == ()


def test_an_output_that_is_only_added_to_is_read_at_its_first_step() -> None:
    def adds(x_ref, y_ref, o_ref, acc_ref):
        o_ref[...] += x_ref[...] + y_ref[...]

    assert launched(adds).touched.early == (("o_ref", 0),)


def test_an_output_that_is_added_to_at_the_last_step_is_read_there() -> None:
    def adds_last(x_ref, y_ref, o_ref, acc_ref):
        acc_ref[...] = x_ref[...] + y_ref[...]

        @pl.when(pl.program_id(1) == 2)
        def _():
            o_ref[...] += acc_ref[...]

    assert launched(adds_last, column=True).touched.early == (("o_ref", 2),)


def test_every_block_of_an_output_needs_its_own_first_write_and_scratch_needs_one() -> None:
    def zeroed_once(x_ref, y_ref, o_ref, acc_ref):
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when((i == 0) & (j == 0))
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        o_ref[...] += y_ref[...]

    assert launched(zeroed_once, column=True).touched.early == (("o_ref", 3),)


def test_inputs_that_nobody_reads_and_outputs_that_nobody_writes_are_named() -> None:
    def idle(x_ref, y_ref, o_ref, acc_ref):
        @pl.when(pl.program_id(0) == 2)  # there are 0 and 1
        def _():
            o_ref[...] = x_ref[...]

        acc_ref[...] = y_ref[...]

    seen = launched(idle).touched
    assert seen.unread == ("x_ref",)
    assert seen.unwritten == ("o_ref",)


def test_blocks_of_an_output_into_which_nothing_is_written_are_counted() -> None:
    def some(x_ref, y_ref, o_ref, acc_ref):
        @pl.when(pl.program_id(1) + pl.program_id(0) > 1)
        def _():
            o_ref[...] = x_ref[...] + y_ref[...]

    # Blocks (0, 0), (0, 1) and (1, 0) stay as they are; in a column the row's last step writes.
    assert launched(some).touched.unstored == (("o_ref", 3, 6, (0, 0), 0),)
    assert launched(some, column=True).touched.unstored == ()
    assert launched(stores).touched.unstored == ()


def test_a_copy_by_hand_reads_its_source_and_writes_its_target() -> None:
    def copies(x_ref, y_ref, o_ref, acc_ref):
        def body(semaphore):
            copy = pltpu.make_async_copy(x_ref, o_ref, semaphore)
            copy.start()
            copy.wait()

        pl.run_scoped(body, pltpu.SemaphoreType.DMA)
        o_ref[...] += y_ref[...]

    seen = launched(copies).touched
    assert (seen.early, seen.unread, seen.unwritten) == ((), (), ())


@pytest.mark.parametrize(
    ("parallel", "zeroes", "told"),
    [((0,), 0, ("acc_ref", 3, 0)), ((0,), 1, None), ((1,), 1, ("acc_ref", 2, 1)), ((), 0, None)],
)
def test_a_second_core_begins_in_the_middle_of_a_parallel_axis_with_its_own_scratch(
    parallel: tuple[int, ...], zeroes: int, told: tuple[str, int, int] | None
) -> None:
    def begins(x_ref, y_ref, o_ref, acc_ref):
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when((j == 0) & ((i == 0) | bool(zeroes)))
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...] + y_ref[...]
        o_ref[...] = acc_ref[...]

    launch = launched(begins)
    about = launch.touches, launch.scratch, launch.grid, launch.program_ids
    assert begun_elsewhere(*about, parallel) == told


def test_a_step_without_arithmetic_is_not_idle_where_a_block_has_no_other_store() -> None:
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 1)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        @pl.when(pl.program_id(0) != 1)
        def _():
            o_ref[...] = x_ref[...] + 1

    def launch(out):
        (one,) = trace_call(
            lambda x: pl.pallas_call(
                kernel,
                grid=(3,),
                in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
                out_specs=pl.BlockSpec((8, 128), out),
                out_shape=jax.ShapeDtypeStruct((24, 128), jnp.float32),
            )(x),
            jnp.zeros((24, 128)),
        ).launches
        return one

    own, shared = launch(lambda i: (i, 0)), launch(lambda i: (0, 0))
    assert own.busy.tolist() == shared.busy.tolist() == [True, False, True]
    assert own.idle.tolist() == [False, False, False]
    assert shared.idle.tolist() == [False, True, False]
