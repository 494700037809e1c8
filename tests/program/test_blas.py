"""Products in NumPy: one thread while a program runs step by step, and the same numbers."""

import numpy as np
import pytest

from puzzles._program import blas, one_blas_thread

own = pytest.mark.skipif(not blas._openblas(), reason="NumPy has no OpenBLAS of its own")


@pytest.fixture(autouse=True)
def without_threadpoolctl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_controller", lambda: None)


@own
def test_products_have_one_thread_within_and_as_many_as_before_afterwards() -> None:
    ((read, write),) = blas._openblas()
    before = read()
    write(2)
    try:
        with one_blas_thread():
            assert read() == 1
        assert read() == 2
    finally:
        write(before)


@own
def test_one_thread_gives_the_same_bits() -> None:
    ((read, write),) = blas._openblas()
    before, draw = read(), np.random.default_rng(0)
    a, b = (draw.normal(size=(512, 512)).astype(np.float32) for _ in range(2))
    try:
        write(2)
        shared = a @ b
        with one_blas_thread():
            alone = a @ b
    finally:
        write(before)
    np.testing.assert_array_equal(shared, alone)
