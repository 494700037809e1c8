"""Two programs are the same if they do the same: nothing is compiled twice or mixed up."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import launched
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from puzzles._launch import keeping_traces, kernels, trace_call
from puzzles._program import by_jax, fingerprint

X = jnp.arange(16 * 128, dtype=jnp.float32).reshape(16, 128)


def launch(
    body: Callable = lambda x: x + 1,
    rows: int = 8,
    index: Callable = lambda i: (i, 0),
    grid: int = 2,
    table: np.ndarray | None = None,
) -> Callable:
    def kernel(x_ref, o_ref):
        o_ref[...] = body(x_ref[...])

    def call(x):
        spec = pl.BlockSpec((rows, 128), index)
        out = launched.call(kernel, x, (grid,), [spec], spec)(x)
        return out if table is None else out + table

    return call


def of(fn: Callable, *args: jax.Array) -> object:
    return fingerprint(trace_call(fn, *(args or (X,))).jaxpr)


def test_equal_programs_are_the_same_whoever_traced_them() -> None:
    assert of(launch()) == of(launch())
    assert of(jax.jit(launch())) == of(jax.jit(launch()))
    table = np.ones((16, 128), np.float32)
    assert of(launch(table=table)) == of(launch(table=table.copy()))


@pytest.mark.parametrize(
    "other",
    [
        launch(lambda x: x + 2),
        lambda x: launch()(x.astype(jnp.bfloat16)),
        lambda x: launch()(x[:8]),
        launch(table=np.eye(16, 128, dtype=np.float32)),
        launch(lambda x: x - 1),
        launch(lambda x: 1 + x),
        launch(lambda x: (x + 1).astype(jnp.bfloat16).astype(jnp.float32)),
        launch(rows=16),
        launch(index=lambda i: (1 - i, 0)),
        launch(grid=1),
        launch(table=np.ones((16, 128), np.float32)),
        lambda x: launch()(launch()(x)),
    ],
)
def test_other_programs_are_told_apart(other: Callable) -> None:
    assert of(other) not in (of(launch()), of(launch(table=np.zeros((16, 128), np.float32))))


def test_a_body_with_refs_from_outside_has_one_fingerprint() -> None:
    def scoped(turned: bool, added: float) -> Callable:
        def kernel(x_ref, y_ref, o_ref):
            source = y_ref if turned else x_ref

            def body(buffer, sem):
                pltpu.async_copy(source, buffer, sem).wait()
                buffer[...] += added
                pltpu.async_copy(buffer, o_ref, sem).wait()

            pl.run_scoped(body, pltpu.VMEM(X.shape, X.dtype), pltpu.SemaphoreType.DMA)

        whole = pl.BlockSpec(memory_space=pl.ANY)
        return launched.call(kernel, X, (), [whole, whole], whole)

    assert of(scoped(False, 1.0), X, X) == of(scoped(False, 1.0), X, X)
    assert of(scoped(False, 1.0), X, X) != of(scoped(True, 1.0), X, X)
    assert of(scoped(False, 1.0), X, X) != of(scoped(False, 2.0), X, X)


def test_the_order_and_the_types_of_operands_are_part_of_a_program() -> None:
    assert of(lambda x, y: x - y, X, X) != of(lambda x, y: y - x, X, X)
    assert of(launch()) != of(launch(), X.astype(jnp.bfloat16))


def test_what_has_no_equality_is_the_same_as_itself_alone() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

    odd = Odd()
    assert fingerprint((1, odd)) != fingerprint((1, odd))
    hash(fingerprint((1, odd, {"a": [2]})))


def test_each_kernel_is_a_program_of_its_own_and_equal_ones_are_one() -> None:
    twice = trace_call(lambda x: launch()(launch()(x)) + jax.jit(launch(rows=16, grid=1))(x), X)
    assert len(twice.launches) == 3
    found = kernels(twice)
    assert len(found) == 2
    for one in found.values():
        (made,) = by_jax(one.jaxpr, [X])
        np.testing.assert_array_equal(made, X + 1)


def test_a_trace_is_kept_for_other_data_and_no_other_form() -> None:
    traced: list[tuple] = []

    def fn(x, n):
        traced.append(x.shape)
        return x * n

    with keeping_traces():
        for data, n in ((X, 2), (X + 1, 2), (X, 3), (X[:8], 2), (X[:8], 2)):
            one = trace_call(fn, data, n)
            np.testing.assert_array_equal(by_jax(one.jaxpr, one.leaves)[0], data * n)
    assert traced == [(16, 128), (16, 128), (8, 128)]
    trace_call(fn, X, 2)
    trace_call(fn, X, 2)
    assert len(traced) == 5
