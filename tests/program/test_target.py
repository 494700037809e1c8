"""`pipelines_on_cpu`: a learner's own call of an `emit_pipeline` kernel runs without a TPU."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest
import sample

SETUP = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from puzzles import check, find, pipelines_on_cpu

x = jnp.ones((128, 256))
add, matmul = find("pipelined_add").solution, find("pipelined_matmul").solution
"""
BEFORE = """
try:
    add(x, x)
except (ValueError, AssertionError):
    print("refused")
"""
AFTER = """
was = jax.jit, jnp.sum, jax.default_backend(), str(jax.sharding.get_abstract_mesh())
pipelines_on_cpu()
from jax._src.pallas.mosaic import pipeline
once = dict(vars(pipeline))
pipelines_on_cpu()
assert once == dict(vars(pipeline))
assert was == (jax.jit, jnp.sum, jax.default_backend(), str(jax.sharding.get_abstract_mesh()))
assert (add(x, x) == 2).all()
assert (jax.jit(add)(x, x) == 2).all()
assert (jax.jit(lambda x: add(x, x) + 1)(x) == 3).all()
assert jnp.allclose(matmul(x, x.T), 256)
assert str(jax.make_jaxpr(jnp.sin)(x[0, 0])).count("sin") == 1
assert check(add).passed
assert check(find("row_sum").solution).passed
try:
    pl.pallas_call(lambda x_ref, o_ref: None, out_shape=x)(x)
except ValueError as error:
    print("refused" if "interpret mode" in str(error) else error)
"""


@sample.in_turn
@pytest.mark.skipif(jax.default_backend() == "tpu", reason="a TPU is no CPU")
def test_a_pipeline_runs_where_it_is_called_and_nothing_else_changes():
    done = subprocess.run(
        [sys.executable, "-c", SETUP + BEFORE + AFTER], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("refused", "refused")
