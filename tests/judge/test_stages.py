"""The judged program is the program that runs, on every case."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import cores
from learner import Notebook, edited, solved

import puzzles
from puzzles import Verdict
from puzzles._judge import fresh_case, judge
from puzzles._launch import nothing_launched, pl_kernel, trace_call

ROW_SUM = puzzles.find("row_sum")


def test_a_gradient_is_that_of_the_rule() -> None:
    """The puzzle's observers see the learner's `custom_vjp`, not the function under it."""

    @jax.custom_vjp
    def add_ten(x):
        return x + 10.0

    add_ten.defvjp(lambda x: (x + 10.0, None), lambda _, g: (g * 3.0,))
    puzzle = dataclasses.replace(
        puzzles.find("add_ten"),
        kernel=False,
        jit=True,
        audit=None,
        spec=lambda x: x + 10.0,
        observe=lambda fn: lambda x: jax.grad(lambda y: jnp.sum(fn(y)))(x),
    )
    assert judge(puzzle, lambda x: x + 10.0).passed
    assert judge(puzzle, add_ten).stage == "values"
    assert judge(puzzle, jax.jit(add_ten)).stage == "values"
    assert judge(puzzle, functools.partial(add_ten)).stage == "values"


def test_a_jitted_partial_of_a_jitted_function_is_traced_anew() -> None:
    notebook = Notebook()
    notebook.run(solved("row_sum"))
    notebook.run("import functools\nimport jax")
    notebook.run("row_sum = jax.jit(functools.partial(jax.jit(row_sum)))")
    assert judge(ROW_SUM, notebook["row_sum"]).passed
    notebook.run("def row_sum_kernel(x_ref, o_ref):\n    o_ref[...] = jnp.zeros_like(o_ref)")
    assert judge(ROW_SUM, notebook["row_sum"]).stage == "values"


@pytest.mark.skipif(jax.__version_info__ < (0, 10, 1), reason="there JAX makes no `mpmd_map`")
def test_a_kernel_on_a_mesh_that_is_not_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_ten(x):
        def body(x_ref, o_ref):
            pltpu.sync_copy(x_ref, o_ref)

        return pl.kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=cores(2))(x)

    monkeypatch.setattr(pl_kernel, "_MESH", "AnotherMesh")
    verdict = judge(puzzles.find("add_ten"), add_ten)
    assert verdict.stage == "pallas"
    assert "launches a kernel on a `TensorCoreMesh`" in verdict.says
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    assert "cannot read a kernel on a `TensorCoreMesh`" in nothing_launched(trace_call(add_ten, x))


@pytest.mark.newest
def test_a_kernel_for_sparse_cores_is_named() -> None:
    from jax.experimental.pallas import tpu_sc

    def add_ten(x):
        mesh = tpu_sc.ScalarSubcoreMesh(axis_name="core", num_cores=2)
        return pl.kernel(pltpu.sync_copy, x, mesh=mesh)(x)

    verdict = judge(puzzles.find("add_ten"), add_ten)
    assert "This is a kernel for SparseCores" in str(verdict)


def judged(puzzle: str, *edits: tuple[str, str], seed: int | None = None) -> Verdict:
    plain = dataclasses.replace(puzzles.find(puzzle), scale=None)  # it would refuse some first
    return judge(plain, edited(puzzle, *edits), seed=seed)


def test_the_fresh_case_is_lowered_for_a_tpu_as_the_listed_ones_are() -> None:
    drawn = {seed: case for seed in range(20) if (case := fresh_case(ROW_SUM, seed)) is not None}
    seed = next(seed for seed, case in drawn.items() if case.dims["M"] == 256)
    verdict = judged(
        "row_sum", ("bm, bn = 64, 128", "bm, bn = 4 if M == 256 else 64, 128"), seed=seed
    )
    assert (verdict.stage, verdict.case) == ("tpu", drawn[seed].label)
    assert f"`check(row_sum, seed={seed})` draws it again" in str(verdict)
