"""Products in NumPy: one thread while a program runs step by step, so the same bits everywhere."""

import numpy as np
import pytest

from puzzles._program import blas, one_blas_thread

own = pytest.mark.skipif(not blas._openblas(), reason="NumPy has no OpenBLAS of its own")


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
def test_a_product_has_the_same_bits_however_many_threads_there_were() -> None:
    ((read, write),) = blas._openblas()
    before, draw = read(), np.random.default_rng(0)
    a, b = (draw.normal(size=(512, 512)).astype(np.float32) for _ in range(2))
    products = []
    try:
        for threads in (1, 2):
            write(threads)
            with one_blas_thread():
                products.append(a @ b)
    finally:
        write(before)
    np.testing.assert_array_equal(*products)
