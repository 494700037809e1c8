"""Answers by `pl.kernel` on one TensorCore are judged as answers by `pallas_call` are."""

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import cores

from puzzles import INTERPRET, find, judge, trace

if jax.__version_info__ < (0, 10, 2):
    pytest.skip("pl.kernel takes out_type since JAX 0.10.1", allow_module_level=True)


def add(number, number_of_cores=1):
    def answer(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)

        @pl.kernel(
            out_type=shape,
            mesh=cores(number_of_cores),
            scratch_types=[pltpu.VMEM(x.shape, x.dtype)],
            interpret=INTERPRET,
        )
        def kernel(x_ref, o_ref, buffer):
            pltpu.sync_copy(x_ref, buffer)
            buffer[...] = buffer[...] + number
            pltpu.sync_copy(buffer, o_ref)

        return kernel(x)

    return answer


def test_a_right_answer_passes_and_is_not_asked_for_interpret():
    verdict = judge(find("add_ten"), add(10))
    assert verdict.passed
    assert "interpret=INTERPRET" not in str(verdict)


def test_wrong_numbers_are_refused():
    verdict = judge(find("add_ten"), add(11))
    assert not verdict.passed
    assert "mpmd_map" not in str(verdict)


def test_trace_counts_the_bytes_of_the_copies():
    x = jax.ShapeDtypeStruct((128, 256), np.float32)
    (launch,) = trace(add(10), x)
    assert launch.hbm_bytes_read == launch.hbm_bytes_written == 4 * 128 * 256


def test_several_cores_are_still_refused():
    assert not judge(find("add_ten"), add(10, number_of_cores=2)).passed
