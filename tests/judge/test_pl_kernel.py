"""Answers by `pl.kernel` are judged as answers by `pallas_call` are, on every JAX.

If JAX has no such `pl.kernel`, `kernels_on_old_jax` adds it: these cells are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles import INTERPRET, find, judge, kernels_on_old_jax, pipelines_on_cpu, trace
from puzzles._draw import walk_data, walk_text
from puzzles._launch import faults
from puzzles._receipt import receipt_text

kernels_on_old_jax()
pipelines_on_cpu()


def by_kernel(
    body: Callable, like: Any, *, scratch: Mapping = {}, cores: int = 1, order: tuple = ()
) -> Callable:
    """A function that runs `body` on so many cores; `like` gives the form of its result.

    order: the positions of the function's arguments as the kernel takes them.
    """

    def answer(*args: Any) -> Any:
        out = like(*args)
        made = {name: make(*args) for name, make in scratch.items()}
        kernel = pl.kernel(
            body,
            jax.ShapeDtypeStruct(out.shape, out.dtype),
            mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=cores),
            scratch_types=made,
            interpret=INTERPRET,
        )
        return kernel(*(args[n] for n in order or range(len(args))))

    return answer


def first(*args: Any) -> Any:
    return args[0]


def vmem(rows: int | None = None) -> Callable:
    def buffer(x: Any, *_: Any) -> Any:
        return pltpu.VMEM((rows or x.shape[0], *x.shape[1:]), x.dtype)

    return buffer


def add_ten_body(number: int = 10, come: bool = True, go: bool = True) -> Callable:
    def body(x_hbm, o_hbm, rows):
        if come:
            pltpu.sync_copy(x_hbm, rows)
        rows[...] = rows[...] + number
        if go:
            pltpu.sync_copy(rows, o_hbm)

    return body


def in_hbm_body(x_hbm, o_hbm, rows):
    rows[...] = x_hbm[...] + 10
    pltpu.sync_copy(rows, o_hbm)


def add_ten(body: Callable, cores: int = 1) -> Callable:
    return by_kernel(body, first, scratch={"rows": vmem()}, cores=cores)


def row_sum(zeros: bool = True, adds: bool = True, short: int = 0) -> Callable:
    def body(x_hbm, o_hbm):
        M, N = x_hbm.shape

        def add(x_ref, o_ref):
            if zeros:

                @pl.when(pl.program_id(1) == 0)
                def _():
                    o_ref[...] = jnp.zeros_like(o_ref)

            block = jnp.sum(x_ref[...], axis=1, keepdims=True)
            o_ref[...] = o_ref[...] + block if adds else block

        pltpu.emit_pipeline(
            add,
            grid=(M // 64, N // 128 - short),
            in_specs=[pl.BlockSpec((64, 128), lambda i, j: (i, j))],
            out_specs=[pl.BlockSpec((64, 1), lambda i, j: (i, 0))],
        )(x_hbm, o_hbm)

    return by_kernel(body, lambda x: jax.eval_shape(lambda x: x[:, :1], x))


def copy_rows(doubled: bool = True, table: bool = True) -> Callable:
    def body(start_hbm, x_hbm, o_hbm, start, rows):
        if table:
            pltpu.sync_copy(start_hbm, start)
        pltpu.sync_copy(x_hbm.at[pl.ds(pl.multiple_of(start[0], 8), 64)], rows)
        rows[...] = (2 if doubled else 1) * rows[...]
        pltpu.sync_copy(rows, o_hbm)

    scratch = {"start": lambda x, start: pltpu.SMEM((1,), start.dtype), "rows": vmem(64)}
    like = lambda x, _: jax.eval_shape(lambda x: x[:64], x)  # noqa: E731
    return by_kernel(body, like, scratch=scratch, order=(1, 0))


def pipelined_matmul(zeros: bool = True) -> Callable:
    def body(a_hbm, b_hbm, o_hbm, acc):
        (M, K), (_, N) = a_hbm.shape, b_hbm.shape

        def multiply(a_ref, b_ref, o_ref):
            if zeros:

                @pl.when(pl.program_id(2) == 0)
                def _():
                    acc[...] = jnp.zeros_like(acc)

            acc[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

            @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
            def _():
                o_ref[...] = acc[...]

        pltpu.emit_pipeline(
            multiply,
            grid=(M // 64, N // 128, K // 128),
            in_specs=[
                pl.BlockSpec((64, 128), lambda i, j, k: (i, k)),
                pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
            ],
            out_specs=[pl.BlockSpec((64, 128), lambda i, j, k: (i, j))],
        )(a_hbm, b_hbm, o_hbm)

    scratch = {"acc": lambda *_: pltpu.VMEM((64, 128), jnp.float32)}
    like = lambda a, b: jax.eval_shape(jnp.dot, a, b)  # noqa: E731
    return by_kernel(body, like, scratch=scratch)


def scale_blocks(x_block: Any, o_block: Any) -> None:
    i, j = pl.program_id(0), pl.program_id(1)
    o_block[...] = x_block[...] * (i * pl.num_programs(1) + j + 1)


def add_blocks(x_block: Any, y_block: Any, o_block: Any) -> None:
    o_block[...] = x_block[...] + y_block[...]


def in_blocks(rows: int, work: Callable, index: Callable = lambda i, j: (i, j)) -> Callable:
    """A pipeline that runs `work` on blocks of so many rows and 128 columns."""

    def body(*refs):
        block = pl.BlockSpec((rows, 128), index)
        M, N = refs[0].shape
        pltpu.emit_pipeline(
            work, grid=(M // rows, N // 128), in_specs=[block] * (len(refs) - 1), out_specs=[block]
        )(*refs)

    return by_kernel(body, first)


RIGHT = {
    "add_ten": add_ten(add_ten_body()),
    "row_sum": row_sum(),
    "copy_rows": copy_rows(),
    "pipelined_matmul": pipelined_matmul(),
    "scale_blocks": in_blocks(16, scale_blocks),
    "pipelined_add": in_blocks(64, add_blocks),
    "tiled_matmul": pipelined_matmul(),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_passes_and_is_not_asked_for_interpret(name: str) -> None:
    verdict = judge(find(name), RIGHT[name])
    assert verdict.passed, str(verdict)
    assert "interpret=INTERPRET" not in str(verdict)


WRONG = {
    "adds one": ("add_ten", add_ten(add_ten_body(1)), "adds one instead of ten"),
    "no copy in": ("add_ten", add_ten(add_ten_body(come=False)), "`rows`"),
    "no copy out": ("add_ten", add_ten(add_ten_body(go=False)), "no copy writes to it"),
    "indexes HBM": ("add_ten", add_ten(in_hbm_body), "`x_hbm` stays in HBM"),
    "no zeros": ("row_sum", row_sum(zeros=False), "added to before zeros were stored"),
    "overwrites": ("row_sum", row_sum(adds=False), "only the last block"),
    "a block short": ("row_sum", row_sum(short=1), "only 128 KiB of the 192 KiB of `x_hbm`"),
    "never zeroed": ("pipelined_matmul", pipelined_matmul(zeros=False), "`acc` is read before"),
    "undoubled": ("copy_rows", copy_rows(doubled=False), "unchanged"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_gets_a_message_that_names_its_cause(mistake: str) -> None:
    name, answer, says = WRONG[mistake]
    verdict = judge(find(name), answer)
    assert not verdict.passed
    words = " ".join(str(verdict).split())
    assert says in words, words
    assert all(word not in words for word in ("grid step", "pl.ANY", "mpmd_map")), words


def test_trace_counts_the_bytes_of_the_copies() -> None:
    x = jax.ShapeDtypeStruct((128, 256), np.float32)
    (launch,) = trace(RIGHT["add_ten"], x)
    assert launch.grid == ()
    assert launch.hbm_bytes_read == launch.hbm_bytes_written == 4 * 128 * 256


def test_the_steps_of_a_pipeline_are_steps() -> None:
    x = jax.ShapeDtypeStruct((1024, 262144), np.float32)
    (launch,) = launches = trace(RIGHT["row_sum"], x)
    if launch.unknown_loops:  # JAX 0.7 makes a long pipeline a loop whose length is not known
        (launch,) = launches = trace(RIGHT["row_sum"], jax.ShapeDtypeStruct((128, 384), np.float32))
    assert launch.all_steps in (6, 32768)
    words = f"{launch.all_steps:,} steps of a pipeline in the kernel"
    assert words in receipt_text(launches)
    assert words in walk_text(walk_data(launch))


def half_body(read: Callable, write: Callable) -> Callable:
    """Each core scales its half; read, write: the half that a core uses, by its number."""

    def body(x_hbm, o_hbm, rows):
        core, half = jax.lax.axis_index("core"), rows.shape[0]
        pltpu.sync_copy(x_hbm.at[pl.ds(read(core) * half, half)], rows)
        rows[...] = rows[...] + 10
        pltpu.sync_copy(rows, o_hbm.at[pl.ds(write(core) * half, half)])

    return body


def on_two_cores(body: Callable) -> Callable:
    rows = lambda x: pltpu.VMEM((x.shape[0] // 2, x.shape[1]), x.dtype)  # noqa: E731
    return by_kernel(body, first, scratch={"rows": rows}, cores=2)


def own(core: Any) -> Any:
    return core


def test_an_answer_on_two_cores_passes() -> None:
    verdict = judge(find("add_ten"), on_two_cores(half_body(own, own)))
    assert verdict.passed, str(verdict)


def test_bytes_are_counted_for_each_core() -> None:
    x = jax.ShapeDtypeStruct((256, 256), np.float32)
    (launch,) = launches = trace(on_two_cores(half_body(own, own)), x)
    assert launch.bytes_by_core.tolist() == [[131072, 131072]] * 2
    words = receipt_text(launches, "v5p")
    assert "cores  each: read 128 KiB, written 128 KiB; the time is the slower core's" in words
    assert "2 cores" in walk_text(walk_data(launch))


def test_rows_that_two_cores_write_are_named() -> None:
    zero = lambda core: 0 * core  # noqa: E731
    x = jax.ShapeDtypeStruct((256, 256), np.float32)
    (launch,) = trace(on_two_cores(half_body(own, zero)), x)
    (fault,) = faults(launch)
    assert (fault.kind, fault.operand) == ("race", "o_hbm")
    assert "rows 0 to 127 of `o_hbm` on core 0 and on core 1" in fault.words
    (launch,) = trace(on_two_cores(half_body(own, own)), x)
    assert faults(launch) == ()


def test_two_cores_may_copy_no_rows_to_one_place() -> None:
    whole = half_body(own, own)

    def body(x_hbm, o_hbm, rows):
        whole(x_hbm, o_hbm, rows)
        pltpu.sync_copy(rows.at[pl.ds(0, 0)], o_hbm.at[pl.ds(8, 0)])

    (launch,) = trace(on_two_cores(body), jax.ShapeDtypeStruct((256, 256), np.float32))
    assert faults(launch) == ()


def test_all_rows_that_two_cores_write_are_refused_though_the_numbers_are_right() -> None:
    verdict = judge(find("add_ten"), add_ten(add_ten_body(), cores=2))
    assert not verdict.passed
    assert "rows 0 to 7 of `o_hbm` on core 0 and on core 1" in str(verdict)
