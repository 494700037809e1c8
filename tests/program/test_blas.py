"""Products in NumPy: one thread while a program runs step by step, so the same bits everywhere."""

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
